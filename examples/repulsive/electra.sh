#!/usr/bin/env bash
# The paper's Table 3: ELECTRA-small pre-trained with repulsive heads in the first layer, then fine-tuned.
#   TEXT="part1.txt part2.txt" examples/repulsive/electra.sh [OUT] [flags for the pre-training …]
# TEXT are text files with blank lines between documents; VALID=FILE is the validation text. TASKS are the
# GLUE tasks, by default "CoLA RTE MRPC STS-B SST-2 QNLI"; CORPUS=FOLDER contains GLUE's files. METHOD is
# repulsive (default) or plain; RULE=directions (default) or svgd, which has the paper's ε 0.01 and weight
# 0.1 (App. B.3). MODEL_FLAGS are flags that change the sizes of the model, for both steps. Repulsion acts
# in pre-training only; fine-tuning is that of examples/glue/run.sh.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
out=${1:-runs/electra}
shift $(($# < 1 ? $# : 1))
METHOD=${METHOD:-repulsive} RULE=${RULE:-directions} TASKS=${TASKS:-CoLA RTE MRPC STS-B SST-2 QNLI}
NAME=${NAME:-$METHOD} SUBWORDS=${SUBWORDS:-spm-unigram} VOCABULARY=${VOCABULARY:-30000} UPDATES=${UPDATES:-1000000}
read -ra sizes <<< "${MODEL_FLAGS:-}"
optimizer=(--optimizer adam)
case $METHOD in
  plain) ;;
  repulsive)
    optimizer=(--optimizer repulsive --repulsive-base adam --repulsive-rule "$RULE" --repulsive-layers first)
    # ε/M = 0.0025 brings gradients near Adam's usual eps of 1e-6.
    [ "$RULE" = directions ] || optimizer+=(--repulsive-epsilon 0.01 --repulsive-weight 0.1 --adam-eps 1e-9) ;;
  *) echo "METHOD=$METHOD is unknown: use repulsive or plain" >&2; exit 1 ;;
esac
device=(--fp16 --fp16-no-flatten-grads)
python3 -c 'import torch, sys; sys.exit(torch.cuda.is_available())' && device=(--cpu)

mkdir -p "$out"
# shellcheck disable=SC2086  # TEXT may be several files
python3 "$root/data-prep/prepare_text.py" --out "$out/data" --train ${TEXT:?"set TEXT to one or more text files"} \
  ${VALID:+--valid "$VALID"} --subwords "$SUBWORDS" --size "$VOCABULARY" --format block --block-tokens 128
[ -f "$out/$NAME.done" ] || fairseq-train "$out/data" --user-dir "$root/fairseq_stochattn" --task electra \
  --arch electra_small "${sizes[@]}" --criterion electra --tokens-per-sample 128 --adam-eps 1e-6 \
  "${optimizer[@]}" --adam-betas "(0.9, 0.999)" --weight-decay 0.01 --clip-norm 1 --lr 5e-4 \
  --lr-scheduler polynomial_decay --warmup-updates $((UPDATES / 100)) --total-num-update "$UPDATES" \
  --max-update "$UPDATES" --batch-size 128 --save-dir "$out/$NAME" --no-epoch-checkpoints \
  --log-format simple --log-interval 50 --num-workers 0 "${device[@]}" "$@" 2>&1 |
  tee -a "$out/$NAME.train.log"
touch "$out/$NAME.done"
for task in $TASKS; do
  METHOD=deterministic BACKBONE=electra CHECKPOINT=$out/$NAME/checkpoint_last.pt DATA=$out/data NAME=$NAME \
    "$root/examples/glue/run.sh" "$task" "$out/glue" "${sizes[@]}" --layer-lr-decay 0.8
done
