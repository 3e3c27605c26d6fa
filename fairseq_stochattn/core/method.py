"""The method protocol, logits in and logits out, and the registry of methods.

A method sits between ``QKᵀ/√d`` and ``softmax`` in one attention layer. Shapes everywhere: logits
and weights (B, H, T, S); q (B, H, T, d); k (B, H, S, d).
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn

from .context import AttentionContext
from .errors import InputError
from .losses import HasLosses, NamedLoss, Reduction, current_collection
from .meters import meters_wanted
from .schedule import Schedule
from .selection import SITES
from .settings import Settings
from .torchscript import RefusesTorchScript

if TYPE_CHECKING:
    from .stack import AttentionStack

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LayerInfo:
    """The layer that a method is built for: its stack, its index and its sizes."""

    stack: AttentionStack
    layer: int
    num_heads: int
    head_dim: int
    query_dim: int
    key_dim: int

    @property
    def site(self) -> str:
        return self.stack.site

    @property
    def num_layers(self) -> int:
        return self.stack.num_layers


class AttentionMethod(HasLosses, nn.Module, ABC):
    """Base class of every method: ``forward(logits, context) -> logits`` in one layer.

    A subclass is registered with its settings and overrides ``forward``. Parameters that a whole
    stack shares are returned by ``build_shared``.
    """

    name: ClassVar[str]
    Settings: ClassVar[type[Settings]] = Settings
    sites: ClassVar[tuple[str, ...]] = SITES
    # At test time the model is plain attention with the same weights, so it can be exported.
    plain_at_test: ClassVar[bool] = False
    # Has a distribution over attention weights at test time, which can be sampled.
    samples_at_test: ClassVar[bool] = False
    # Keeps no state between layers and stores no loss: activation checkpointing may run it twice.
    stateless: ClassVar[bool] = False
    # Neither changes nor reads the logits: if all methods are passive, a fused kernel is used.
    passive: ClassVar[bool] = False
    # Needs the token ids behind the queries (``stack.tokens``).
    needs_tokens: ClassVar[bool] = False
    # Works in graph layers, which show no inputs of the projections and have no paired batches.
    on_graphs: ClassVar[bool] = True
    # Overrides ``observe``.
    observes: ClassVar[bool] = False
    # Must be the last method of a chain.
    must_be_last: ClassVar[bool] = False
    # The setting whose fairseq flag adds this method to any other, such as ``--alignment ct``.
    switch: ClassVar[str | None] = None
    # fairseq flags whose default differs in this method's own archs.
    arch_defaults: ClassVar[dict[str, Any]] = {}

    def __init__(self, settings: Settings, info: LayerInfo) -> None:
        super().__init__()
        self.settings = settings
        self.losses: dict[str, NamedLoss] = {}
        self.num_updates = 0
        self.sample_in_eval = False

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles carry no losses, which hold a graph."""
        return {**self.__dict__, "losses": {}}

    @classmethod
    def build_shared(cls, settings: Settings, stack: AttentionStack) -> nn.Module | None:
        """Parameters of the whole stack; available later as ``stack.shared[name]``."""
        return None

    @classmethod
    def is_plain_at_test(cls, settings: Settings) -> bool:
        """``plain_at_test``, where it depends on the settings."""
        return cls.plain_at_test

    @classmethod
    def drops_scores(cls, settings: Settings) -> bool:
        """Whether it replaces logits by a very low number, as dropout of scores does."""
        return False

    def observe(self, context: AttentionContext) -> None:
        """Called before any method changes the logits; may read queries and keys."""

    @abstractmethod
    def forward(self, logits: Tensor, context: AttentionContext) -> Tensor:
        """logits (B, H, T, S) → logits (B, H, T, S)."""

    def reweigh(self, weights: Tensor, context: AttentionContext) -> Tensor:
        """weights (B, H, T, S) after the softmax → weights, for what logits cannot express."""
        return weights

    @property
    def stochastic(self) -> bool:
        """Whether to sample: in training, and in eval on request; else the mean is used."""
        return self.training or self.sample_in_eval

    @property
    def losses_wanted(self) -> bool:
        """True in training, and in eval where somebody collects losses; never in generation."""
        return self.training or current_collection() is not None

    @property
    def meters_wanted(self) -> bool:
        """Whether to store meters (core/meters.py): in eval, and in training now and then."""
        return meters_wanted() and self.losses_wanted

    def add_loss(
        self,
        name: str,
        value: Tensor,
        weight: Schedule | float,
        reduction: Reduction = "sum",
        count: Tensor | None = None,
    ) -> None:
        """Store a loss of this batch; calls with the same name add up. See core/losses.py."""
        self._add(name, NamedLoss(value.float(), weight, reduction, count))

    def add_measure(self, name: str, value: Tensor, count: Tensor | None = None) -> None:
        """Store a number to log; with a count, the log shows the mean over all layers."""
        reduction = "layer_mean" if count is None else "mean"
        self._add(name, NamedLoss(value.float(), None, reduction, count))

    def _add(self, name: str, loss: NamedLoss) -> None:
        if name in self.losses:
            loss = self.losses[name].plus(loss)
        self.losses[name] = loss

    def set_num_updates(self, num_updates: int) -> None:
        """Called before every update; drives every schedule."""
        self.num_updates = num_updates

    def make_generation_fast_(
        self,
        name: str = "",
        retain_dropout: bool = False,
        retain_dropout_modules: list[str] | None = None,
        **unused: Any,
    ) -> None:
        """fairseq's ``--retain-dropout`` keeps the sampling on, for all methods or those named."""
        chosen = retain_dropout_modules is None or self.name in retain_dropout_modules
        self.sample_in_eval = retain_dropout and chosen


class MethodDict(RefusesTorchScript, nn.ModuleDict):
    """Methods by name, in order of application; loads checkpoints of other methods too.

    If a checkpoint lacks all parameters of a method (a plain model, another method), the method
    keeps its initial parameters. Parameters of methods that this model lacks are dropped. A
    checkpoint with only some parameters of a method is damaged and fails as usual.
    """

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        prefix = f"{name}."
        stored = {k[len(prefix) :].split(".")[0] for k in state_dict if k.startswith(prefix)}
        for method in sorted(stored - set(self.keys())):
            logger.info("dropping %s%s: this model has no such method", prefix, method)
            for key in [k for k in state_dict if k.startswith(f"{prefix}{method}.")]:
                del state_dict[key]
        for method in [m for m in self.keys() if m not in stored]:
            fresh = self[method].state_dict(prefix=f"{prefix}{method}.")
            if fresh:
                logger.info("%s%s is new: keeping its initial parameters", prefix, method)
                state_dict.update(fresh)


METHODS: dict[str, type[AttentionMethod]] = {}
_registration_listeners: list[Callable[[str], None]] = []


def register_method(
    name: str, settings: type[Settings]
) -> Callable[[type[AttentionMethod]], type[AttentionMethod]]:
    """Class decorator: make the method known by its name, with its settings dataclass.

    With fairseq, ``--attention name`` and the archs ``<backbone>_<name>`` exist from then on.
    """

    def register(cls: type[AttentionMethod]) -> type[AttentionMethod]:
        if name in METHODS:
            raise InputError(f"attention method {name!r} is registered twice")
        cls.observes = cls.observe is not AttentionMethod.observe
        if not set(cls.sites) <= set(SITES):
            raise InputError(f"attention method {name!r} names unknown sites: {cls.sites}")
        cls.name = settings.method = name
        cls.Settings = settings
        METHODS[name] = cls
        for notify in _registration_listeners:
            notify(name)
        return cls

    return register


def on_registration(notify: Callable[[str], None]) -> None:
    """Call ``notify`` for every method registered so far and from now on."""
    for name in METHODS:
        notify(name)
    _registration_listeners.append(notify)
