"""Pretrained encoders: Hugging Face's folders into fairseq checkpoints, and back."""
