# Table 5 of the ASA paper, for BERT-base and RoBERTa-base. Differences: PAWS here is PAWS-Wiki, in the
# paper PAWS-QQP; texts are cut at 64 or 128 tokens only with LENGTH=64 or LENGTH=128. RTE, MRPC and CoLA, which the paper does not have,
# use the settings of STS-B. The paper's constant weight of the penalty, τ, is 0.3, and 0.5 for WNUT-17 and
# DREAM: set TAU to use it; by default the adversary has a budget (--asa-budget).
FLAGS=() WARM=6
case $task in
  SST-2) LR=2e-5 BATCH=32 EPOCHS=3 EXAMPLES=67349 ;;
  MNLI) LR=3e-5 BATCH=32 EPOCHS=3 EXAMPLES=392702 ;;
  QNLI) LR=2e-5 BATCH=32 EPOCHS=3 EXAMPLES=104743 ;;
  QQP) LR=5e-5 BATCH=32 EPOCHS=3 EXAMPLES=363846 ;;
  STS-B) LR=5e-5 BATCH=16 EPOCHS=3 EXAMPLES=5749 ;;
  RTE) LR=5e-5 BATCH=16 EPOCHS=3 EXAMPLES=2490 ;;
  MRPC) LR=5e-5 BATCH=16 EPOCHS=3 EXAMPLES=3668 ;;
  CoLA) LR=5e-5 BATCH=16 EPOCHS=3 EXAMPLES=8551 ;;
  WNUT-17) LR=5e-5 BATCH=16 EPOCHS=5 EXAMPLES=3394 WARM=10 ;;
  DREAM) LR=3e-5 BATCH=16 EPOCHS=8 EXAMPLES=6116 WARM=10 ;;
  ANLI) LR=3e-5 BATCH=32 EPOCHS=3 EXAMPLES=162865 ;;
  PAWS) LR=5e-5 BATCH=16 EPOCHS=3 EXAMPLES=49401 ;;
  HellaSWAG) LR=2e-5 BATCH=32 EPOCHS=3 EXAMPLES=39905 WARM=10 ;;
esac
STEPS=$((EPOCHS * ((EXAMPLES + BATCH - 1) / BATCH))) WARMUP=$((STEPS * WARM / 100))
