#!/usr/bin/env bash
# Train and test a graph attention network: graph.sh GRAPH OUT [flags of fairseq-train]
# GRAPH is cora, citeseer or pubmed. CORPUS: folder with Planetoid's files (default: download them).
# ALIGNMENT: gan, ot, ct (default) or none. SEED: default 1.
set -euo pipefail
graph=$1 out=$2
shift 2
root=$(cd "$(dirname "$0")/../.." && pwd)
device=$(python -c 'import torch; print("" if torch.cuda.is_available() else "--cpu")')
stochattn-prepare planetoid --graph "$graph" --out "$out/data" ${CORPUS:+--from "$CORPUS"}
method=(--arch gat_alignment --criterion alignment --alignment "${ALIGNMENT:-ct}")
[ "${ALIGNMENT:-ct}" = none ] && method=(--arch gat_deterministic --criterion node_classification)
fairseq-train "$out/data" --user-dir "$root/fairseq_stochattn" --task node_classification \
    "${method[@]}" --l2 0.0005 --optimizer adam --adam-betas '(0.9, 0.999)' --lr 0.005 \
    --batch-size 1 --max-epoch 2000 --patience 100 --best-checkpoint-metric loss \
    --no-epoch-checkpoints --no-last-checkpoints --seed "${SEED:-1}" --save-dir "$out/model" \
    --log-format simple --no-progress-bar $device "$@"
stochattn-evaluate "$out/data" --path "$out/model/checkpoint_best.pt" --gen-subset test $device
