# The settings for ALBERT-base in Table 6 of the BABN paper and Table 7 of the alignment paper.
case $VERSION in
  1.1) LR=5e-5 BATCH=48 STEPS=3649 WARMUP=365 LENGTH=384 ;;
  2.0) LR=3e-5 BATCH=48 STEPS=8144 WARMUP=814 LENGTH=512 ;;
esac
FLAGS=(--max-positions 512 --dropout 0 --attention-dropout 0 --pooler-dropout 0.1)
