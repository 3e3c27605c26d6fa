# A small encoder (MiniLM, 6 layers of 384) in minutes to an hour on one core.
LR=1e-4 BATCH=16 FLAGS=(--seed 1)
case $task in
  MRPC) STEPS=690 ;;  # 3 epochs
  RTE) LR=5e-5 STEPS=624 ;;  # 4 epochs
  CoLA) STEPS=1070 ;;  # 2 epochs
  STS-B) STEPS=1080 ;;
  CLINC150) STEPS=1405 ;;  # 1.5 epochs
  *) STEPS=4000 ;;
esac
WARMUP=$((STEPS / 10))
