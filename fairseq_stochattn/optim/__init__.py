"""Optimizers of ours: repulsive attention over any base, and torch's fused AdamW."""

from fairseq_stochattn.optim.fused_adamw import FusedAdamWConfig
from fairseq_stochattn.optim.repulsive import RepulsiveConfig

# By name, each with the flags of its own.
OPTIMIZERS = {"repulsive": RepulsiveConfig, "fused_adamw": FusedAdamWConfig}
