# Multi30k German→English: a small Transformer, about 20 minutes per run on one core.
SOURCE=de TARGET=en
PREPARE=(prepare_multi30k.py --size 8000)
TRAIN=(
  --arch "$(arch transformer)"
  --encoder-layers 3 --decoder-layers 3 --encoder-embed-dim 128 --decoder-embed-dim 128
  --encoder-ffn-embed-dim 256 --decoder-ffn-embed-dim 256
  --encoder-attention-heads 4 --decoder-attention-heads 4 --share-all-embeddings --dropout 0.2
  --optimizer adam --adam-betas "(0.9, 0.98)" --lr 2e-3 --lr-scheduler inverse_sqrt
  --warmup-updates 500 --weight-decay 0.0001 --label-smoothing 0.1
  --max-tokens 2000 --max-epoch 6 --num-workers 0
)
ELBO=(--kl-anneal-updates 300)
GENERATE=(--beam 5 --batch-size 100)
