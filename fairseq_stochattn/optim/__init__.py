"""Optimizers for fairseq: repulsive attention around any other optimizer, torch's fused AdamW."""

from .fused_adamw import FusedAdamWConfig
from .repulsive import RepulsiveConfig

# Name → the flags of the optimizer itself, without those of a wrapped one.
OPTIMIZERS = {"repulsive": RepulsiveConfig, "fused_adamw": FusedAdamWConfig}
