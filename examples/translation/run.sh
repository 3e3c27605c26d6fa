#!/usr/bin/env bash
# Prepare the data, train, translate, and score:
#   METHOD=babn examples/translation/run.sh CONFIG [OUT] [flags for fairseq-train …]
# CONFIG is a file of configs/ without its ending. METHOD is one of
#   plain         fairseq's own model; CRITERION=freelb or smart trains it adversarially
#   babn, bam     Bayesian attention, translated with samples
#   alignment     with ALIGNMENT=gan, ot or ct (default); none measures the same without aligning
#   repulsive     fairseq's own model, repulsive optimizer; RULE=svgd (default), spos or sgld
#   disagreement  the baseline of repulsive: cosine of head outputs as a regulariser
#   asa           adversarial masks, with TAU as temperature
#   bernoulli, scheduled, magnitude  the same with masks that are not learnt
# CORPUS=FOLDER takes the corpus' files from there instead of downloading them. What is there already
# is kept: data, and a training that was interrupted. NAME names the run, by default the method.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
config=${1:?"which configuration? one of: $(cd "$here/configs" && ls | sed 's/\.sh$//' | tr '\n' ' ')"}
out=${2:-runs/$config}
shift $(($# < 2 ? $# : 2))
METHOD=${METHOD:-plain} ALIGNMENT=${ALIGNMENT:-ct} RULE=${RULE:-svgd}
CRITERION=${CRITERION:-}
NAME=${NAME:-${CRITERION:-$METHOD}}

# transformer iwslt_de_en → transformer_babn_iwslt_de_en, or fairseq's own arch.
case $METHOD in
  plain | repulsive) infix= ;;
  disagreement) infix=_deterministic ;;
  *) infix=_$METHOD ;;
esac
arch() { echo "$1$infix${2:+_$2}"; }
source "$here/configs/$config.sh"

user=(--user-dir "$root/fairseq_stochattn")
generate=fairseq-generate samples=()
objective=(--criterion label_smoothed_cross_entropy)
case $METHOD in
  plain) objective=(--criterion "${CRITERION:-label_smoothed_cross_entropy}") ;;
  babn | bam)
    objective=(--criterion elbo "${ELBO[@]}")
    generate=stochattn-generate samples=(--samples 20) ;;
  alignment)
    objective=(--criterion alignment --alignment "$ALIGNMENT" --alignment-log-mmd)
    if [ "$ALIGNMENT" = none ]; then
      objective=(--criterion alignment --alignment ot --alignment-weight 0 --alignment-log-mmd)
    fi ;;
  # Behind the configuration's --optimizer, whose flags the base keeps. App. B.2: ε 0.1, weight 0.01.
  repulsive) objective+=(--optimizer repulsive --repulsive-rule "$RULE") ;;
  disagreement) objective=(--criterion repulsive --diversity disagreement --log-dist) ;;
  asa) objective=(--criterion asa --asa-tau "${TAU:-0.3}") ;;
  bernoulli | scheduled | magnitude) objective=(--criterion asa) ;;
  *) echo "no METHOD '$METHOD', see the head of $0" >&2; exit 1 ;;
esac
if [ -n "$CRITERION" ] && [ "$METHOD" != plain ]; then
  echo "CRITERION goes with METHOD=plain, $METHOD has its own" >&2; exit 1
fi
device=(); python3 -c 'import torch, sys; sys.exit(torch.cuda.is_available())' && device=(--cpu)

mkdir -p "$out"
python3 "$root/data-prep/${PREPARE[0]}" --out "$out/data" ${CORPUS:+--from "$CORPUS"} "${PREPARE[@]:1}"
fairseq-train "$out/data" "${user[@]}" "${TRAIN[@]}" "${objective[@]}" "${device[@]}" \
  --save-dir "$out/$NAME" --no-epoch-checkpoints --log-format simple --log-interval 50 \
  --tensorboard-logdir "$out/$NAME/tensorboard" "$@" 2>&1 | tee -a "$out/$NAME.train.log"
$generate "$out/data" "${user[@]}" "${samples[@]}" "${GENERATE[@]}" "${device[@]}" \
  --path "$out/$NAME/checkpoint_best.pt" --remove-bpe --tokenizer moses --source-lang "$SOURCE" \
  --target-lang "$TARGET" > "$out/$NAME.test.txt" 2> "$out/$NAME.test.log"
for letter in D T; do
  column=$([ $letter = D ] && echo 3 || echo 2)
  grep "^$letter-" "$out/$NAME.test.txt" | sort -V | cut -f $column > "$out/$NAME.test.$letter"
done
sacrebleu "$out/$NAME.test.T" --input "$out/$NAME.test.D" --width 2
