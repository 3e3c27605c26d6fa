#!/usr/bin/env bash
# The paper's Fig. 3: accuracy for different numbers of heads, plain and repulsive.
#   examples/repulsive/heads.sh TASK [OUT] [flags for fairseq-train …]
# HEADS are the numbers of heads, by default "1 5 10 20 30". SEEDS, CORPUS, GLOVE and METHODS are those of
# classify.sh, which trains the models; METHODS is "plain directions" by default. Writes OUT/TASK.heads.png.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
task=${1:?"which task? yelp, snli, age or SST-2"}
out=${2:-runs/heads}
shift $(($# < 2 ? $# : 2))
export METHODS=${METHODS:-plain directions} SEEDS=${SEEDS:-1 2 3} DATA=$out/$task.data
for heads in ${HEADS:-1 5 10 20 30}; do
  echo "$heads heads"
  "$here/classify.sh" "$task" "$out/$heads" --encoder-attention-heads "$heads" "$@"
done
python3 "$here/plot_heads.py" "$out" "$task"
