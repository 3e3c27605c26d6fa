#!/usr/bin/env bash
# Is a classifier less sure about requests that it was not trained for? Fine-tunes a pretrained encoder on
# the 150 intents of CLINC150, with plain and with Bayesian attention, and evaluates both on its test set
# and on the out-of-scope requests:
#   MODEL=FOLDER examples/uncertainty/run.sh [OUT] [flags for fairseq-train …]
# MODEL is a folder in Hugging Face's layout (BERT or RoBERTa). METHODS are methods of
# examples/glue/run.sh, by default deterministic and babn. SAMPLES is the number of samples of the
# attention, by default 20. CORPUS=FOLDER contains data_full.json; without it the file is downloaded.
# Trained models are kept.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-runs/uncertainty}
shift $(($# < 1 ? $# : 1))
METHODS=${METHODS:-deterministic babn} SAMPLES=${SAMPLES:-20}

checkpoints=()
for method in $METHODS; do
  run=$out/CLINC150/$method
  [ -s "$run.valid.txt" ] || METHOD=$method "$here/../glue/run.sh" CLINC150 "$out" "$@"
  checkpoints+=("$run/checkpoint_best.pt")
done
stochattn-evaluate "$out/CLINC150/data" --path "${checkpoints[@]}" --samples "$SAMPLES" \
  --gen-subset test --out-of-domain-subset test_oos --json "$out/evaluation.json" --force |
  tee "$out/evaluation.txt"
