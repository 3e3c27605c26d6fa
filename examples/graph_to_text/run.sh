#!/usr/bin/env bash
# Prepares the data, trains, generates and scores:
#   METHOD=repulsive examples/graph_to_text/run.sh webnlg|agenda [OUT] [flags for fairseq-train …]
# METHOD is one of
#   plain           GraphWriter with plain attention (default)
#   repulsive       with the repulsive optimizer; RULE=directions (default), svgd (the paper's), spos
#   head_diversity  with the cosine of the heads' parameters as a regulariser
#   babn, bam       Bayesian attention; the mean of the attention generates
#   transformer     an encoder-decoder of about the same size, on the triples as text
# PRESET is the size of GraphWriter: small (default for webnlg) or agenda (500 dimensions, 6 layers,
# 4 heads; default for agenda). CORPUS=FOLDER reads the files of the corpus from there instead of
# downloading them. SUBSET is the split that is scored (default: test). Existing data is reused; an
# interrupted training continues.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
corpus=${1:?"which corpus? webnlg or agenda"}
out=${2:-runs/$corpus}
shift $(($# < 2 ? $# : 2))
METHOD=${METHOD:-plain} RULE=${RULE:-directions} SUBSET=${SUBSET:-test}
adam=(--optimizer fused_adamw --adam-betas '(0.9, 0.98)' --weight-decay 0.0001 --lr-scheduler inverse_sqrt)
case $corpus in
  webnlg)
    PRESET=${PRESET:-small}
    recipe=("${adam[@]}" --lr 3e-3 --warmup-updates 200 --dropout 0.3 --label-smoothing 0.1
      --batch-size 64 --max-epoch 8)
    search=(--beam 5 --max-len-a 0 --max-len-b 100) ;;
  agenda)
    # SGD with warm restarts: from 0.25 to 0.05 in five epochs of 1,210 updates, 15 epochs in all.
    PRESET=${PRESET:-agenda}
    recipe=(--optimizer sgd --momentum 0.9 --lr-scheduler cosine --lr 0.25 --min-lr 0.05
      --lr-period-updates 6050 --lr-shrink 1 --label-smoothing 0 --batch-size 32 --max-epoch 15)
    search=(--beam 4 --max-len-a 0 --max-len-b 430) ;;
  *) echo "unknown corpus $corpus: webnlg or agenda" >&2; exit 1 ;;
esac
task=(--task graph_to_text)
method=(--arch "graph_writer_deterministic_$PRESET" --criterion label_smoothed_cross_entropy)
case $METHOD in
  plain) ;;
  # Comes after the optimizer of the recipe and overrides it; the base keeps its flags.
  repulsive) recipe+=(--optimizer repulsive --repulsive-base "${recipe[1]}" --repulsive-rule "$RULE") ;;
  head_diversity) method+=(--criterion head_diversity) ;;
  babn | bam) method=(--arch "graph_writer_${METHOD}_$PRESET" --criterion elbo) ;;
  transformer)
    width=$([ "$PRESET" = small ] && echo 128 || echo 500)
    layers=$([ "$PRESET" = small ] && echo 3 || echo 6)
    task=(--task translation --source-lang graph --target-lang text)
    method=(--arch transformer_deterministic --criterion label_smoothed_cross_entropy
      --encoder-embed-dim "$width" --encoder-ffn-embed-dim $((2 * width)) --encoder-layers "$layers"
      --decoder-layers "$layers" --encoder-attention-heads 4 --decoder-attention-heads 4) ;;
  *) echo "METHOD=$METHOD is unknown: the comment at the top of $0 lists the methods" >&2; exit 1 ;;
esac
user=(--user-dir "$root/fairseq_stochattn")
device=(); python3 -c 'import torch, sys; sys.exit(torch.cuda.is_available())' && device=(--cpu)

mkdir -p "$out"
python3 "$root/data-prep/prepare_$corpus.py" --out "$out/data" ${CORPUS:+--from "$CORPUS"}
fairseq-train "$out/data" "${user[@]}" "${task[@]}" "${method[@]}" "${recipe[@]}" "${device[@]}" \
  --clip-norm 1 --best-checkpoint-metric nll_loss --no-epoch-checkpoints --save-dir "$out/$METHOD" \
  --log-format simple --log-interval 50 "$@" 2>&1 | tee -a "$out/$METHOD.train.log"
fairseq-generate "$out/data" "${user[@]}" "${task[@]}" "${search[@]}" "${device[@]}" --batch-size 64 \
  --path "$out/$METHOD/checkpoint_best.pt" --gen-subset "$SUBSET" \
  > "$out/$METHOD.$SUBSET.txt" 2> "$out/$METHOD.$SUBSET.log"
python3 -m fairseq_stochattn.commands.score_text "$out/data" --generated "$out/$METHOD.$SUBSET.txt" \
  --gen-subset "$SUBSET" --output "$out/$METHOD.$SUBSET.text" --json "$out/$METHOD.$SUBSET.json"
