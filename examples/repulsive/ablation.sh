#!/usr/bin/env bash
# The paper's Table 8: repulsion on only a part of the heads.
#   examples/repulsive/ablation.sh CONFIG [OUT] [flags for fairseq-train …]
# One run per row, into OUT/<row>. Rows that exist already are kept. Prints the BLEU of all rows at the end.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
config=${1:?"which configuration? see examples/translation/configs"}
out=${2:-runs/ablation}
shift $(($# < 2 ? $# : 2))
row() {
  local name=$1; shift
  [ -f "$out/$name.bleu" ] && return
  NAME=$name "$here/../translation/run.sh" "$config" "$out" "$@"
  local bleu
  bleu=$(sacrebleu "$out/$name.test.T" --input "$out/$name.test.D" --score-only --width 2)
  echo "$bleu" > "$out/$name.bleu"
}
mkdir -p "$out"
METHOD=plain row none "$@"
export METHOD=repulsive
for projection in q k v; do row "$projection" --repulsive-projections "$projection" "$@"; done
for site in encoder decoder cross; do row "$site" --repulsive-sites "$site" "$@"; done
for layer in first last; do row "$layer" --repulsive-layers "$layer" "$@"; done
row all "$@"
for name in none q k v encoder decoder cross first last all; do
  printf '%-8s %s\n' "$name" "$(cat "$out/$name.bleu")"
done
