"""``--attention bernoulli``: random masks, a baseline of ASA (Wu et al. 2022, Table 3)."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.masking import RandomMasking, check_share
from ..core.method import LayerInfo, register_method
from ..core.schedule import ramp
from ..core.settings import Settings, setting


@dataclass(frozen=True)
class Bernoulli(Settings):
    """Settings of random masks with a constant probability."""

    share: float = setting(
        0.1, "probability that a (query, key) pair is masked (paper: 0.05 and 0.1)"
    )

    def check(self) -> None:
        check_share(self)


@register_method("bernoulli", settings=Bernoulli)
class BernoulliAttention(RandomMasking):
    """Masks (query, key) pairs at random with a constant probability."""

    def __init__(self, settings: Bernoulli, info: LayerInfo) -> None:
        super().__init__(settings, info)
        self.share = ramp(settings.share)
