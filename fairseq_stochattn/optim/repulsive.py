"""Repulsive attention (An et al. 2020): the heads of a projection as particles, over any optimizer.

``--optimizer repulsive --repulsive-base adam --repulsive-rule svgd``, with any arch that has heads.
Algorithm 1: the gradients of the heads become −εφ, those of all other parameters stay as they are,
and the base takes its step. φ is that of SVGD (Eq. 4), SPOS (Eq. 5) or SGLD (App. C.1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.optim import FairseqOptimizer, register_optimizer
from torch import Tensor, nn

from fairseq_stochattn.errors import UsageError, require_not_negative, require_positive
from fairseq_stochattn.optim.bases import base_class, base_config, with_base_flags
from fairseq_stochattn.optim.particles import RULES, Settings
from fairseq_stochattn.optim.systems import System, find_systems, redirect


@dataclass
class RepulsiveConfig(FairseqDataclass):
    repulsive_base: str = field(
        default="adam",
        metadata={"help": "the optimizer that takes the step; its flags keep their names"},
    )
    repulsive_rule: ChoiceEnum(list(RULES)) = field(
        default="svgd",
        metadata={"help": "svgd; spos, which adds noise to it; or sgld, noise without repulsion"},
    )
    repulsive_epsilon: float = field(
        default=0.1,
        metadata={
            "help": "stepsize ε: a head's gradient becomes −εφ. Adam divides a constant factor out "
            "again; under it ε tells how much the heads count in clipping and beside the noise"
        },
    )
    repulsive_weight: float = field(default=0.01, metadata={"help": "weight a of the repulsion"})
    repulsive_beta: float = field(
        default=1e10,
        metadata={
            "help": "spos, sgld: β. Noise of the standard deviation √(2ε/β) is added to −εφ, which "
            "is about ε/H times the gradient of the mean loss; the larger of them drowns the other"
        },
    )
    repulsive_projections: str = field(
        default="all",
        metadata={"help": "projections whose heads repel each other: all, or a list such as q,k,v"},
    )
    repulsive_sites: str = field(
        default="all",
        metadata={"help": "and where: all, or a list of encoder (self), decoder (self), cross"},
    )
    repulsive_layers: str = field(
        default="all", metadata={"help": "in which layers: all, first, last, or e.g. 0,2 (from 0)"}
    )
    repulsive_start: int = field(
        default=0, metadata={"help": "update at which the rule sets in; before, plain gradients"}
    )


@register_optimizer("repulsive", dataclass=with_base_flags("RepulsiveFlags", RepulsiveConfig))
class Repulsive(FairseqOptimizer):
    """Heads as particles that follow the gradient together and repel each other."""

    def __init__(self, config: Any, base_config: Any, params: Any) -> None:
        super().__init__(base_config, params)
        self.rule = RULES[str(config.repulsive_rule)]
        self.settings = Settings(
            config.repulsive_epsilon, config.repulsive_weight, config.repulsive_beta
        )
        self.start = config.repulsive_start
        self.where = (
            config.repulsive_sites,
            config.repulsive_layers,
            config.repulsive_projections,
        )
        self.systems: list[System] | None = None

    @classmethod
    def build_optimizer(cls, config: Any, params: Any) -> Repulsive:
        require_positive(config, "repulsive_epsilon", "repulsive_beta")
        require_not_negative(config, "repulsive_weight", "repulsive_start")
        base = base_class(config.repulsive_base)
        # The base itself with other gradients: its state, and its name in a checkpoint's history,
        # so that a run with the base alone can go on with repulsion, and back.
        bound = type(base.__name__, (cls, base), {})
        try:
            return bound(config, base_config(config.repulsive_base, config), params)
        except ImportError as error:
            raise UsageError(f"--repulsive-base {config.repulsive_base}: {error}") from None

    @classmethod
    def refuse_impossible(cls, config: Any) -> None:
        """What hides the heads from an optimizer; ``config`` is that of the whole run."""
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
        """Meet the model, whose parameters are ``held`` here as they are or as fp32 copies.

        ``unscale`` undoes a loss scale in the gradients, and returns by how much the norm of the
        gradients will be multiplied all the same.
        """
        self.systems = find_systems(model, held, *self.where)
        self.seed, self.num_updates, self.unscale = seed, num_updates, unscale

    def clip_grad_norm(self, max_norm: float, aggregate_norm_fn: Any = None) -> Tensor:
        """Called once an update, when gradients are accumulated and reduced, clipping or not."""
        factor: float | Tensor = 1.0
        if self.systems is not None:
            factor, update = self.unscale(), self.num_updates()
            if update >= self.start:
                redirect(self.systems, self.rule, self.settings, noise_seed(self.seed, update))
        return super().clip_grad_norm(max_norm, aggregate_norm_fn) / factor

    def step(self, *args: Any, **kwargs: Any) -> None:
        if self.systems is None:
            raise UsageError(
                "--optimizer repulsive has not met the model: it works within fairseq's Trainer, "
                "and not as a part of --optimizer composite"
            )
        super().step(*args, **kwargs)

    @property
    def supports_flat_params(self) -> bool:
        return False


def noise_seed(seed: int, update: int) -> int:
    """One number from both, of 32 bits: torch's generator ignores the others."""
    return int(np.random.SeedSequence((seed, update)).generate_state(1)[0])
