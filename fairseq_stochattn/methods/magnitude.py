"""``--attention magnitude``: masks the (query, key) pairs with the largest attention weights.

It is a baseline of ASA (Wu et al. 2022, Table 3).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..core.context import AttentionContext
from ..core.masking import MaskingMethod, check_share
from ..core.method import register_method
from ..core.settings import Settings, setting


@dataclass(frozen=True)
class Magnitude(Settings):
    """Settings of masks on the largest attention weights."""

    share: float = setting(
        0.1, "share of a sentence's (query, key) pairs to mask: those with the largest weights"
    )

    def check(self) -> None:
        check_share(self)


@register_method("magnitude", settings=Magnitude)
class MagnitudeAttention(MaskingMethod):
    """Masks the (query, key) pairs with the largest weights, averaged over the heads."""

    settings: Magnitude

    def score(self, logits: Tensor, context: AttentionContext, valid: Tensor) -> Tensor:
        """The mean weight minus a threshold per sentence, (B, 1, T, S).

        The threshold is the largest weight that is not masked.
        """
        weights = context.mask(logits.detach()).softmax(dim=-1).mean(dim=1, keepdim=True)
        weights = weights.masked_fill(~valid, -1.0)
        ordered = weights.flatten(1).sort(dim=1, descending=True).values  # (B, T·S)
        pairs = valid.flatten(1).sum(dim=1, keepdim=True)
        number = (self.settings.share * pairs).floor().long()
        return weights - ordered.gather(1, number)[..., None, None]
