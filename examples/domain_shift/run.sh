#!/usr/bin/env bash
# How well does a model do on another corpus with the same task? Fine-tunes a pretrained encoder on one
# corpus, evaluates it on that corpus and on the other one, and prints one table (BABN paper, Table 2):
#   MODEL=FOLDER examples/domain_shift/run.sh PAIR [OUT] [flags for fairseq-train …]
# PAIR is snli-mnli, qqp-twitterppdb, swag-hellaswag, or cola (sentences from the sources of the training
# set and from other sources). MODEL is a folder in Hugging Face's layout. PRESET is bert (default), roberta
# or small, METHODS are methods of examples/glue/run.sh, by default "deterministic bam babn". SEEDS, by
# default 1, are the seeds of the trainings. SAMPLES is the number of samples of the attention, by default 20.
# CORPUS and OUTSIDE are folders with the files of the first and the second corpus; without them they are
# downloaded, except TwitterPPDB, which its authors send on request. Development sets are split into halves,
# for validation and for testing. Trained models are kept.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
pair=${1:?"which pair? snli-mnli, qqp-twitterppdb, swag-hellaswag or cola"}
out=${2:-runs/domain_shift}
shift $(($# < 2 ? $# : 2))
METHODS=${METHODS:-deterministic bam babn} SEEDS=${SEEDS:-1} SAMPLES=${SAMPLES:-20} PRESET=${PRESET:-bert}
case $PRESET in bert | roberta) preset=shift_$PRESET ;; *) preset=$PRESET ;; esac
prepare=--halve
case $pair in
  snli-mnli) task=SNLI other=(prepare_glue.py --task MNLI) ;;
  qqp-twitterppdb)
    task=QQP other=(prepare_twitterppdb.py)
    : "${OUTSIDE:?"set OUTSIDE to the folder of Twitter_URL_Corpus_train.txt and _test.txt"}" ;;
  swag-hellaswag) task=SWAG other=(prepare_hellaswag.py) ;;
  cola) task=CoLA other=() prepare="--halve --domains" ;;
  *) echo "$pair is unknown: use snli-mnli, qqp-twitterppdb, swag-hellaswag or cola" >&2; exit 1 ;;
esac
device=(); python3 -c 'import torch, sys; sys.exit(torch.cuda.is_available())' && device=(--cpu)

outside=$out/$task/data subset=test_outside prepared=
for seed in $SEEDS; do
  checkpoints=()
  for method in $METHODS; do
    name=$method-seed$seed
    [ -s "$out/$task/$name.valid.txt" ] || SEEDS= METHOD=$method NAME=$name PRESET=$preset PREPARE=$prepare \
      "$root/examples/glue/run.sh" "$task" "$out" "$@" --seed "$seed"
    checkpoints+=("$out/$task/$name/checkpoint_best.pt")
  done
  if [ ${#other[@]} -gt 0 ] && [ -z "$prepared" ]; then
    outside=$out/$pair-outside subset=test prepared=1
    python3 "$root/data-prep/${other[0]}" "${other[@]:1}" --out "$outside" --halve \
      --model-from "$out/imported" ${OUTSIDE:+--from "$OUTSIDE"} ${LENGTH:+--max-length "$LENGTH"}
  fi
  stochattn-evaluate "$out/$task/data" --path "${checkpoints[@]}" --samples "$SAMPLES" \
    --gen-subset test --out-of-domain "$outside" --out-of-domain-subset $subset \
    --json "$out/$pair-seed$seed.json" --force "${device[@]}"
done
python3 "$here/domain_table.py" "$out/$pair"-seed*.json | tee "$out/$pair.txt"
