# easy-VQA on a CPU: two layers of width 64.
PRESET=${PRESET:-tiny}
settings=(
  --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 1 --batch-size 64
  --lr 1e-3 --lr-scheduler inverse_sqrt --warmup-updates 200 --max-epoch 2
)
