"""``--attention scheduled``: random masks whose probability follows a schedule.

It is a baseline of ASA (Wu et al. 2022, Table 3).
"""

from __future__ import annotations

from dataclasses import dataclass

from ..core.masking import RandomMasking, schedule_of_layer
from ..core.method import LayerInfo, register_method
from ..core.settings import Settings, setting


@dataclass(frozen=True)
class Scheduled(Settings):
    """Settings of random masks whose probability changes over updates."""

    shares: str = setting(
        "0:0.2,2000:0.1",
        "probability that a (query, key) pair is masked, as a list of update:probability points, "
        "linear in between (for example the masked_share that a run of asa logged); or one such "
        "list per layer, joined by /",
    )


@register_method("scheduled", settings=Scheduled)
class ScheduledAttention(RandomMasking):
    """Masks (query, key) pairs at random with a probability that follows a schedule."""

    def __init__(self, settings: Scheduled, info: LayerInfo) -> None:
        super().__init__(settings, info)
        self.share = schedule_of_layer(settings, "shares", info)
