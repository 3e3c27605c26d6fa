# The settings for ALBERT-base in Table 6 of the BABN paper and Table 7 of the alignment paper.
FLAGS=(--max-positions 512)
case $task in
  CoLA) LR=1e-5 BATCH=16 STEPS=5336 WARMUP=320 DROPOUT=0 ;;
  STS-B) LR=2e-5 BATCH=16 STEPS=3598 WARMUP=214 DROPOUT=0 ;;
  SST-2) LR=1e-5 BATCH=32 STEPS=20935 WARMUP=1256 DROPOUT=0 ;;
  MNLI) LR=3e-5 BATCH=128 STEPS=10000 WARMUP=1000 DROPOUT=0 ;;
  QNLI) LR=1e-5 BATCH=32 STEPS=33112 WARMUP=1986 DROPOUT=0 ;;
  QQP) LR=5e-5 BATCH=128 STEPS=14000 WARMUP=1000 DROPOUT=0.1 ;;
  RTE) LR=3e-5 BATCH=32 STEPS=800 WARMUP=200 DROPOUT=0.1 ;;
  MRPC) LR=2e-5 BATCH=32 STEPS=800 WARMUP=200 DROPOUT=0 ;;
  *) echo "PRESET=albert: the papers have no settings for $task" >&2; exit 1 ;;
esac
FLAGS+=(--dropout $DROPOUT --attention-dropout $DROPOUT)
