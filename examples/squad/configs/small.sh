# A small encoder (MiniLM, 6 layers of 384) on part of SQuAD on one core.
LR=2e-4 BATCH=8 STEPS=${STEPS:-500} LENGTH=384 FLAGS=(--seed 1)
WARMUP=$((STEPS / 10))
