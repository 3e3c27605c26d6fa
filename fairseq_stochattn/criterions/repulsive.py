"""The task's own loss plus a price on heads that are alike: the baselines of repulsive attention.

``--criterion repulsive --diversity disagreement --diversity-weight 1``

- disagreement (Li et al. 2018): the mean cosine of the heads' outputs of one token;
- cosine (An et al. 2020, App. C.6): the mean cosine of the heads' parameters, Q, K and V apart;
- frobenius (Lin et al. 2017): ‖A Aᵀ − I‖²_F, the rows of A being a sentence's heads.

Averaged over pairs of heads, real tokens (sentences where a head attends once a sentence), layers.
Logged: the term under its name, ``…_weight``, ``objective``, and ``dist`` with ``--log-dist``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from fairseq.criterions import register_criterion
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from torch import Tensor, nn

from fairseq_stochattn.attention.method import NamedLoss
from fairseq_stochattn.attention.watching import Heads, ShowsHeads, watching
from fairseq_stochattn.criterions.attention_losses import AttentionLosses, wrapping_config
from fairseq_stochattn.diversity import frobenius, mean_cosine, mean_distance
from fairseq_stochattn.errors import UsageError, require_not_negative
from fairseq_stochattn.heads import HeadGroup, by_head, find_heads, select_heads


@dataclass
class DiversityConfig(FairseqDataclass):
    diversity: ChoiceEnum(["disagreement", "cosine", "frobenius"]) = field(
        default="disagreement",
        metadata={
            "help": "what makes heads alike: the cosine of their outputs (disagreement), the "
            "cosine of their parameters (cosine; plain archs too), or where they attend "
            "(frobenius)"
        },
    )
    diversity_weight: float = field(
        default=1.0,
        metadata={"help": "weight of that term; 1 in Li et al. and, but for SNLI, Lin et al."},
    )
    diversity_sites: str = field(
        default="all",
        metadata={"help": "whose heads: all, or a comma-separated list of encoder, decoder, cross"},
    )
    diversity_layers: str = field(
        default="all", metadata={"help": "of which layers: all, first, last, or e.g. 0,2 (from 0)"}
    )
    log_dist: bool = field(
        default=False,
        metadata={"help": "log the mean distance between the outputs of two heads as dist"},
    )


@register_criterion(
    "repulsive", dataclass=wrapping_config("RepulsiveCriterionConfig", DiversityConfig)
)
class RepulsiveCriterion(AttentionLosses):
    """The task's loss plus a regulariser that drives heads apart."""

    def __init__(self, task: Any, task_criterion: Any, cfg: Any) -> None:
        super().__init__(task, task_criterion, cfg)
        require_not_negative(cfg, "diversity_weight")
        self.kind = str(cfg.diversity)
        self.seen: list[tuple[str, NamedLoss]] = []

    def forward(
        self, model: nn.Module, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, Any, dict[str, Any]]:
        self.seen = []
        learning = torch.is_grad_enabled()

        def see(heads: Heads) -> None:
            if learning and not torch.is_grad_enabled():
                raise UsageError(
                    "--checkpoint-activations hides the heads from --criterion repulsive; leave "
                    "the flag out (or use --update-freq to save memory)"
                )
            self.seen += self.terms_of(heads)

        with watching(self.watched(model), see):
            return super().forward(model, sample, reduce)

    def groups(self, model: nn.Module) -> list[HeadGroup]:
        """The heads that shall differ."""
        sites, layers = self.cfg.diversity_sites, self.cfg.diversity_layers
        groups = select_heads(find_heads(model), sites, layers, "--diversity")
        for group in groups:
            if group.num_heads < 2:
                raise UsageError(f"--criterion repulsive: {group.name} has one head alone")
        return groups

    def watched(self, model: nn.Module) -> list[ShowsHeads]:
        """The modules whose outputs or weights are needed."""
        if self.kind == "cosine" and not self.cfg.log_dist:
            return []
        modules = [group.module for group in self.groups(model)]
        if not all(isinstance(module, ShowsHeads) for module in modules):
            need = "--log-dist" if self.kind == "cosine" else f"--diversity {self.kind}"
            raise UsageError(
                f"{need}: fairseq's own attention does not show its heads; use an arch of ours, "
                "e.g. transformer_deterministic instead of transformer (its weights are the same)"
            )
        return modules

    def losses_of(self, model: nn.Module) -> Iterator[tuple[str, NamedLoss]]:
        yield from super().losses_of(model)
        seen, self.seen = self.seen, []
        yield from seen
        if self.kind == "cosine":
            value = parameter_cosine(self.groups(model))
            yield "cosine", NamedLoss(value, self.cfg.diversity_weight, mean=True)

    def terms_of(self, heads: Heads) -> list[tuple[str, NamedLoss]]:
        """What one attention module adds: sums over real tokens, and their number."""
        outputs = heads.outputs.transpose(1, 2)  # (B, T, H, d)
        weights = heads.weights.transpose(1, 2)  # (B, T, H, S)
        values: dict[str, Tensor] = {}  # (B, T) each
        if self.kind == "disagreement":
            values[self.kind] = mean_cosine(outputs)
        if self.kind == "frobenius":
            values[self.kind] = frobenius(weights)
        if self.cfg.log_dist:
            values["dist"] = mean_distance(outputs.detach())
        real = outputs.new_ones(outputs.shape[:2], dtype=torch.bool)
        if heads.padding is not None:
            real = ~heads.padding
        terms = []
        for name, value in values.items():
            weight = None if name == "dist" else self.cfg.diversity_weight
            total = value.masked_fill(~real, 0.0).sum()
            terms.append((name, NamedLoss(total, weight, mean=True, count=real.sum())))
        return terms


def parameter_cosine(groups: Sequence[HeadGroup]) -> Tensor:
    """The mean cosine of the heads' parameters, averaged over projections and layers."""
    systems = [
        torch.cat([by_head(parameter, group.num_heads) for parameter in parameters], dim=1)
        for group in groups
        for parameters in group.parameters.values()
    ]
    return torch.stack([mean_cosine(heads) for heads in systems]).mean()
