# IWSLT14 German→English: the LSTM of the BABN paper (App. A; BLEU there: 32.77 plain, 33.81 BAM,
# 34.23 BABN, of tokenised text, which run.sh prints, too). As in the paper: additive
# attention, 14k joint BPE with separate vocabularies, sentences of at most 125 tokens, six sentences
# per batch, beam 10. Plain fairseq has no additive attention: METHOD=plain trains lstm_deterministic.
SOURCE=de TARGET=en
PREPARE=(prepare_iwslt14.py --size 14000 --max-tokens 125 --separate-dictionaries)
TRAIN=(
  --arch "$(infix=${infix:-_deterministic}; arch lstm iwslt_de_en)"
  --optimizer adam --lr 3e-4 --clip-norm 5.0 --lr-scheduler reduce_lr_on_plateau --lr-shrink 0.5
  --label-smoothing 0 --batch-size 6 --max-epoch 30
)
ELBO=(--kl-anneal-updates 20000)
GENERATE=(--beam 10 --lenpen 1 --batch-size 64)
