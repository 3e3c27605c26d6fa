# IWSLT14 German→English: fairseq's small Transformer and its recipe (34.4 BLEU in the literature).
SOURCE=de TARGET=en
PREPARE=(prepare_iwslt14.py)
TRAIN=(
  --arch "$(arch transformer iwslt_de_en)" --share-decoder-input-output-embed --dropout 0.3
  --optimizer adam --adam-betas "(0.9, 0.98)" --clip-norm 0.0 --lr 5e-4
  --lr-scheduler inverse_sqrt --warmup-updates 4000 --weight-decay 0.0001 --label-smoothing 0.1
  --max-tokens 4096 --max-epoch 50
)
ELBO=(--kl-anneal-updates 4000)
GENERATE=(--beam 5 --batch-size 128)
