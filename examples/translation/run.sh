#!/usr/bin/env bash
# Prepares the data, trains, translates and scores:
#   METHOD=babn examples/translation/run.sh CONFIG [OUT] [flags for fairseq-train …]
# CONFIG is the name of a file in configs/, without .sh. METHOD is one of
#   plain         fairseq's own model; CRITERION=freelb or smart trains it adversarially
#   babn, bam     Bayesian attention; translates with samples
#   alignment     with ALIGNMENT=gan, ot or ct (default); none measures the same without aligning
#   repulsive     fairseq's own model with the repulsive optimizer; RULE=directions (default), svgd (the
#                 paper's rule), spos or sgld
#   disagreement  the baseline of repulsive: the cosine of head outputs as a regulariser
#   asa           adversarial masks; TAU is the weight of the penalty on masks
#   bernoulli, scheduled, magnitude  the same with masks that are not learned
# CORPUS=FOLDER reads the files of the corpus from there instead of downloading them. NAME is the name
# of the run, by default the method. AVERAGE=N translates with the mean of the last N epochs' parameters
# instead of the best epoch's. Existing data is reused; an interrupted training continues.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
config=${1:?"which configuration? one of: $(cd "$here/configs" && ls | sed 's/\.sh$//' | tr '\n' ' ')"}
out=${2:-runs/$config}
shift $(($# < 2 ? $# : 2))
METHOD=${METHOD:-plain} ALIGNMENT=${ALIGNMENT:-ct} RULE=${RULE:-directions}
CRITERION=${CRITERION:-} AVERAGE=${AVERAGE:-0}
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
  # Comes after the configuration's --optimizer and overrides it; the base keeps its flags.
  # App. B.2, for RULE=svgd: ε 0.1, weight 0.01 (the defaults).
  repulsive) objective+=(--optimizer repulsive --repulsive-rule "$RULE") ;;
  disagreement) objective=(--criterion head_diversity --diversity disagreement --log-dist) ;;
  asa) objective=(--criterion asa --asa-tau "${TAU:-0.3}") ;;
  bernoulli | scheduled | magnitude) objective=(--criterion asa) ;;
  *) echo "METHOD=$METHOD is unknown: the comment at the top of $0 lists the methods" >&2; exit 1 ;;
esac
if [ -n "$CRITERION" ] && [ "$METHOD" != plain ]; then
  echo "CRITERION=$CRITERION needs METHOD=plain: METHOD=$METHOD sets its own criterion" >&2; exit 1
fi
epochs=(--no-epoch-checkpoints)
[ "$AVERAGE" = 0 ] || epochs=(--keep-last-epochs "$AVERAGE")
device=(); python3 -c 'import torch, sys; sys.exit(torch.cuda.is_available())' && device=(--cpu)

mkdir -p "$out"
python3 "$root/data-prep/${PREPARE[0]}" --out "$out/data" ${CORPUS:+--from "$CORPUS"} "${PREPARE[@]:1}"
fairseq-train "$out/data" "${user[@]}" "${TRAIN[@]}" "${objective[@]}" "${device[@]}" \
  --save-dir "$out/$NAME" "${epochs[@]}" --log-format simple --log-interval 50 \
  --tensorboard-logdir "$out/$NAME/tensorboard" "$@" 2>&1 | tee -a "$out/$NAME.train.log"
checkpoint=$out/$NAME/checkpoint_best.pt
if [ "$AVERAGE" != 0 ]; then
  checkpoint=$out/$NAME/checkpoint_average.pt
  # shellcheck disable=SC2012  # the names of checkpoints have no special characters
  ls "$out/$NAME" | grep -E '^checkpoint[0-9]+\.pt$' | sort -V | tail -n "$AVERAGE" | sed "s|^|$out/$NAME/|" |
    xargs -d '\n' python3 -m fairseq_stochattn.pretrained.average "$checkpoint"
fi
$generate "$out/data" "${user[@]}" "${samples[@]}" "${GENERATE[@]}" "${device[@]}" \
  --path "$checkpoint" --remove-bpe --source-lang "$SOURCE" \
  --target-lang "$TARGET" > "$out/$NAME.test.txt" 2> "$out/$NAME.test.log"
for letter in D T; do  # tokenised text, then plain text
  column=$([ $letter = D ] && echo 3 || echo 2)
  grep "^$letter-" "$out/$NAME.test.txt" | sort -V | cut -f $column > "$out/$NAME.test.$letter.tok"
  sacremoses -l "$TARGET" -q detokenize < "$out/$NAME.test.$letter.tok" > "$out/$NAME.test.$letter"
done
echo "BLEU of tokenised text, as multi-bleu.perl computes it (the BABN paper's measure):"
fairseq-score --sys "$out/$NAME.test.D.tok" --ref "$out/$NAME.test.T.tok" | tail -n 1
echo "BLEU of plain text, comparable between papers:"
sacrebleu "$out/$NAME.test.T" --input "$out/$NAME.test.D" --width 2
