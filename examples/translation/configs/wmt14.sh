# WMT14 English→German: base Transformer (27.3 BLEU in the literature), for eight GPUs.
SOURCE=en TARGET=de
PREPARE=(prepare_wmt14.py --size 32000)
TRAIN=(
  --arch "$(arch transformer wmt_en_de)" --share-all-embeddings --dropout 0.1
  --optimizer adam --adam-betas "(0.9, 0.98)" --clip-norm 0.0 --lr 7e-4
  --lr-scheduler inverse_sqrt --warmup-updates 4000 --warmup-init-lr 1e-7 --label-smoothing 0.1
  --max-tokens 4096 --max-update 100000 --fp16
)
# fp16 flattens all parameters into one vector, in which the heads cannot be found.
[ "$METHOD" != repulsive ] || TRAIN+=(--fp16-no-flatten-grads)
ELBO=(--kl-anneal-updates 10000)
GENERATE=(--beam 4 --lenpen 0.6 --batch-size 64)
