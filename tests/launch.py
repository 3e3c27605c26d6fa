"""Configuration files for fairseq-hydra-train: a template, and the section of each model."""

HYDRA = """
common:
  user_dir: {user_dir}
  cpu: true
  seed: 3
  log_format: json
  log_interval: 1
task:
  _name: {task}
  data: {data}
dataset:
  num_workers: 0
  max_tokens: 400
optimization:
  max_update: 4
  lr: [0.005]
optimizer:
  _name: adam
lr_scheduler:
  _name: fixed
criterion:
  _name: attention_losses
checkpoint:
  save_dir: {save}
  no_epoch_checkpoints: true
model:
{model}
"""

TRANSFORMER = """
  _name: transformer_deterministic_iwslt_de_en
  encoder_embed_dim: 32
  encoder_ffn_embed_dim: 32
  decoder_embed_dim: 32
  decoder_ffn_embed_dim: 32
  encoder_layers: 1
  share_all_embeddings: true
  attention_sites: cross
"""
LANGUAGE_MODEL = """
  _name: transformer_lm_deterministic
  decoder_embed_dim: 32
  decoder_input_dim: 32
  decoder_output_dim: 32
  decoder_layers: 1
"""
LSTM = """
  _name: lstm_deterministic
  encoder_embed_dim: 32
  decoder_embed_dim: 32
  decoder_out_embed_dim: 32
"""
ROBERTA = """
  _name: roberta_deterministic
  encoder_embed_dim: 32
  encoder_layers: 1
  encoder_attention_heads: 2
  max_positions: 512
"""
ELECTRA = """
  _name: electra_deterministic_small
  encoder_layers: 1
  max_positions: 32
"""
