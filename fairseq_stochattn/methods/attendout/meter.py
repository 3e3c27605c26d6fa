"""The meter of AttendOut: does the generator G drop the (query, key) pairs that matter?

The harm of a pair is the increase of a sentence's loss when the pair is dropped. Single pairs
change the loss too little, so random groups of pairs are dropped. If the harms of pairs add up and
all groups of a sentence have the same size, the correlation between the harm of a group and the sum
of G's probabilities over it is that between the harm and the probability of a single pair.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ...core.meters import probing
from ...uncertainty.sampling import switched
from .attention import AttendOutAttention
from .generator import Actions, DropoutGenerator

PROBES = 64  # forward passes, each with one random group per sentence
GROUP_SHARE = 0.1  # share of a sentence's pairs that a group drops, over all layers
_TINY = 1e-30


def random_groups(valid: Tensor, share: float) -> Tensor:
    """Choose a random group of the valid pairs of each sentence; (n, B, T, T), as ``valid``.

    The size of the group is ``share`` times the number of valid pairs of the sentence, rounded up.
    """
    rows = valid.transpose(0, 1).flatten(1)  # (B, n·T·T)
    size = (rows.sum(dim=1, keepdim=True) * share).ceil()
    order = torch.rand(rows.shape, device=valid.device).masked_fill(~rows, 2.0)
    rank = order.argsort(dim=1).argsort(dim=1)
    group = (rank < size) & rows
    return group.unflatten(1, (valid.size(0), *valid.shape[2:])).transpose(0, 1)


def correlation(x: Tensor, y: Tensor) -> Tensor:
    """The correlation of x and y (probes, B) within sentences, pooled over them, a scalar.

    The mean of each sentence is subtracted, so that differences between sentences do not count. The
    result is 0 if x or y does not vary.
    """
    x, y = (values.double() - values.double().mean(dim=0) for values in (x, y))
    scale = (x.square().sum() * y.square().sum()).clamp(min=_TINY).sqrt()
    return ((x * y).sum() / scale).float()


class GroupProbe:
    """Drops random groups in place of G's actions, and adds up G's probabilities over them."""

    def __init__(self, share: float) -> None:
        self.share = share
        self.total: Tensor | float = 0.0  # (B,)

    def act(self, generator: DropoutGenerator, tokens: Tensor) -> Actions:
        """Drop a random group in each sentence of ``tokens`` (B, T), in place of G's own choice."""
        with torch.autocast(tokens.device.type, enabled=False):
            p = generator(tokens).sigmoid()  # (n, B, T, T)
        valid = generator.valid_pairs(tokens)
        drop = random_groups(valid.expand_as(p), self.share)
        self.total = self.total + (p.double() * drop).sum(dim=(0, 2, 3))
        return Actions(drop, (p * valid).sum(dim=(1, 2, 3)), valid.sum())


def harm_correlation(
    model: nn.Module,
    loss: Callable[[], Tensor],
    probes: int = PROBES,
    share: float = GROUP_SHARE,
) -> Tensor | None:
    """The correlation between G's probabilities and the harm of dropping a pair, a scalar.

    ``loss`` runs the model on one batch and returns the loss of each sentence, (B,). It is called
    ``probes`` times, in eval mode. Returns None if the model has no generator. The model is left as
    it was.
    """
    generators = [module for module in model.modules() if isinstance(module, DropoutGenerator)]
    if not generators:
        return None
    methods = [module for module in model.modules() if isinstance(module, AttendOutAttention)]
    probabilities, losses = [], []
    try:
        with probing(model), switched(methods, "sample_in_eval", True):
            for _ in range(probes):
                for generator in generators:
                    generator.probe = GroupProbe(share)
                losses.append(loss())
                probabilities.append(sum(generator.probe.total for generator in generators))
    finally:
        for generator in generators:
            generator.probe = None
    return correlation(torch.stack(probabilities), torch.stack(losses))
