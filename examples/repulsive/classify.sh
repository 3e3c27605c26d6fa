#!/usr/bin/env bash
# The paper's Table 1: the self-attentive classifier of Lin et al. 2017, plain and with repulsive heads.
#   examples/repulsive/classify.sh TASK [OUT] [flags for fairseq-train …]
# TASK is yelp, snli, age (the paper's) or SST-2. CORPUS=FOLDER contains the files of the corpus: age needs
# it, the others are downloaded without it. GLOVE=FILE are word vectors such as glove.840B.300d.txt; without
# it the word vectors are learned. SEEDS="1 2 3" are the seeds (default; the paper has ten). METHODS are the
# rows, by default all:
#   plain        no repulsion
#   frobenius    Lin's own regulariser, the baseline of Table 1
#   directions   repulsion of directions (this package's default)
#   svgd, spos   the paper's rules
# The text is split into words and punctuation by Moses' rules; the paper uses spaCy. Every optimizer is
# that of Lin et al. Rows that exist already are kept. Prints the test accuracy of each row: mean and
# standard deviation over the seeds. EPOCHS sets the number of epochs, DATA the folder of the prepared data.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
task=${1:?"which task? yelp, snli, age or SST-2"}
out=${2:-runs/classify}/$task
shift $(($# < 2 ? $# : 2))
SEEDS=${SEEDS:-1 2 3} METHODS=${METHODS:-plain frobenius directions svgd spos} EPOCHS=${EPOCHS:-10}
DATA=${DATA:-$out/data}
# App. B.1 of the paper chooses ε and the weight by grid search; the weights are those of the released code.
case $task in
  yelp) prepare=(prepare_yelp.py) classes=5 arch=_yelp base=sgd lr=0.06 batch=32 penalty=1 weight=1 ;;
  age) prepare=(prepare_age.py) classes=5 arch=_age base=sgd lr=0.06 batch=16 penalty=1 weight=0.01 ;;
  snli) prepare=(prepare_snli.py) classes=3 arch=_snli base=adagrad lr=0.01 batch=50 penalty=0.3 weight=0.005 ;;
  SST-2)
    prepare=(prepare_glue.py --task SST-2 --holdout 50)
    classes=2 arch= base=sgd lr=0.06 batch=32 penalty=1 weight=0.01 ;;
  *) echo "TASK $task is unknown: use yelp, snli, age or SST-2" >&2; exit 1 ;;
esac
decay=(--weight-decay 0.0001)
[ $base = sgd ] || decay=()
device=(); python3 -c 'import torch, sys; sys.exit(torch.cuda.is_available())' && device=(--cpu)

mkdir -p "$out"
python3 "$root/data-prep/${prepare[0]}" "${prepare[@]:1}" --out "$DATA" --subwords words --lowercase \
  ${CORPUS:+--from "$CORPUS"}
train() {
  local name=$1 seed=$2 run=$out/$1.$2; shift 2
  [ -f "$run.accuracy" ] && return
  local rule=(--optimizer $base --criterion sentence_prediction)
  local repulsive=(--optimizer repulsive --repulsive-base $base --criterion sentence_prediction)
  case $name in
    plain*) ;;
    frobenius*)
      rule=(--optimizer $base --criterion head_diversity --diversity frobenius --diversity-weight $penalty) ;;
    directions*) rule=("${repulsive[@]}") ;;
    svgd* | spos*)
      rule=("${repulsive[@]}" --repulsive-rule "${name:0:4}" --repulsive-epsilon 1 --repulsive-weight $weight) ;;
    *) echo "METHODS: $name is unknown; the comment at the top of $0 lists the rows" >&2; exit 1 ;;
  esac
  fairseq-train "$DATA" --user-dir "$root/fairseq_stochattn" --task sentence_prediction \
    --num-classes "$classes" --arch "self_attentive$arch" ${GLOVE:+--encoder-embed-path "$GLOVE"} \
    "${rule[@]}" "${decay[@]}" --lr "$lr" --clip-norm 0.5 --batch-size "$batch" --max-epoch "$EPOCHS" \
    --best-checkpoint-metric accuracy --maximize-best-checkpoint-metric --seed "$seed" \
    --save-dir "$run" --no-epoch-checkpoints --no-last-checkpoints --log-format simple --log-interval 50 \
    --num-workers 0 "${device[@]}" "$@" > "$run.train.log" 2>&1 ||
    { tail -n 5 "$run.train.log" >&2; exit 1; }
  stochattn-predict "$DATA" --path "$run/checkpoint_best.pt" --gen-subset test \
    --output "$run.test.jsonl" "${device[@]}" 2> "$run.test.log" | tee "$run.test.txt" |
    awk '$1 == "accuracy" { print $2 }' > "$run.partial"
  mv "$run.partial" "$run.accuracy"
}
for seed in $SEEDS; do
  for name in $METHODS; do train "$name" "$seed" "$@"; done
done
for name in $METHODS; do
  for seed in $SEEDS; do cat "$out/$name.$seed.accuracy"; done | awk -v name="$name" '
    { sum += $1; squares += $1 * $1 }
    END { mean = sum / NR; spread = NR > 1 ? sqrt((squares - NR * mean * mean) / (NR - 1)) : 0
          printf "%-12s %6.2f ± %.2f (%d seeds)\n", name, mean, spread < 1e-6 ? 0 : spread, NR }'
done
