"""The meter ``noise`` of Bayesian attention: how random the sampled weights S are.

It is the coefficient of variation of S (standard deviation divided by mean), as sampled.
"""

from __future__ import annotations

from torch import Tensor

from ...core.cut_noise import sampled_variation


def measure_noise(k: Tensor, valid: Tensor, bounds: tuple[float, float]) -> tuple[Tensor, Tensor]:
    """The coefficient of variation of S, summed over valid pairs, and the number of these pairs.

    k is (B, H, T, S), valid (B, 1, T, S); u is uniform within ``bounds``. Only every eighth
    sentence and every fourth query are measured, which is accurate and costs little.
    """
    k, valid = k.detach()[::8, :, ::4], valid[::8, :, ::4]
    variation = sampled_variation(k, bounds).masked_fill(~valid, 0.0)
    return variation.sum(), valid.sum() * k.size(1)
