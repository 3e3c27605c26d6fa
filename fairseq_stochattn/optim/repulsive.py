"""``--optimizer repulsive``: repulsive attention (An et al. 2020) around any fairseq optimizer.

Example: ``--optimizer repulsive --repulsive-base adam``, with any arch that has attention heads.
The rule ``directions`` turns the heads away from each other before the base optimizer takes its
step. The rules of the paper (Algorithm 1) replace the gradients of the heads by −εφ. The
mathematics is in methods/repulsive. All other parameters and gradients stay as they are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from fairseq.optim import FairseqOptimizer, register_optimizer
from torch import Tensor, nn

from ..compat import UsageError, exit_on_bad_input
from ..core.meters import MeterSettings
from ..methods.repulsive.meter import head_cosine, layer_cosines
from ..methods.repulsive.optimizer import (
    learning_rates,
    redirect_gradients,
    small_gradients,
    systems_for,
    turn_decoupled,
)
from ..methods.repulsive.settings import RepulsiveSettings
from ..methods.repulsive.systems import System
from ..models.config import join_configs
from ..models.method_flags import settings_flags, settings_from
from .base_optimizers import base_class, base_config, with_base_flags

logger = logging.getLogger(__name__)


@dataclass
class BaseConfig(FairseqDataclass):
    """The flag that names the wrapped optimizer."""

    repulsive_base: str = field(
        default="adam",
        metadata={"help": "wrapped optimizer, which takes the step; its flags keep their names"},
    )


RepulsiveConfig = join_configs(
    "RepulsiveConfig", BaseConfig, settings_flags(RepulsiveSettings), settings_flags(MeterSettings)
)


@register_optimizer("repulsive", dataclass=with_base_flags("RepulsiveFlags", RepulsiveConfig))
class Repulsive(FairseqOptimizer):
    """Wraps a base optimizer and replaces the gradients of the heads before every step."""

    def __init__(self, config: Any, base_config: Any, params: Any) -> None:
        super().__init__(base_config, params)
        self.settings = settings_from(RepulsiveSettings, config)
        self.meters = settings_from(MeterSettings, config)
        self.systems: list[System] | None = None
        self._warned = False

    @classmethod
    def build_optimizer(cls, config: Any, params: Any) -> Repulsive:
        """Return an instance of a new class that derives from this class and from the base.

        In checkpoints it has the state and the class name of the base. So a run of the base alone
        can be continued with repulsion, and the other way round.
        """
        settings_from(RepulsiveSettings, config)  # refuses bad values before anything is built
        base = base_class(config.repulsive_base)
        bound = type(base.__name__, (cls, base), {})
        try:
            return bound(config, base_config(config.repulsive_base, config), params)
        except ImportError as error:
            raise UsageError(f"--repulsive-base {config.repulsive_base}: {error}") from None

    @classmethod
    def refuse_impossible(cls, config: Any) -> None:
        """Exit if a flag of the run hides the individual parameters from the optimizer.

        ``config`` is the configuration of the whole run.
        """
        common = config.common
        if config.distributed_training.ddp_backend == "fully_sharded":
            raise UsageError(
                "--ddp-backend fully_sharded hides the heads from --optimizer repulsive; "
                "use --ddp-backend pytorch_ddp or legacy_ddp"
            )
        if common.fp16 and not (common.fp16_no_flatten_grads or common.memory_efficient_fp16):
            raise UsageError(
                "--fp16 flattens the parameters, which hides the heads from --optimizer repulsive; "
                "add --fp16-no-flatten-grads (or use --memory-efficient-fp16 or --amp)"
            )

    def attach(
        self,
        model: nn.Module,
        held: Mapping[nn.Parameter, nn.Parameter],
        seed: int,
        num_updates: Callable[[], int],
        unscale: Callable[[], float | Tensor],
    ) -> None:
        """Find the heads of the model; called once by the Trainer.

        ``held`` maps every parameter of the model to the one that this optimizer updates: itself or
        its fp32 copy. ``unscale`` removes the loss scale from the gradients, and returns the factor
        by which fairseq's fp16 wrapper will still multiply the norm of the gradients.
        """
        with exit_on_bad_input():
            self.systems = systems_for(model, held, self.settings, prefix="--repulsive-")
        self.seed, self.num_updates, self.unscale = seed, num_updates, unscale

    def clip_grad_norm(self, max_norm: float, aggregate_norm_fn: Any = None) -> Tensor:
        """Replace the gradients of the heads, then clip; returns the norm before clipping.

        fairseq calls this once per update, after accumulation and reduction over ranks, even if
        nothing is clipped.
        """
        factor: float | Tensor = 1.0
        if self.systems is not None:
            factor = self.unscale()
            redirect_gradients(self.systems, self.settings, self.seed, self.num_updates())
            self._warn_once()
            self._log_meters()
        return super().clip_grad_norm(max_norm, aggregate_norm_fn) / factor

    def _warn_once(self) -> None:
        """Log a warning, once, if the gradients of the heads are near the base optimizer's eps."""
        if not self._warned:
            eps = self.param_groups[0].get("eps")
            text = small_gradients(self.systems, self.settings, eps, self.num_updates())
            if text is not None:
                logger.warning(text)
                self._warned = True

    def _log_meters(self) -> None:
        """Log the cosine of the heads; not left to the criterion, which may be fairseq's own."""
        if self.meters.due(self.num_updates()):
            cosine = head_cosine([(system.num_heads, system.parts) for system in self.systems])
            if cosine is not None:
                metrics.log_scalar("head_cosine", cosine, round=4)
            systems = [(x.layer_name, x.num_heads, x.parts) for x in self.systems]
            for layer, value in layer_cosines(systems).items():
                metrics.log_scalar(f"head_cosine_{layer}", value, priority=200, round=4)

    def step(self, *args: Any, **kwargs: Any) -> None:
        if self.systems is None:
            raise UsageError(
                "--optimizer repulsive has no access to the model: it works only within fairseq's "
                "Trainer, and not as a part of --optimizer composite"
            )
        rate = learning_rates(self.param_groups)
        turn_decoupled(self.systems, self.settings, self.num_updates(), rate)
        super().step(*args, **kwargs)

    @property
    def supports_flat_params(self) -> bool:
        """False: in one flat vector of all parameters, the heads cannot be found."""
        return False
