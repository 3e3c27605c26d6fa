# The tasks of the AttendOut paper with BERT-base or RoBERTa-base, three epochs as in its Figure 4. The
# other settings are in its appendix, which is not public: learning rate and batch size are the usual ones
# of BERT.
LR=2e-5 BATCH=32 FLAGS=(--seed 1)
case $task in
  SST-2) STEPS=6315 ;;
  MRPC) STEPS=345 ;;
  QNLI) STEPS=9822 ;;
  MNLI) STEPS=36816 ;;
  CoLA) STEPS=804 ;;
  IMDb) STEPS=2346 ;;
  CoNLL-2003) STEPS=1317 ;;
  SWAG) BATCH=16 STEPS=13791 ;;
  *) echo "PRESET=attendout: the AttendOut paper has no experiments on $task" >&2; exit 1 ;;
esac
WARMUP=$((STEPS / 10))
