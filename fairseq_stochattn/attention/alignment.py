"""Alignment attention (Zhang et al. 2021): keys and queries of every head share one distribution.

The attention stays as it is; a loss pulls p_Q and p_K together, the empirical distributions of a
sentence's queries and keys in one head (§2.2). Its distance is one of three (§2.3): a discriminator
(gan, Eq. 2), entropic optimal transport (ot, Eq. 3), conditional transport both ways (ct, Eq. 4).
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass, field

import torch
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from torch import Tensor, nn

from fairseq_stochattn.attention.cells import Cells
from fairseq_stochattn.attention.matching import Tokens, build_matcher
from fairseq_stochattn.attention.method import (
    AttentionMethod,
    Place,
    Schedule,
    register_method,
)
from fairseq_stochattn.attention.stack import AttentionStack
from fairseq_stochattn.distributions import at_least_float
from fairseq_stochattn.errors import UsageError, require_not_negative, require_positive
from fairseq_stochattn.transport import squared_mmd

# Every layer's turn to pay for its slope comes in so many updates, and then it pays for all of them
# (lazy regularisation, Karras et al. 2020): the same on average, at a fraction of the time.
PENALTY_PERIOD = 4


@dataclass
class AlignmentConfig(FairseqDataclass):
    alignment: ChoiceEnum(["none", "gan", "ot", "ct"]) = field(
        default="none",
        metadata={
            "help": "align keys and queries by a discriminator (gan), optimal (ot) or conditional "
            "transport (ct), on top of any --attention; the archs *_alignment have ct"
        },
    )
    alignment_weight: float = field(default=0.01, metadata={"help": "full weight of the loss"})
    alignment_start: int = field(default=0, metadata={"help": "update at which the loss sets in"})
    alignment_warmup: int = field(
        default=0, metadata={"help": "updates over which the weight grows from 0 to its full value"}
    )
    alignment_hidden: int = field(
        default=32, metadata={"help": "hidden units of discriminator, critic and navigator"}
    )
    alignment_share_layers: bool = field(
        default=False,
        metadata={"help": "one discriminator (critic, navigator) a stack, not a layer"},
    )
    alignment_gan_blind: bool = field(
        default=False,
        metadata={
            "help": "gan: do not tell the discriminator the head of a vector (the paper's way; it "
            "then matches the mixture of the heads only)"
        },
    )
    alignment_gan_penalty: float = field(
        default=0.1,
        metadata={"help": "gan: γ of the discriminator's gradient penalty (the paper has none: 0)"},
    )
    alignment_gan_rate: float = field(
        default=10.0,
        metadata={"help": "gan: learning rate of the discriminator as a multiple (the paper's: 1)"},
    )
    alignment_cost: ChoiceEnum(["cosine", "euclidean"]) = field(
        default="cosine", metadata={"help": "ot: cost 1 − cos, or the squared distance"}
    )
    alignment_ot_epsilon: float = field(
        default=0.01, metadata={"help": "ot: weight ε of the plan's entropy"}
    )
    alignment_ot_iterations: int = field(
        default=50, metadata={"help": "ot: most Sinkhorn iterations; it stops when converged"}
    )
    alignment_log_mmd: bool = field(
        default=False,
        metadata={"help": "log the squared MMD of keys and queries, over heads and layers, as mmd"},
    )
    alignment_log_mmd_layers: bool = field(
        default=False, metadata={"help": "log it for every layer too, as mmd_<site>_<layer>"}
    )


@register_method("alignment")
class AlignmentAttention(AttentionMethod):
    """Plain attention, and a loss between the distributions of keys and queries."""

    Config = AlignmentConfig
    sites = ("encoder", "decoder")  # self-attention: key and query of one token
    plain_at_test = True
    passive = True
    arch_defaults = {"alignment": "ct"}

    def __init__(self, config: Namespace, place: Place) -> None:
        super().__init__(config, place)
        checked(config)
        self.schedule = Schedule(
            config.alignment_weight, config.alignment_start, config.alignment_warmup
        )
        self.layer = place.layer
        self.matcher = None  # None where the stack has one for all layers
        if not config.alignment_share_layers:
            self.matcher = build_matcher(config, place.num_heads, place.head_dim)
        self.measured = ["mmd"] if config.alignment_log_mmd else []
        if config.alignment_log_mmd_layers:
            self.measured.append(f"mmd_{place.site}_{place.layer}")

    @classmethod
    def asked_for(cls, config: Namespace) -> bool:
        return str(getattr(config, "alignment", "none")) != "none"

    @classmethod
    def build_shared(cls, config: Namespace, stack: AttentionStack) -> nn.Module | None:
        checked(config)
        if not config.alignment_share_layers:
            return None
        return build_matcher(config, stack.num_heads, stack.head_dim)

    def observe(self, cells: Cells) -> None:
        if self.losses_wanted:
            with torch.autocast(cells.q.device.type, enabled=False):
                self._leave_losses(cells)

    def forward(self, logits: Tensor, cells: Cells) -> Tensor:
        """The logits (B, H, T, S) as they came."""
        return logits

    def _leave_losses(self, cells: Cells) -> None:
        cells = cells.clean()
        q, k = at_least_float(cells.q), at_least_float(cells.k)
        queries, keys = real_tokens(cells)
        present = (queries.present & keys.present).unsqueeze(1)  # (B, 1)
        count = present.sum() * q.size(1)
        matcher = self.matcher or cells.stack.shared[self.name]
        # At test time the full weight, so that objectives of validation compare.
        weight = self.schedule(self.num_updates) if self.training else self.schedule.weight
        self.leave("align", matcher.total(q, k, queries, keys), weight, mean=True, count=count)
        if self.training and matcher.pays:
            due = (self.num_updates + self.layer) % PENALTY_PERIOD == 0
            penalty = matcher.penalty(q, k, queries, keys) if due else q.new_zeros(())
            once = torch.ones((), device=q.device)  # averaged over the layers
            self.leave("align_penalty", PENALTY_PERIOD * penalty, weight, mean=True, count=once)
        if self.measured:
            pairs = (queries.several & keys.several).unsqueeze(1)
            mmd = squared_mmd(q, k, queries.mass, keys.mass) * pairs
            for name in self.measured:
                self.leave(name, mmd.sum(), count=pairs.sum() * q.size(1))


def real_tokens(cells: Cells) -> tuple[Tokens, Tokens]:
    """Those of the queries and of the keys, made once for all layers of a stack."""
    state = cells.stack.state
    if "alignment" not in state:
        # fairseq leaves the keys' padding out where there is none, the stack always knows.
        padding = cells.query_padding if cells.key_padding is not None else None
        state["alignment"] = Tokens(cells.q, padding), Tokens(cells.k, cells.key_padding)
    return state["alignment"]


def checked(config: Namespace) -> None:
    """Refuse what makes no sense."""
    if str(config.alignment) == "none":
        raise UsageError("--attention alignment needs --alignment gan, ot or ct, not none")
    require_not_negative(config, "alignment_weight", "alignment_start", "alignment_warmup")
    require_not_negative(config, "alignment_gan_penalty")
    require_positive(config, "alignment_hidden", "alignment_gan_rate")
    require_positive(config, "alignment_ot_epsilon", "alignment_ot_iterations")
