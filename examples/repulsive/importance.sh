#!/usr/bin/env bash
# The paper's Fig. 2: how important the heads are, without and with repulsion.
#   examples/repulsive/importance.sh CONFIG [OUT] [flags for fairseq-train …]
# Trains plain and repulsive with examples/translation/run.sh, unless their checkpoints exist. Then masks
# each head alone on the validation set, prints Dist, Dist over norm, the cosines and the importance of
# every head, and draws the histogram of both models into OUT/importance.png.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
config=${1:?"which configuration? see examples/translation/configs"}
out=${2:-runs/$config}
shift $(($# < 2 ? $# : 2))
for method in plain repulsive; do
  [ -f "$out/$method/checkpoint_best.pt" ] ||
    NAME=$method METHOD=$method "$here/../translation/run.sh" "$config" "$out" "$@"
done
stochattn-heads "$out/plain/checkpoint_best.pt" "$out/data" --compare "$out/repulsive/checkpoint_best.pt" \
  --json "$out/importance.json" --plot "$out/importance.png"
