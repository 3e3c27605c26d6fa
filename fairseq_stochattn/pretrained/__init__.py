"""Pretrained encoders: import from Hugging Face folders; export to them and to plain fairseq."""
