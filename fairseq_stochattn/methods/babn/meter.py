"""The meter ``noise`` of Bayesian attention: how random the sampled weights S are.

It is the coefficient of variation (standard deviation divided by mean) of the samples of S.
"""

from __future__ import annotations

from torch import Tensor

from ...core.cut_noise import sampled_variation


def measure_noise(k: Tensor, valid: Tensor, bounds: tuple[float, float]) -> tuple[Tensor, Tensor]:
    """The coefficient of variation of S, summed over valid pairs, and the number of these pairs.

    k, the Weibull shape, is (B, H, T, S); valid is (B, 1, T, S). ``bounds`` are those of the
    uniform noise. Only every eighth sentence and every fourth query are measured, to save time.
    """
    k, valid = k.detach()[::8, :, ::4], valid[::8, :, ::4]
    variation = sampled_variation(k, bounds).masked_fill(~valid, 0.0)
    return variation.sum(), valid.sum() * k.size(1)
