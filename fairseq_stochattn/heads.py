"""The heads of a model, found from its modules: of plain fairseq archs and of ours alike.

fairseq's multi-head attention keeps the heads of a projection as consecutive rows of one matrix:
head i of W_Q are the rows i·d to (i + 1)·d. Other modules with heads say so by ``head_parameters``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from fairseq.modules import MultiheadAttention
from torch import Tensor, nn

from fairseq_stochattn.attention.method import SITES
from fairseq_stochattn.attention.stack import select_layers
from fairseq_stochattn.errors import UsageError

PROJECTIONS = ("q", "k", "v")


@dataclass(frozen=True)
class HeadGroup:
    """The H heads of one attention module."""

    name: str  # of the module, as in named_modules()
    module: nn.Module
    site: str
    layer: int  # among the attention modules of its site, from 0
    num_heads: int
    # "q", "k", "v" → the parameters that are split into heads along their first dimension.
    parameters: dict[str, list[nn.Parameter]]


def by_head(parameter: Tensor, num_heads: int) -> Tensor:
    """(H·d, …) → (H, d·…): a view in which every row is one head."""
    return parameter.view(num_heads, -1)


def find_heads(model: nn.Module) -> list[HeadGroup]:
    """Every attention module of the model that has heads, in the order of its modules.

    Left out is what a module with ``auxiliary = True`` holds, such as ELECTRA's generator: it
    serves the training of the model and is no part of it.
    """
    found: list[HeadGroup] = []
    seen: Counter[str] = Counter()
    modules = dict(model.named_modules())
    left_out = tuple(f"{x}." for x, m in modules.items() if getattr(m, "auxiliary", False))
    for name, module in modules.items():
        if name.startswith(left_out):
            continue
        if isinstance(module, MultiheadAttention):
            parameters = {
                kind: list(getattr(module, f"{kind}_proj").parameters()) for kind in PROJECTIONS
            }
        elif hasattr(module, "head_parameters"):
            parameters = module.head_parameters()
        else:
            continue
        site = _site_of(name, module)
        found.append(HeadGroup(name, module, site, seen[site], module.num_heads, parameters))
        seen[site] += 1
    return found


def select_heads(
    groups: Sequence[HeadGroup], sites: str, layers: str, flag: str = "--attention"
) -> list[HeadGroup]:
    """Those of ``all | encoder,cross`` sites and ``all | first | last | 0,2`` layers.

    Errors name ``<flag>-sites`` and ``<flag>-layers``.
    """
    if not groups:
        raise UsageError("this model has no attention with heads")
    present = list(dict.fromkeys(group.site for group in groups))
    wanted = present if sites.strip() == "all" else [part.strip() for part in sites.split(",")]
    for site in wanted:
        if site not in present:
            cause = f"this model has no {site} attention" if site in SITES else f"no site '{site}'"
            raise UsageError(f"{flag}-sites: {cause} (it has: {', '.join(present)})")
    chosen = []
    for site in wanted:
        of_site = [group for group in groups if group.site == site]
        indices = select_layers(layers, len(of_site), site, f"{flag}-layers")
        chosen += [group for group in of_site if group.layer in indices]
    return chosen


def _site_of(name: str, module: nn.Module) -> str:
    if getattr(module, "encoder_decoder_attention", False):
        return "cross"
    return "decoder" if "decoder" in name.split(".") else "encoder"
