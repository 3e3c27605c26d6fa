"""A stack: the attention layers of one site (encoder self, decoder self or cross), and its state.

State that methods share along a stack (an upward chain, a generator) belongs here, not to a layer;
it is made once a forward and forgotten at the next.
"""

from __future__ import annotations

import logging
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from fairseq.data import Dictionary
from fairseq.dataclass import FairseqDataclass
from torch import Tensor, nn

from fairseq_stochattn.attention.method import (
    METHODS,
    SITES,
    AttentionMethod,
    MethodDict,
    Place,
    chain_of,
    current_collection,
)
from fairseq_stochattn.errors import UsageError

logger = logging.getLogger(__name__)


@dataclass
class AttentionConfig(FairseqDataclass):
    """The flags every arch of ours has: which methods, where."""

    attention: str = field(
        default="deterministic",
        metadata={"help": "methods, comma-separated, in order of application; archs differ in it"},
    )
    attention_sites: str = field(
        default="all",
        metadata={
            "help": "where the methods act: all, or a comma-separated list of encoder (self), "
            "decoder (self), cross"
        },
    )
    attention_layers: str = field(
        default="all",
        metadata={"help": "layers where the methods act: all, first, last, or e.g. 0,2 (from 0)"},
    )


class AttentionStack(nn.Module):
    """The layers of one site: shared modules, per-forward state, and what is known of the batch."""

    def __init__(
        self,
        site: str,
        num_layers: int,
        num_heads: int,
        head_dim: int,
        dictionary: Dictionary | None = None,
    ) -> None:
        super().__init__()
        self.site = site
        self.num_layers = num_layers
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.dictionary = dictionary  # of the tokens behind the queries
        self.shared = MethodDict()
        self.methods: list[AttentionMethod] = []  # a plain list: they are children of the layers
        self.state: dict[str, Any] = {}
        self.tokens: Tensor | None = None  # (B, T): the tokens behind the queries
        self.query_padding: Tensor | None = None  # (B, T), True at padding
        self.queries_seen = 0
        self._warned = False
        self._collection: object | None = None

    def begin(self, tokens: Tensor, padding_idx: int, incremental: bool = False) -> None:
        """A new forward starts: forget the last one's state, and losses that nobody collects."""
        self.state.clear()
        self.tokens = tokens
        # Cached decoding sees one query a step and never asks for losses: no padding needed.
        self.query_padding = None if incremental else tokens.eq(padding_idx)
        self.queries_seen = 0
        collection = current_collection()
        if collection is None or collection is not self._collection:
            for method in self.methods:
                if method.losses:
                    self._forget_losses(method)
        self._collection = collection

    def next_query_padding(self) -> Tensor | None:
        """(B, 1) for a decoder that attends one query at a time (LSTM)."""
        step = self.queries_seen
        self.queries_seen += 1
        return None if self.query_padding is None else self.query_padding[:, step : step + 1]

    def _forget_losses(self, method: AttentionMethod) -> None:
        left = ", ".join(name for name, loss in method.losses.items() if loss.weight)
        if left and not self._warned:
            self._warned = True
            logger.warning(
                "the attention method %s left the loss %s, but the criterion did not collect it: "
                "train with a criterion of fairseq_stochattn (e.g. --criterion attention_losses)",
                method.name,
                left,
            )
        method.losses = {}


def select_layers(
    spec: str, num_layers: int, site: str, flag: str = "--attention-layers"
) -> list[int]:
    """``all | first | last | 0,2`` → layer indices of a stack."""
    named = {"all": list(range(num_layers)), "first": [0], "last": [num_layers - 1]}
    if spec.strip() in named:
        return named[spec.strip()]
    try:
        layers = sorted({int(part) for part in spec.split(",")})
    except ValueError:
        raise UsageError(
            f"{flag}: '{spec}' is none of all, first, last, or indices such as 0,2"
        ) from None
    for layer in layers:
        if not 0 <= layer < num_layers:
            raise UsageError(
                f"{flag}: layer {layer} is out of range, "
                f"the {site} stack has layers 0 to {num_layers - 1}"
            )
    return layers


def select_sites(spec: str, present: Sequence[str], methods: Sequence[str]) -> dict[str, list[str]]:
    """``all | encoder,cross`` → for each site of the model the methods that act there."""
    if spec.strip() == "all":
        wanted = list(present)
    else:
        wanted = [part.strip() for part in spec.split(",") if part.strip()]
        for site in wanted:
            if site not in SITES:
                known = ", ".join(SITES)
                raise UsageError(f"--attention-sites: unknown site '{site}' (known: all, {known})")
            if site not in present:
                has = ", ".join(present)
                raise UsageError(
                    f"--attention-sites: this model has no {site} attention (it has: {has})"
                )
            for method in methods:
                if site not in METHODS[method].sites:
                    raise UsageError(
                        f"--attention-sites: {method} does not act on {site} attention "
                        f"(it acts on: {', '.join(METHODS[method].sites)})"
                    )
        if not wanted:
            raise UsageError("--attention-sites is empty")
    chosen = {
        site: [m for m in methods if site in wanted and site in METHODS[m].sites]
        for site in present
    }
    for method in methods:
        if not any(method in names for names in chosen.values()):
            raise UsageError(
                f"--attention: {method} acts on {', '.join(METHODS[method].sites)} attention, "
                f"this model has only {', '.join(present)}"
            )
    return chosen


def build_stacks(
    config: Namespace,
    attentions: dict[str, Sequence[nn.Module]],
    dictionaries: dict[str, Dictionary],
) -> dict[str, AttentionStack]:
    """Put the methods of ``config`` into the attention modules of each site.

    ``dictionaries`` know the tokens behind the queries of a site.

    Every module gets ``stack`` (a reference, not a child) and ``attention_methods``, which is
    empty in layers that were not selected.
    """
    names = chain_of(config)
    for entry in (entry for name in names for entry in fields(METHODS[name].Config)):
        if not hasattr(config, entry.name):  # an arch made before the method was registered
            setattr(config, entry.name, entry.default)
    chosen = select_sites(config.attention_sites, list(attentions), names)
    stacks = {}
    for site, modules in attentions.items():
        sizes = modules[0].sizes()
        stack = AttentionStack(
            site, len(modules), sizes["num_heads"], sizes["head_dim"], dictionaries[site]
        )
        for name in chosen[site]:
            shared = METHODS[name].build_shared(config, stack)
            if shared is not None:
                stack.shared[name] = shared
        layers = select_layers(config.attention_layers, len(modules), site) if chosen[site] else []
        for index, module in enumerate(modules):
            object.__setattr__(module, "stack", stack)
            module.attention_methods = MethodDict()
            if index in layers:
                place = Place(stack, index, **module.sizes())
                for name in chosen[site]:
                    module.attention_methods[name] = METHODS[name](config, place)
            stack.methods.extend(module.attention_methods.values())
        stacks[site] = stack
    return stacks
