"""A stack: the attention layers of one site (encoder self, decoder self or cross).

It holds what methods share along its layers: modules (an upward chain, a generator) and the state
of one forward pass.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor, nn

from .context import MaskCache
from .errors import InputError
from .losses import current_collection
from .method import METHODS, AttentionMethod, LayerInfo, MethodDict
from .pruning import KeptLayers
from .selection import Selection, as_text, parse_layers, parse_sites
from .settings import Settings

logger = logging.getLogger(__name__)


class Vocabulary(NamedTuple):
    """What a method may know of the tokens behind the queries."""

    size: int
    padding_idx: int


class AttentionStack(nn.Module):
    """The layers of one site: shared modules and the state of one forward pass.

    In a pruned model, ``num_layers`` and ``layers`` are those of the full model: what the layers
    share does not change if some of them are left out.
    """

    def __init__(
        self,
        site: str,
        num_layers: int,
        num_heads: int,
        head_dim: int,
        vocabulary: Vocabulary | None = None,
        layers: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        self.site = site
        self.num_layers = num_layers
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.vocabulary = vocabulary  # of the tokens behind the queries
        self.layers = list(range(num_layers)) if layers is None else list(layers)  # with methods
        self.shared = MethodDict()
        self.methods: list[AttentionMethod] = []  # a plain list: they are children of the layers
        self.state: dict[str, Any] = {}
        self.tokens: Tensor | None = None  # (B, T): the tokens behind the queries
        self.query_padding: Tensor | None = None  # (B, T), True at padding
        self.masks = MaskCache()
        self.queries_seen = 0
        self._warned = False
        self._collection: object | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles carry no state of a forward pass, which may hold a graph."""
        forgotten = {"state": {}, "tokens": None, "query_padding": None, "masks": MaskCache()}
        return {**self.__dict__, **forgotten}

    def begin(self, tokens: Tensor, padding_idx: int, incremental: bool = False) -> None:
        """Start a new forward pass on these tokens: clear old state and uncollected losses."""
        self.tokens = tokens
        # Cached decoding has one query per step and collects no losses: no padding needed.
        self.query_padding = None if incremental else tokens.eq(padding_idx)
        self.clear()

    def begin_without_tokens(self, query_padding: Tensor) -> None:
        """Start a new forward pass whose queries are no tokens, such as regions of an image.

        ``query_padding`` is (B, T), True at padding.
        """
        self.tokens = None
        self.query_padding = query_padding
        self.clear()

    def clear(self) -> None:
        """Forget the state of the last forward pass, and losses that nobody collected."""
        self.state.clear()
        self.queries_seen = 0
        collection = current_collection()
        if collection is None or collection is not self._collection:
            for method in self.methods:
                if method.losses:
                    self._forget_losses(method)
        self._collection = collection

    @contextmanager
    def part(self, number: int) -> Iterator[None]:
        """Within the block, ``state`` is that of one part of the input, the same in all layers.

        A graph layer calls its methods once per part (core/graph_attention.py).
        """
        whole = self.state
        self.state = whole.setdefault(f"part {number}", {})
        try:
            yield
        finally:
            self.state = whole

    def next_query_padding(self) -> Tensor | None:
        """(B, 1) for a decoder that attends with one query at a time (LSTM)."""
        step = self.queries_seen
        self.queries_seen += 1
        return None if self.query_padding is None else self.query_padding[:, step : step + 1]

    def _forget_losses(self, method: AttentionMethod) -> None:
        left = ", ".join(name for name, loss in method.losses.items() if loss.weight)
        if left and not self._warned:
            self._warned = True
            logger.warning(
                "the attention method %s left the loss %s, which was not collected: train with a "
                "criterion of fairseq_stochattn (such as --criterion attention_losses), or add "
                "collect_losses(model) to your loss",
                method.name,
                left,
            )
        method.losses = {}


Chain = Mapping[str, Settings]  # method name → settings, in order of application


def build_stacks(
    chain: Chain,
    attentions: Mapping[str, Sequence[nn.Module]],
    sites: Selection = "all",
    layers: Selection = "all",
    vocabularies: Mapping[str, Vocabulary | None] | None = None,
    names: tuple[str, str] = ("sites", "layers"),
    kept: Mapping[str, KeptLayers | None] | None = None,
) -> dict[str, AttentionStack]:
    """Put methods into the attention modules of each site; returns one stack per site.

    Every module gets ``stack`` (a reference, not a child) and ``attention_methods``, which is
    empty in layers that were not selected. ``names`` are the names of ``sites`` and ``layers`` in
    error messages. ``kept`` gives, for each site of a pruned model, which layers of the full model
    its modules are; ``layers`` are numbers of the full model.
    """
    check_drops(chain)
    no_tokens = {site for site, vocabulary in (vocabularies or {}).items() if vocabulary is None}
    chosen = methods_by_site(chain, sites, list(attentions), names[0], no_tokens)
    stacks = {}
    for site, modules in attentions.items():
        sizes = modules[0].sizes()
        numbering = (kept or {}).get(site) or KeptLayers.all(len(modules))
        selected = []
        if chosen[site]:
            selected = parse_layers(layers, numbering.total, site, names[1])
        vocabulary = (vocabularies or {}).get(site)
        stack = AttentionStack(
            site,
            numbering.total,
            sizes["num_heads"],
            sizes["head_dim"],
            vocabulary,
            selected,
        )
        for name in chosen[site]:
            shared = METHODS[name].build_shared(chain[name], stack)
            if shared is not None:
                stack.shared[name] = shared
        for layer, module in zip(numbering.numbers, modules, strict=True):
            object.__setattr__(module, "stack", stack)
            module.attention_methods = MethodDict()
            if layer in selected:
                info = LayerInfo(stack, layer, **module.sizes())
                for name in chosen[site]:
                    module.attention_methods[name] = METHODS[name](chain[name], info)
            stack.methods.extend(module.attention_methods.values())
        stacks[site] = stack
    return stacks


def check_order(names: Sequence[str]) -> None:
    """Raise ``InputError`` if a method that must be the last one is not."""
    for name in list(names)[:-1]:
        if METHODS[name].must_be_last:
            raise InputError(f"{name} masks the output of the other methods: name it last")


def check_drops(chain: Chain) -> None:
    """Raise ``InputError`` if Bayesian attention would get logits that dropout has replaced.

    Its KL compares the logits with a prior; a dropped logit would make it infinite.
    """
    dropping = None
    for name, settings in chain.items():
        if METHODS[name].samples_at_test and dropping is not None:
            raise InputError(
                f"{dropping} drops scores that {name} computes its KL from: name {name} first"
            )
        if METHODS[name].drops_scores(settings):
            dropping = name


def methods_by_site(
    chain: Chain,
    spec: Selection,
    present: Sequence[str],
    name: str = "sites",
    no_tokens: Collection[str] = (),
) -> dict[str, list[str]]:
    """For each site of the model, the methods of the chain that act there.

    At the sites in ``no_tokens`` the queries are no tokens, but for example regions of an image.
    """
    wanted = parse_sites(spec, present, name)

    def sites_of(method: str) -> list[str]:
        barred = no_tokens if METHODS[method].needs_tokens else ()
        return [site for site in METHODS[method].sites if site not in barred]

    for method in chain:
        acts_on = sites_of(method)
        for site in wanted if as_text(spec, name) != "all" else ():
            if site not in acts_on:
                raise InputError(
                    f"{name}: {method} does not act on {site} attention "
                    f"(it acts on: {', '.join(acts_on)})"
                )
        if not set(acts_on) & set(wanted):
            raise InputError(
                f"{method} acts on {', '.join(acts_on)} attention, "
                f"this model has only {', '.join(present)}"
            )
    return {site: [m for m in chain if site in wanted and site in sites_of(m)] for site in present}
