"""Steps that the preparation of every corpus is made of; each is usable alone."""
