"""The method protocol: logits in, logits out, losses left behind; and the registry of methods.

A method stands between ``QKᵀ/√d`` and ``softmax`` in one attention layer. Shapes everywhere:
logits and weights (B, H, T, S); q (B, H, T, d); k (B, H, S, d).
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from fairseq.dataclass import FairseqDataclass
from torch import Tensor, nn
from torch.nn import functional as F

from fairseq_stochattn.attention.cells import Cells
from fairseq_stochattn.errors import UsageError

if TYPE_CHECKING:
    from fairseq_stochattn.attention.stack import AttentionStack

logger = logging.getLogger(__name__)

SITES = ("encoder", "decoder", "cross")


@dataclass(frozen=True)
class Place:
    """Where a method stands: which stack, which of its layers, and the sizes there."""

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


@dataclass(frozen=True)
class Schedule:
    """A loss weight over updates: 0 before ``start``, then linearly up over ``warmup`` updates."""

    weight: float = 1.0
    start: int = 0
    warmup: int = 0

    def __call__(self, num_updates: int) -> float:
        if num_updates < self.start:
            return 0.0
        if self.warmup <= 0:
            return self.weight
        return self.weight * min(1.0, (num_updates - self.start) / self.warmup)


@dataclass(frozen=True)
class NamedLoss:
    """A term a method leaves for the criterion.

    ``value`` is a sum over the batch, added as it is, or with ``mean`` an average, scaled to the
    sample size. ``weight`` None makes it a measure: logged, never added. ``count`` is the number of
    cells that ``value`` sums over, for criterions that reduce by it. With a count, measures and
    losses with ``mean`` are left as sums and become one average over the counts of all layers.
    """

    value: Tensor
    weight: float | None
    mean: bool = False
    count: Tensor | None = None


class AttentionMethod(nn.Module, ABC):
    """Base of every method: ``forward(logits, cells) -> logits`` in one layer.

    A subclass sets ``Config`` (its flags, each prefixed with the method's name), ``sites`` and
    overrides ``forward``; what a stack shares it returns from ``build_shared``.
    """

    name: ClassVar[str]
    Config: ClassVar[type[FairseqDataclass]] = FairseqDataclass
    sites: ClassVar[tuple[str, ...]] = SITES
    # At test time the model is plain attention with the same weights: such a model exports.
    plain_at_test: ClassVar[bool] = False
    # Has a distribution over attention at test time too, to be sampled from where one asks for it.
    samples_at_test: ClassVar[bool] = False
    # Keeps nothing between layers and leaves no loss: activation checkpoints may run it twice.
    stateless: ClassVar[bool] = False
    # Changes no logit and needs none: where nobody else does, QKᵀ is never written to memory.
    passive: ClassVar[bool] = False
    # Flags whose default is another one in this method's own archs.
    arch_defaults: ClassVar[dict[str, Any]] = {}

    def __init__(self, config: Namespace, place: Place) -> None:
        super().__init__()
        self.losses: dict[str, NamedLoss] = {}
        self.num_updates = 0
        self.sample_in_eval = False

    @classmethod
    def asked_for(cls, config: Namespace) -> bool:
        """Whether a flag of its own asks for this method, on top of those ``--attention`` names."""
        return False

    @classmethod
    def build_shared(cls, config: Namespace, stack: AttentionStack) -> nn.Module | None:
        """Parameters that belong to the whole stack; found again as ``stack.shared[name]``."""
        return None

    @classmethod
    def is_plain_at_test(cls, config: Namespace) -> bool:
        """``plain_at_test`` where it depends on the flags."""
        return cls.plain_at_test

    def observe(self, cells: Cells) -> None:
        """Look at queries and keys, before the first method changes a logit."""

    @abstractmethod
    def forward(self, logits: Tensor, cells: Cells) -> Tensor:
        """logits (B, H, T, S) → logits (B, H, T, S)."""

    def reweigh(self, weights: Tensor, cells: Cells) -> Tensor:
        """weights (B, H, T, S) behind the softmax → weights, for what logits cannot express."""
        return weights

    @property
    def stochastic(self) -> bool:
        """Sample in training, and in eval where ``--retain-dropout`` asks for it; else the mean."""
        return self.training or self.sample_in_eval

    @property
    def losses_wanted(self) -> bool:
        """In training, and in validation where a criterion will collect; never in generation."""
        return self.training or _collection is not None

    def leave(
        self,
        name: str,
        value: Tensor,
        weight: float | None = None,
        mean: bool = False,
        count: Tensor | None = None,
    ) -> None:
        """Leave a loss (or a measure) for the criterion; calls for one batch add up."""
        value = value.float()
        if name in self.losses:
            before = self.losses[name]
            value = value + before.value
            count = None if count is None or before.count is None else count + before.count
        self.losses[name] = NamedLoss(value, weight, mean, count)

    def set_num_updates(self, num_updates: int) -> None:
        """Called by fairseq before every update: what every schedule is driven by."""
        self.num_updates = num_updates

    def make_generation_fast_(
        self,
        name: str = "",
        retain_dropout: bool = False,
        retain_dropout_modules: list[str] | None = None,
        **unused: Any,
    ) -> None:
        """``--retain-dropout`` keeps the sampling too; the module name to list is the method's."""
        chosen = retain_dropout_modules is None or self.name in retain_dropout_modules
        self.sample_in_eval = retain_dropout and chosen


class MethodDict(nn.ModuleDict):
    """Methods by name, in the order of application; forgiving towards other checkpoints.

    A checkpoint without a method's parameters (plain fairseq, another method) leaves that method
    as it was initialised; parameters of methods this model lacks are dropped. A checkpoint with
    only some of a method's parameters is damaged and fails as usual.
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


def register_method(name: str) -> Callable[[type[AttentionMethod]], type[AttentionMethod]]:
    """Class decorator: make ``--attention name`` and the archs ``<backbone>_<name>`` exist."""

    def register(cls: type[AttentionMethod]) -> type[AttentionMethod]:
        if name in METHODS:
            raise ValueError(f"attention method {name!r} is registered twice")
        if not set(cls.sites) <= set(SITES):
            raise ValueError(f"attention method {name!r} names unknown sites: {cls.sites}")
        cls.name = name
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


def parse_methods(spec: str) -> list[str]:
    """``"babn,asa"`` → the chain of method names, applied in this order."""
    names = [name.strip() for name in spec.split(",") if name.strip()]
    if not names:
        raise UsageError(f"--attention is empty; known methods: {', '.join(sorted(METHODS))}")
    for name in names:
        if name not in METHODS:
            known = ", ".join(sorted(METHODS))
            raise UsageError(f"--attention: unknown method '{name}' (known: {known})")
    if len(set(names)) < len(names):
        raise UsageError(f"--attention: a method is named twice in '{spec}'")
    return names


def chain_of(config: Namespace) -> list[str]:
    """The methods of a model: those of ``--attention``, then those that their own flags ask for."""
    named = parse_methods(config.attention)
    asked = [name for name, method in METHODS.items() if method.asked_for(config)]
    return [*named, *(name for name in asked if name not in named)]


_collection: object | None = None


@contextmanager
def collecting_losses() -> Iterator[None]:
    """Around the forwards of one batch, whose losses will be collected: in eval they are left too.

    The losses of several forwards (one for each option of a multiple choice) add up.
    """
    global _collection
    before, _collection = _collection, object()
    try:
        yield
    finally:
        _collection = before


def current_collection() -> object | None:
    """What tells the forwards of one ``collecting_losses`` from all others; None outside."""
    return _collection


def collect_losses(model: nn.Module) -> Iterator[tuple[str, NamedLoss]]:
    """Take every loss that the methods of ``model`` left, and clear them."""
    for module in model.modules():
        if isinstance(module, AttentionMethod) and module.losses:
            yield from module.losses.items()
            module.losses = {}


def attend(logits: Tensor, cells: Cells, methods: MethodDict) -> Tensor:
    """logits → weights, (B, H, T, S), in fp32 or better: methods, mask, softmax, methods again."""
    product = logits
    for method in methods.values():
        method.observe(cells)
    for method in methods.values():
        logits = method(logits, cells)
    if cells.blocked is None:
        masked = logits
    elif logits is product and all(method.stateless for method in methods.values()):
        # Nobody kept the product QKᵀ and its backward does not need it: mask it in place.
        masked = logits.add_(cells.hidden.barrier(logits.dtype))
    else:
        masked = cells.mask(logits)
    precision = torch.promote_types(masked.dtype, torch.float32)
    weights = torch.softmax(masked, dim=-1, dtype=precision)
    for method in methods.values():
        weights = method.reweigh(weights, cells)
    return weights


def attend_fused(cells: Cells, v: Tensor, methods: MethodDict, scale: float) -> Tensor:
    """softmax(scale·QKᵀ)V, (B, H, T, d), in one kernel, where all methods are passive;
    v (B, H, S, d)."""
    for method in methods.values():
        method.observe(cells)
    seen = None if cells.blocked is None else ~cells.blocked
    return F.scaled_dot_product_attention(cells.q, cells.k, v, seen, scale=scale)
