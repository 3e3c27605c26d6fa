#!/usr/bin/env bash
# Prepare the data, train, evaluate:
#   examples/alignment/run.sh CONFIG [OUT] [flags for fairseq-train …]
# CONFIG is a file of configs/ without its ending. ALIGNMENT is gan, ot, ct (default) or none, which
# trains without and measures the same MMD. CORPUS=FOLDER takes the corpus' files from there instead
# of downloading them; MODEL=FOLDER is the pretrained model of the GLUE configurations. What is there
# already is kept: data, and a training that was interrupted.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
config=${1:?"which configuration? one of: $(cd "$here/configs" && ls | sed 's/\.sh$//' | tr '\n' ' ')"}
out=${2:-runs/$config}
shift $(($# < 2 ? $# : 2))
ALIGNMENT=${ALIGNMENT:-ct}
source "$here/configs/$config.sh"

user=(--user-dir "$root/fairseq_stochattn")
align=(--criterion alignment --alignment "$ALIGNMENT" --alignment-log-mmd)
[ "$ALIGNMENT" = none ] && align=(--criterion alignment --alignment ot --alignment-weight 0 --alignment-log-mmd)
device=(); python3 -c 'import torch, sys; sys.exit(torch.cuda.is_available())' && device=(--cpu)

mkdir -p "$out"
python3 "$root/data-prep/${PREPARE[0]}" --out "$out/data" ${CORPUS:+--from "$CORPUS"} "${PREPARE[@]:1}"
fairseq-train "$out/data" "${user[@]}" "${align[@]}" "${TRAIN[@]}" "${device[@]}" \
  --save-dir "$out/$ALIGNMENT" --no-epoch-checkpoints --log-format simple --log-interval 50 \
  --tensorboard-logdir "$out/$ALIGNMENT/tensorboard" "$@" 2>&1 | tee -a "$out/$ALIGNMENT.train.log"
evaluate
