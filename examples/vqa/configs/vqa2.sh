# VQA v2 as in the appendices of the papers (BABN A.3, alignment B.3): four layers, Adam, batches of 64,
# 13 epochs. The learning rate rises by 2.5e-5 per epoch to 1e-4 and is divided by 5 every 2 epochs
# after the tenth; fairseq's "fixed" schedule takes one rate per epoch. Evaluated on the validation set.
PRESET=${PRESET:-papers}
test_set=valid
settings=(
  --optimizer adam --adam-betas '(0.9, 0.98)' --batch-size 64
  --lr '[2.5e-5,5e-5,7.5e-5,1e-4,1e-4,1e-4,1e-4,1e-4,1e-4,1e-4,2e-5,2e-5,4e-6]'
  --lr-scheduler fixed --max-epoch 13
)
