#!/usr/bin/env bash
# Imports a pretrained encoder, prepares a task, fine-tunes, predicts and scores:
#   MODEL=FOLDER examples/glue/run.sh TASK [OUT] [flags for fairseq-train …]
# TASK is a GLUE task such as MRPC, or ANLI, SNLI, PAWS, PAWS-QQP, IMDb, CLINC150, CoNLL-2003 or WNUT-17 (entities),
# SWAG, DREAM or HellaSWAG (multiple choice). MODEL is a folder in Hugging Face's layout (BERT, RoBERTa,
# ELECTRA or ALBERT); its config.json decides BACKBONE, which is roberta (also for BERT), electra or albert.
# Without MODEL, electra has its small size and albert its base size, unless SIZE names another. A model that was pre-trained here takes the place of MODEL: CHECKPOINT=FILE, and DATA=FOLDER, the
# data it was pre-trained on, whose subwords are used. METHOD is the attention:
#   deterministic    the default; CRITERION=freelb or smart trains it adversarially
#   babn, bam        Bayesian attention
#   alignment        with ALIGNMENT=gan, ot or ct (default)
#   asa              adversarial masks; TAU is a constant weight of the penalty on masks
#   bernoulli, scheduled, magnitude    the same with masks that are not learned
#   attendout        a learned dropout of attention
#   layerdrop, cell_dropout            the same without learning
# PRESET is the name of a file in configs/, without .sh; by default small. CORPUS=FOLDER contains the files
# of the task; without it they are downloaded. Existing data is reused; an interrupted training continues.
# LENGTH=128 cuts the examples to 128 tokens. PREPARE has further flags for the preparation, such as --halve. SEEDS="1 2 3" trains once per seed and prints mean ± standard
# deviation. All validation and test sets are predicted; those of GLUE's test sets are also written to
# OUT/submission/NAME in GLUE's format.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
task=${1:?"which task? e.g. MRPC, RTE, CoLA, STS-B, SST-2, QNLI, QQP, MNLI, WNUT-17, SWAG"}
out=${2:-runs/glue}
shift $(($# < 2 ? $# : 2))
if [ -n "${SEEDS:-}" ]; then
  name=${NAME:-${CRITERION:-${METHOD:-deterministic}}} seeds=$SEEDS
  for seed in $seeds; do
    SEEDS= NAME=$name-seed$seed "$0" "$task" "$out" "$@" --seed "$seed"
  done
  for split in valid valid1 test test1; do
    files=(); for seed in $seeds; do files+=("$out/$task/$name-seed$seed.$split.txt"); done
    [ ! -f "${files[0]}" ] || { echo "$split:"; python3 "$here/summary.py" "${files[@]}"; }
  done
  exit
fi
METHOD=${METHOD:-deterministic} PRESET=${PRESET:-small} ALIGNMENT=${ALIGNMENT:-ct}
CRITERION=${CRITERION:-} BACKBONE=${BACKBONE:-} CHECKPOINT=${CHECKPOINT:-}
if [ -z "$BACKBONE" ]; then
  BACKBONE=roberta
  for name in electra albert; do
    if grep -qs "\"model_type\": *\"$name\"" "${MODEL:-}/config.json"; then BACKBONE=$name; fi
  done
fi
case $BACKBONE in
  roberta) SIZE=${SIZE:-} ;;
  electra) SIZE=${SIZE:-small} ;;
  albert) SIZE=${SIZE:-base} ;;
  *) echo "BACKBONE=$BACKBONE is unknown: use roberta, electra or albert" >&2; exit 1 ;;
esac
NAME=${NAME:-${CRITERION:-$METHOD}}

prepare=(prepare_glue.py --task "$task") kind=sentence_prediction
classes=2 report=(--best-checkpoint-metric accuracy)
case $task in
  CoLA) report=(--report-mcc --best-checkpoint-metric mcc) ;;
  MRPC | QQP) report=(--report-acc-and-f1 --best-checkpoint-metric acc_and_f1) ;;
  MNLI) classes=3 ;;
  STS-B)
    classes=1
    report=(--regression-target --report-pearson-and-spearman
      --best-checkpoint-metric pearson_and_spearman) ;;
  ANLI) prepare=(prepare_anli.py) classes=3 ;;
  CLINC150) prepare=(prepare_clinc150.py) classes=150 ;;
  PAWS) prepare=(prepare_paws.py) ;;
  PAWS-QQP) prepare=(prepare_paws_qqp.py) ;;  # its files must be in CORPUS
  SNLI) prepare=(prepare_snli.py) classes=3 ;;
  IMDb) prepare=(prepare_imdb.py) ;;
  CoNLL-2003) prepare=(prepare_conll2003.py) kind=token_tagging ;;
  WNUT-17) prepare=(prepare_wnut17.py) kind=token_tagging ;;
  SWAG) prepare=(prepare_swag.py) kind=sentence_ranking classes=4 ;;
  DREAM) prepare=(prepare_dream.py) kind=sentence_ranking classes=3 ;;
  HellaSWAG) prepare=(prepare_hellaswag.py) kind=sentence_ranking classes=4 ;;
esac
source "$here/configs/$PRESET.sh"  # LR, BATCH, STEPS, WARMUP, FLAGS

case $METHOD in
  deterministic | layerdrop | cell_dropout) objective=(--criterion "${CRITERION:-$kind}") ;;
  babn | bam) objective=(--criterion elbo --kl-anneal-updates "$STEPS") ;;
  alignment) objective=(--criterion alignment --alignment "$ALIGNMENT" --alignment-log-mmd) ;;
  asa) objective=(--criterion asa ${TAU:+--asa-tau "$TAU"}) ;;
  attendout) objective=(--criterion attendout) ;;
  bernoulli | scheduled | magnitude) objective=(--criterion asa) ;;
  *) echo "METHOD=$METHOD is unknown: the comment at the top of $0 lists the methods" >&2; exit 1 ;;
esac
if [ -n "$CRITERION" ] && [ "$METHOD" != deterministic ]; then
  echo "CRITERION=$CRITERION needs METHOD=deterministic: METHOD=$METHOD sets its own criterion" >&2; exit 1
fi
device=(); python3 -c 'import torch, sys; sys.exit(torch.cuda.is_available())' && device=(--cpu)

mkdir -p "$out"
imported=$out/imported start=$out/imported/model.pt
if [ -n "$CHECKPOINT" ]; then
  imported=${DATA:?"CHECKPOINT needs DATA, the folder of the data it was pre-trained on"} start=$CHECKPOINT
elif [ ! -f "$start" ]; then
  stochattn-import "${MODEL:?"set MODEL to the folder of an encoder"}" "$imported" --arch "${BACKBONE}_deterministic"
fi
read -ra more <<< "${PREPARE:-}"
python3 "$root/data-prep/${prepare[0]}" "${prepare[@]:1}" "${more[@]}" --out "$out/$task/data" \
  --model-from "$imported" ${CORPUS:+--from "$CORPUS"} ${LENGTH:+--max-length "$LENGTH"}
# The flags of the model are in the manifest of the import; the arch comes from METHOD. A model that was
# pre-trained here has the sizes of its arch, and those after OUT.
model=() separator=()
if [ -z "$CHECKPOINT" ]; then
  read -ra model <<< "$(python3 -c '
import json, sys
print(json.load(open(sys.argv[1]))["model"]["flags"])' "$imported/manifest.json")"
  python3 -c '
import json, sys
sys.exit(not json.load(open(sys.argv[1]))["model"]["two_separators"])' "$imported/manifest.json" &&
    separator=(--separator-token 2)
  SIZE=  # its flags contain all sizes
fi
shape=(--num-classes "$classes") batches=
[ $kind != sentence_prediction ] || batches=_by_length  # batches of similar length have less padding
[ $kind != token_tagging ] || shape=() separator=() report=(--best-checkpoint-metric f1)
run=$out/$task/$NAME
fairseq-train "$out/$task/data" "${model[@]}" --user-dir "$root/fairseq_stochattn" \
  --arch "${BACKBONE}_$METHOD${SIZE:+_$SIZE}" --finetune-from-model "$start" --task "$kind$batches" \
  "${shape[@]}" --init-token 0 "${separator[@]}" "${objective[@]}" "${report[@]}" \
  --maximize-best-checkpoint-metric --optimizer adam --adam-betas "(0.9, 0.98)" --adam-eps 1e-6 \
  --weight-decay 0.01 --clip-norm 1 --pooler-dropout 0.1 --batch-size "$BATCH" --lr "$LR" \
  --lr-scheduler polynomial_decay --warmup-updates "$WARMUP" --total-num-update "$STEPS" \
  --max-update "$STEPS" --save-dir "$run" --no-epoch-checkpoints --log-format simple \
  --log-interval 50 --num-workers 0 "${FLAGS[@]}" "${device[@]}" "$@" 2>&1 | tee -a "$run.train.log"
for split in valid valid1 test test1; do
  [ -f "$out/$task/data/input0/$split.bin" ] || continue
  stochattn-predict "$out/$task/data" --path "$run/checkpoint_best.pt" --gen-subset $split \
    --output "$run.$split.jsonl" "${device[@]}" 2> "$run.$split.log" | tee "$run.$split.txt"
  case $split in test*)
    [ "${prepare[0]}" != prepare_glue.py ] ||
      python3 "$here/submission.py" "$out/$task/data" "$task" "$run.$split.jsonl" \
        "$out/submission/$NAME" --split $split ;;
  esac
done
