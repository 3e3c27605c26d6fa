#!/usr/bin/env bash
# Prepare the data, train, translate with samples of the attention, and score:
#   examples/babn/run.sh CONFIG [OUT] [flags for fairseq-train …]
# CONFIG is a file of configs/ without its ending. METHOD=plain trains fairseq's own model with the
# same settings, METHOD=bam the baseline. CORPUS=FOLDER takes the corpus' files from there instead of
# downloading them. What is there already is kept: data, and a training that was interrupted.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
config=${1:?"which configuration? one of: $(cd "$here/configs" && ls | sed 's/\.sh$//' | tr '\n' ' ')"}
out=${2:-runs/$config}
shift $(($# < 2 ? $# : 2))
export METHOD=${METHOD:-babn}

# transformer iwslt_de_en → transformer_babn_iwslt_de_en, or fairseq's own arch.
arch() { if [ "$METHOD" = plain ]; then echo "$1${2:+_$2}"; else echo "$1_$METHOD${2:+_$2}"; fi; }
source "$here/configs/$config.sh"

user=(--user-dir "$root/fairseq_stochattn")
if [ "$METHOD" = plain ]; then
  criterion=(--criterion label_smoothed_cross_entropy); generate=fairseq-generate; samples=()
else
  criterion=(--criterion elbo "${ELBO[@]}"); generate=stochattn-generate; samples=(--samples 20)
fi
device=(); python3 -c 'import torch, sys; sys.exit(torch.cuda.is_available())' && device=(--cpu)

mkdir -p "$out"
python3 "$root/data-prep/${PREPARE[0]}" --out "$out/data" ${CORPUS:+--from "$CORPUS"} "${PREPARE[@]:1}"
fairseq-train "$out/data" "${user[@]}" "${criterion[@]}" "${TRAIN[@]}" "${device[@]}" \
  --save-dir "$out/$METHOD" --no-epoch-checkpoints --log-format simple --log-interval 50 \
  --tensorboard-logdir "$out/$METHOD/tensorboard" "$@" 2>&1 | tee -a "$out/$METHOD.train.log"
$generate "$out/data" "${user[@]}" "${samples[@]}" "${GENERATE[@]}" "${device[@]}" \
  --path "$out/$METHOD/checkpoint_best.pt" --remove-bpe --tokenizer moses --source-lang "$SOURCE" \
  --target-lang "$TARGET" > "$out/$METHOD.test.txt" 2> "$out/$METHOD.test.log"
for letter in D T; do
  column=$([ $letter = D ] && echo 3 || echo 2)
  grep "^$letter-" "$out/$METHOD.test.txt" | sort -V | cut -f $column > "$out/$METHOD.test.$letter"
done
sacrebleu "$out/$METHOD.test.T" --input "$out/$METHOD.test.D" --width 2
