"""Tells which parameters of a fairseq Transformer are particles of repulsive attention."""


def is_head(name: str) -> bool:
    """Whether the parameter belongs to a Q, K or V projection."""
    return any(f"attn.{kind}_proj" in name for kind in "qkv")
