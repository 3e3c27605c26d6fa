#!/usr/bin/env bash
# Import a pretrained encoder, prepare a GLUE task, fine-tune, predict and score:
#   MODEL=FOLDER examples/glue/run.sh TASK [OUT] [flags for fairseq-train …]
# TASK is a GLUE task, e.g. MRPC, or clinc150. MODEL is a folder in Hugging Face's layout (BERT or
# RoBERTa). METHOD is the attention: deterministic (default), babn, bam or alignment, the latter with
# ALIGNMENT=gan, ot or ct (default). PRESET is a file of configs/ without its ending, by default small.
# CORPUS=FOLDER has the corpus' files, which are downloaded otherwise. What is there already is kept.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
task=${1:?"which task? e.g. MRPC, RTE, CoLA, STS-B, SST-2, QNLI, QQP, MNLI"}
out=${2:-runs/glue}
shift $(($# < 2 ? $# : 2))
METHOD=${METHOD:-deterministic} PRESET=${PRESET:-small} ALIGNMENT=${ALIGNMENT:-ct}
NAME=${NAME:-$METHOD}

classes=2 report=(--best-checkpoint-metric accuracy)
prepare=("$root/data-prep/prepare_glue.py" --task "$task")
case $task in
  CoLA) report=(--report-mcc --best-checkpoint-metric mcc) ;;
  MRPC | QQP) report=(--report-acc-and-f1 --best-checkpoint-metric acc_and_f1) ;;
  MNLI) classes=3 ;;
  clinc150) classes=150 prepare=("$root/data-prep/prepare_clinc150.py") ;;
  STS-B)
    classes=1
    report=(--regression-target --report-pearson-and-spearman
      --best-checkpoint-metric pearson_and_spearman) ;;
esac
source "$here/configs/$PRESET.sh"  # LR, BATCH, STEPS, WARMUP and FLAGS of the task

case $METHOD in
  deterministic) objective=(--criterion sentence_prediction) ;;
  babn | bam) objective=(--criterion elbo --kl-anneal-updates "$STEPS") ;;
  alignment) objective=(--criterion alignment --alignment "$ALIGNMENT" --alignment-log-mmd) ;;
  *) echo "no METHOD '$METHOD', see the head of $0" >&2; exit 1 ;;
esac
device=(); python3 -c 'import torch, sys; sys.exit(torch.cuda.is_available())' && device=(--cpu)

mkdir -p "$out"
imported=$out/imported
[ -f "$imported/model.pt" ] ||
  stochattn-import "${MODEL:?"MODEL=FOLDER, a pretrained encoder"}" "$imported" --arch roberta_deterministic
python3 "${prepare[@]}" --out "$out/$task/data" \
  --model-from "$imported" ${CORPUS:+--from "$CORPUS"}
# The model's own flags, which the import has noted; the arch is the method's.
read -ra model <<< "$(python3 -c '
import json, sys
print(json.load(open(sys.argv[1]))["model"]["flags"])' "$imported/manifest.json")"
separator=(); python3 -c '
import json, sys
sys.exit(not json.load(open(sys.argv[1]))["model"]["two_separators"])' "$imported/manifest.json" &&
  separator=(--separator-token 2)
run=$out/$task/$NAME
fairseq-train "$out/$task/data" "${model[@]}" --user-dir "$root/fairseq_stochattn" \
  --arch "roberta_$METHOD" --finetune-from-model "$imported/model.pt" --task sentence_prediction \
  --num-classes $classes --init-token 0 "${separator[@]}" "${objective[@]}" "${report[@]}" \
  --maximize-best-checkpoint-metric --optimizer adam --adam-betas "(0.9, 0.98)" --adam-eps 1e-6 \
  --weight-decay 0.01 --clip-norm 1 --pooler-dropout 0.1 --batch-size "$BATCH" --lr "$LR" \
  --lr-scheduler polynomial_decay --warmup-updates "$WARMUP" --total-num-update "$STEPS" \
  --max-update "$STEPS" --save-dir "$run" --no-epoch-checkpoints --log-format simple \
  --log-interval 50 --num-workers 0 "${FLAGS[@]}" "${device[@]}" "$@" 2>&1 | tee -a "$run.train.log"
stochattn-predict "$out/$task/data" --path "$run/checkpoint_best.pt" --output "$run.valid.jsonl" \
  "${device[@]}" 2> "$run.valid.log" | tee "$run.valid.txt"
