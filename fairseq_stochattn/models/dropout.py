"""``--fast-dropout``: fairseq's dropout with masks that are drawn faster on a CPU."""

from __future__ import annotations

from fairseq.modules import FairseqDropout
from torch import Tensor, nn

from ..core.dropout import fast_dropout


class FastDropout(FairseqDropout):
    """``FairseqDropout`` with another stream of random numbers."""

    def forward(self, x: Tensor, inplace: bool = False) -> Tensor:
        if self.p > 0 and (self.training or self.apply_during_inference):
            return fast_dropout(x, self.p)
        return x


def use_fast_dropout(model: nn.Module) -> None:
    """Convert all of fairseq's dropout modules in ``model``, in place."""
    for module in model.modules():
        if type(module) is FairseqDropout:
            module.__class__ = FastDropout
