# Domain generalization in the BABN paper (A.1.3), for RoBERTa-base: as shift_bert.sh, but batch size 32,
# learning rate 1e-5 and weight decay 0.1.
source "$here/configs/shift_bert.sh"
LR=1e-5 BATCH=32 FLAGS=(--weight-decay 0.1 --clip-norm 1)
STEPS=$((3 * ((EXAMPLES + BATCH - 1) / BATCH)))
