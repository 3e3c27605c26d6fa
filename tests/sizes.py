"""Flags of the tiny models that the tests train with fairseq's commands."""

TRANSFORMER = (
    *("--encoder-embed-dim", 32, "--encoder-ffn-embed-dim", 32, "--encoder-attention-heads", 2),
    *("--decoder-embed-dim", 32, "--decoder-ffn-embed-dim", 32, "--decoder-attention-heads", 2),
    *("--encoder-layers", 2, "--decoder-layers", 2, "--share-all-embeddings"),
)
TRANSFORMER_LM = (
    *("--task", "language_modeling", "--tokens-per-sample", 16, "--sample-break-mode", "eos"),
    *("--decoder-embed-dim", 32, "--decoder-input-dim", 32, "--decoder-output-dim", 32),
    *("--decoder-ffn-embed-dim", 32, "--decoder-attention-heads", 2, "--decoder-layers", 2),
)
LSTM = (
    *("--encoder-embed-dim", 32, "--decoder-embed-dim", 32, "--decoder-out-embed-dim", 32),
    *("--encoder-hidden-size", 32, "--decoder-hidden-size", 32),
)
ROBERTA = (
    *("--encoder-embed-dim", 32, "--encoder-ffn-embed-dim", 32, "--encoder-attention-heads", 2),
    *("--encoder-layers", 2),
)
SELF_ATTENTIVE = (
    *("--encoder-embed-dim", 16, "--encoder-hidden-size", 12, "--encoder-attention-heads", 4),
    *("--attention-hidden-size", 10, "--mlp-hidden-size", 16, "--dropout", 0),
)
MASKED_LM = (
    *("--task", "masked_lm", "--criterion", "masked_lm", "--tokens-per-sample", 16),
    *("--sample-break-mode", "none"),
)
ELECTRA = (*ROBERTA, "--embedding-dim", 16, "--generator-size", 0.5)
ALBERT = (*ROBERTA, "--embedding-dim", 16)
REPLACED_TOKENS = (*("--task", "electra", "--criterion", "electra", "--tokens-per-sample", 16),)
CLASSIFICATION = (
    *("--task", "sentence_prediction", "--criterion", "sentence_prediction", "--num-classes", 5),
    *("--max-positions", 32),
)
REGRESSION = (
    *("--task", "sentence_prediction", "--criterion", "sentence_prediction", "--num-classes", 1),
    *("--max-positions", 32, "--regression-target"),
)
TAGGING = (
    *("--task", "token_tagging", "--criterion", "token_tagging"),
    *("--init-token", 0, "--max-positions", 64),
)
CHOICE = (
    *("--task", "sentence_ranking", "--criterion", "sentence_ranking", "--num-classes", 4),
    *("--init-token", 0, "--separator-token", 2, "--max-positions", 64),
)
