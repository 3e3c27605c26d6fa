"""What all methods share. Nothing here imports fairseq; most of it needs only torch."""
