"""The meter of adversarial masks: do they change the predictions more than random masks do?

``divergence_ratio`` is the divergence between the predictions without and with the masks, divided
by the same divergence under random masks. Random masks hide the same share of pairs in each layer.
A ratio of 1 means that the adversary is no better than chance.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ...core.masking import MaskingMethod, MaskProbe
from ...core.meters import probing


class MaskMeters(NamedTuple):
    """Divergences of one batch, and the masked share of the valid pairs; scalars on the device."""

    masked: Tensor  # under the masks of the method
    random: Tensor  # under random masks
    masked_share: Tensor  # averaged over layers

    @property
    def ratio(self) -> Tensor:
        return divergence_ratio(self.masked, self.random)


def divergence_ratio(masked: Tensor | float, random: Tensor | float) -> Tensor:
    """masked/random, and 1 where neither changes the predictions."""
    masked, random = torch.as_tensor(masked).float(), torch.as_tensor(random).float()
    return torch.where((masked == 0) & (random == 0), torch.ones_like(masked), masked / random)


def mask_meters(model: nn.Module, divergence: Callable[[], Tensor]) -> MaskMeters | None:
    """Measure both divergences of one batch; None if the model has no masks.

    ``divergence`` runs the model on a paired batch and returns the divergence between both halves.
    It is called twice, in eval mode, that is, without dropout. The model is left as it was.
    """
    methods = [module for module in model.modules() if isinstance(module, MaskingMethod)]
    if not methods:
        return None
    try:
        for method in methods:
            method.probe = MaskProbe()
        with probing(model) as replay:
            masked = divergence()
            for method in methods:
                method.probe.random = True
            # Both passes must have the same random numbers apart from the masks, for example the
            # same replaced tokens of ELECTRA.
            replay()
            random = divergence()
        share = torch.stack([method.probe.share for method in methods]).mean()
    finally:
        for method in methods:
            method.probe = None
    return MaskMeters(masked.float(), random.float(), share)
