#!/usr/bin/env bash
# Imports a pretrained encoder, prepares SQuAD, fine-tunes, answers and scores:
#   MODEL=FOLDER examples/squad/run.sh [OUT] [flags for fairseq-train …]
# MODEL is a folder in Hugging Face's layout (BERT, RoBERTa, ELECTRA or ALBERT). BACKBONE is the family of
# its archs: roberta (default, also for BERT), electra or albert. VERSION is 2.0 (default) or 1.1. METHOD is
# the attention: deterministic (default), babn, bam, alignment (with ALIGNMENT=gan, ot or ct), asa,
# bernoulli, scheduled, magnitude, attendout, layerdrop or cell_dropout; CRITERION=freelb or smart trains
# plain attention adversarially. PRESET is the name of a file in configs/, without .sh; by default small.
# CORPUS=FOLDER contains SQuAD's files; without it they are downloaded. SPLIT has further flags for
# prepare_squad.py, such as "--articles 10 2 4", which splits the development set alone, or "--holdout 20".
# The answers to the validation set, and to the test set if there is one, are written to
# OUT/NAME.SPLIT.json, SQuAD's official format; NAME is by default the method.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
out=${1:-runs/squad}
shift $(($# < 1 ? $# : 1))
METHOD=${METHOD:-deterministic} PRESET=${PRESET:-small} ALIGNMENT=${ALIGNMENT:-ct}
CRITERION=${CRITERION:-} BACKBONE=${BACKBONE:-roberta} VERSION=${VERSION:-2.0}
NAME=${NAME:-${CRITERION:-$METHOD}}
source "$here/configs/$PRESET.sh"  # LR, BATCH, STEPS, WARMUP, LENGTH, FLAGS

case $METHOD in
  deterministic | layerdrop | cell_dropout) objective=(--criterion "${CRITERION:-question_answering}") ;;
  babn | bam) objective=(--criterion elbo --kl-anneal-updates "$STEPS") ;;
  alignment) objective=(--criterion alignment --alignment "$ALIGNMENT") ;;
  asa | bernoulli | scheduled | magnitude) objective=(--criterion asa) ;;
  attendout) objective=(--criterion attendout) ;;
  *) echo "METHOD=$METHOD is unknown: the comment at the top of $0 lists the methods" >&2; exit 1 ;;
esac
if [ -n "$CRITERION" ] && [ "$METHOD" != deterministic ]; then
  echo "CRITERION=$CRITERION needs METHOD=deterministic: METHOD=$METHOD sets its own criterion" >&2; exit 1
fi
device=(); python3 -c 'import torch, sys; sys.exit(torch.cuda.is_available())' && device=(--cpu)

mkdir -p "$out"
imported=$out/imported
[ -f "$imported/model.pt" ] ||
  stochattn-import "${MODEL:?"set MODEL to the folder of an encoder"}" "$imported" --arch "${BACKBONE}_deterministic"
read -ra split <<< "${SPLIT:-}"
python3 "$root/data-prep/prepare_squad.py" --version "$VERSION" --out "$out/data" --model-from "$imported" \
  --max-length "$LENGTH" --stride 128 ${CORPUS:+--from "$CORPUS"} "${split[@]}"
read -ra model <<< "$(python3 -c '
import json, sys
print(json.load(open(sys.argv[1]))["model"]["flags"])' "$imported/manifest.json")"
separator=(); python3 -c '
import json, sys
sys.exit(not json.load(open(sys.argv[1]))["model"]["two_separators"])' "$imported/manifest.json" &&
  separator=(--separator-token 2)
run=$out/$NAME
fairseq-train "$out/data" "${model[@]}" --user-dir "$root/fairseq_stochattn" --arch "${BACKBONE}_$METHOD" \
  --finetune-from-model "$imported/model.pt" --task question_answering "${separator[@]}" "${objective[@]}" \
  --best-checkpoint-metric exact --maximize-best-checkpoint-metric --optimizer adam \
  --adam-betas "(0.9, 0.98)" --adam-eps 1e-6 --weight-decay 0.01 --clip-norm 1 --batch-size "$BATCH" \
  --lr "$LR" --lr-scheduler polynomial_decay --warmup-updates "$WARMUP" --total-num-update "$STEPS" \
  --max-update "$STEPS" --save-dir "$run" --no-epoch-checkpoints --log-format simple --log-interval 50 \
  --num-workers 0 "${FLAGS[@]}" "${device[@]}" "$@" 2>&1 | tee -a "$run.train.log"
for split in valid test; do
  [ -f "$out/data/input0/$split.bin" ] || continue
  # The threshold for no answer is chosen on the validation set.
  stochattn-predict "$out/data" --path "$run/checkpoint_best.pt" --gen-subset $split \
    --no-answer-threshold valid --output "$run.$split.json" --no-answer-output "$run.$split.na.json" \
    "${device[@]}" 2> "$run.$split.log" | tee "$run.$split.txt"
done
