# Domain generalization in the BABN paper (A.1.3), for BERT-base: three epochs, batch size 16, learning rate
# 2e-5, no weight decay. The paper names no schedule: here the learning rate falls linearly.
LR=2e-5 BATCH=16 FLAGS=(--weight-decay 0 --clip-norm 1)
case $task in
  SNLI) EXAMPLES=549367 ;;
  QQP) EXAMPLES=363846 ;;
  SWAG) EXAMPLES=73546 ;;
  CoLA) EXAMPLES=8551 ;;  # not in the paper
  *) echo "PRESET=shift_bert: the paper has no settings for $task" >&2; exit 1 ;;
esac
STEPS=$((3 * ((EXAMPLES + BATCH - 1) / BATCH))) WARMUP=0
