#!/usr/bin/env bash
# Continues the pre-training of a masked language model with adversarial self-attention:
#   MODEL=FOLDER TEXT="wiki.*.txt" examples/asa/pretrain.sh [OUT] [flags for fairseq-train …]
# MODEL is a folder in Hugging Face's layout. TEXT are text files with blank lines between documents. The
# settings are those of Table 6 of the paper, for one GPU: its 8 × 128 sequences per update are
# --batch-size 32 with --update-freq 32. METHOD=deterministic is the other column of the table: the same
# without an adversary.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
out=${1:-runs/asa-pretraining}
shift $(($# < 1 ? $# : 1))
METHOD=${METHOD:-asa}
NAME=${NAME:-$METHOD}
case $METHOD in
  asa) objective=(--criterion asa ${TAU:+--asa-tau "$TAU"}) ;;
  deterministic) objective=(--criterion masked_lm) ;;
  *) echo "METHOD=$METHOD is unknown: use asa or deterministic" >&2; exit 1 ;;
esac
device=(--fp16); python3 -c 'import torch, sys; sys.exit(torch.cuda.is_available())' && device=(--cpu)

mkdir -p "$out"
imported=$out/imported
[ -f "$imported/model.pt" ] ||
  stochattn-import "${MODEL:?"set MODEL to the folder of an encoder"}" "$imported" --arch roberta_deterministic
# shellcheck disable=SC2086  # TEXT may be several files
python3 "$root/data-prep/prepare_text.py" --out "$out/data" --train ${TEXT:?"set TEXT to one or more text files"} \
  --subwords tokenizer --tokenizer "$imported" --format block --block-tokens 256
read -ra model <<< "$(python3 -c '
import json, sys
print(json.load(open(sys.argv[1]))["model"]["flags"])' "$imported/manifest.json")"
fairseq-train "$out/data" "${model[@]}" --user-dir "$root/fairseq_stochattn" --arch "roberta_$METHOD" \
  --finetune-from-model "$imported/model.pt" --task masked_lm --tokens-per-sample 256 \
  --sample-break-mode none "${objective[@]}" --dropout 0.1 --attention-dropout 0.1 --optimizer adam \
  --adam-betas "(0.9, 0.98)" --adam-eps 1e-6 --weight-decay 0.01 --clip-norm 1 --lr 2e-5 \
  --lr-scheduler polynomial_decay --warmup-updates 1200 --total-num-update 20000 --max-update 20000 \
  --batch-size 32 --update-freq 32 --save-dir "$out/$NAME" --no-epoch-checkpoints --log-format simple \
  --log-interval 50 --num-workers 0 "${device[@]}" "$@" 2>&1 | tee -a "$out/$NAME.train.log"
