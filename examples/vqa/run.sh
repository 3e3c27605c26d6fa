#!/usr/bin/env bash
# Questions about images: trains MCAN, with and without the images, and evaluates both on the test set
# and on the test set with noisy images.
#   examples/vqa/run.sh [OUT] [flags for fairseq-train …]
# METHOD: deterministic (default), babn, bam, gan, ot or ct. NOISE: standard deviation of the noise, by
# default 8 (in the papers, on VQA v2: 1 or 2.236). SEED: by default 1. SAMPLES: samples of the attention, by default 20. GLOVE: a file of word
# vectors. DATA: folder of prepared data; by default easy-VQA is prepared, from the package easy-vqa.
# PRESET: tiny (default, for a CPU), papers or small. CONFIG: a file of configs/ (default: easy_vqa).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-runs/vqa}
shift $(($# < 1 ? $# : 1))
METHOD=${METHOD:-deterministic} NOISE=${NOISE:-8} SEED=${SEED:-1} SAMPLES=${SAMPLES:-20}
CONFIG=${CONFIG:-easy_vqa}
test_set=test
. "$here/configs/$CONFIG.sh"
device=$(python3 -c 'import torch; print("" if torch.cuda.is_available() else "--cpu")')

data=${DATA:-$out/data}
[ -n "${DATA:-}" ] || stochattn-prepare easy_vqa --out "$data"

case $METHOD in
gan | ot | ct) method=(--arch "mcan_alignment_$PRESET" --criterion alignment --alignment "$METHOD") ;;
babn | bam) method=(--arch "mcan_${METHOD}_$PRESET" --criterion elbo) ;;
*) method=(--arch "mcan_${METHOD}_$PRESET" --criterion attention_losses) ;;
esac

train() { # NAME [flags …]
  local save=$out/$1
  shift
  [ -s "$save/checkpoint_best.pt" ] ||
    fairseq-train "$data" --user-dir "$here/../../fairseq_stochattn" --task vqa "${settings[@]}" \
      ${GLOVE:+--encoder-embed-path "$GLOVE"} --seed "$SEED" --save-dir "$save" \
      --best-checkpoint-metric accuracy --maximize-best-checkpoint-metric \
      --no-epoch-checkpoints --no-last-checkpoints --log-format simple --no-progress-bar $device "$@"
}
train "$METHOD" "${method[@]}" "$@"
train question-only --arch "mcan_deterministic_$PRESET" --criterion vqa --no-image "$@"

for noise in 0 "$NOISE"; do
  echo "standard deviation of the noise: $noise"
  stochattn-evaluate "$data" --path "$out/$METHOD/checkpoint_best.pt" \
    "$out/question-only/checkpoint_best.pt" --gen-subset "$test_set" --image-noise "$noise" \
    --samples "$SAMPLES" --json "$out/evaluation-noise$noise.json" --force $device
done
