"""Adversarial self-attention (Wu et al. 2022): an adversary masks what the model relies on.

In every layer (Eq. 5, Fig. 3) the adversary computes Q̃ and K̃, two linear functions of the layer's
input. It masks each (query, key) pair, for all heads, with the probability σ(Q̃K̃ᵀ/√d + b). The masks
are sampled (binary concrete with a straight-through gradient) and act only on the adversarial half
of a paired batch, not on the clean half. Through gradient reversal the adversary maximises the
divergence between the predictions of both halves, minus τ times the penalty on masks (Eq. 8).

The adversary must learn faster than the model that it attacks. Its weights are m·v, where m is the
multiplier of its learning rate and v the stored parameter (``core.gradients.magnify``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...core.context import AttentionContext
from ...core.distributions import at_least_float, logistic_noise
from ...core.errors import SettingError, require_not_negative, require_positive
from ...core.gradients import magnify, reverse_gradient, straight_through
from ...core.losses import NamedLoss
from ...core.masking import MaskingMethod, check_share
from ...core.method import LayerInfo, register_method
from ...core.settings import Settings, setting

TAU = 0.3  # the paper's, in fine-tuning


@dataclass(frozen=True)
class ASA(Settings):
    """Settings of adversarial self-attention."""

    lr_multiplier: float = setting(
        30.0, "multiplier of the adversary's learning rate; 1 gives it the model's own rate"
    )
    width: Literal["head", "hidden"] = setting(
        "head",
        "d, width of the adversary's Q̃ and K̃: that of one head, or the model's hidden size, as in "
        "the authors' code",
    )
    dim: int = setting(0, "d as a number; 0 means that --asa-width decides")
    initial_share: float = setting(
        0.1, "share of (query, key) pairs that the adversary masks at the start"
    )
    weight: float = setting(1.0, "α, weight of the divergence between clean and masked predictions")
    divergence: Literal["forward", "symmetric"] = setting(
        "forward",
        "divergence between the predictions: KL(clean ‖ masked), or symmetric, KL(clean ‖ masked) "
        "+ KL(masked ‖ clean), as in the authors' code",
    )
    clean_gradient: bool = setting(
        False,
        "let the divergence change the clean predictions too, as in the authors' code; by default "
        "they are constants",
    )
    budget: float = setting(
        0.1,
        "ε, bound of the share of pairs that the adversary masks: the weight of the penalty is "
        "divergence/ε, so that masking a larger share must increase the divergence in proportion. "
        "The share settles at ε times the power with which the divergence grows with it. Without "
        "effect if --asa-tau is given",
    )
    tau: float | None = setting(
        None,
        "τ, a constant weight of the penalty, as in the paper (0.3 in fine-tuning, 0.1 in "
        "pre-training): a lower weight gives more masking. Default: --asa-budget decides",
    )
    penalty: Literal["share", "sum"] = setting(
        "share",
        "penalty on masks: the masked share of the valid pairs of all layers, or sum, the number "
        "of masked pairs of a sentence in all layers, as in the paper's Eq. 8",
    )
    start: int = setting(0, "update at which the attack starts; before it nothing is masked")
    warmup: int = setting(
        0,
        "number of updates over which the weight of the divergence in the model's objective rises "
        "to α. The adversary learns against the full α from the start",
    )

    def check(self) -> None:
        require_not_negative(self, "dim", "weight", "start", "warmup")
        require_positive(self, "lr_multiplier")
        if self.tau is not None:
            require_not_negative(self, "tau")
        for name in ("initial_share", "budget"):
            check_share(self, name)
            if getattr(self, name) == 0:
                raise SettingError(self, name, "must be positive")

    def warmth(self, num_updates: int) -> float:
        """The share of α that the model is trained with in this update, above 0 and at most 1."""
        return min(1.0, max(1, num_updates - self.start + 1) / max(1, self.warmup))


@register_method("asa", settings=ASA)
class AdversarialSelfAttention(MaskingMethod):
    """An adversary learns to mask the (query, key) pairs that change the predictions most."""

    settings: ASA

    def __init__(self, settings: ASA, info: LayerInfo) -> None:
        super().__init__(settings, info)
        share, m = settings.initial_share, settings.lr_multiplier
        wide = info.query_dim if settings.width == "hidden" else info.head_dim
        self.dim = settings.dim or wide
        self.queries_and_keys = nn.Linear(info.query_dim, 2 * self.dim)  # Q̃ and K̃ in one product
        self.b = nn.Parameter(torch.tensor(math.log(share / (1 - share))))
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.div_(m)
        # Checkpoints store m, since their parameters are those of m.
        self.register_buffer("lr_multiplier", torch.tensor(m))

    @property
    def tau(self) -> float:
        return TAU if self.settings.tau is None else self.settings.tau

    @property
    def has_budget(self) -> bool:
        """Whether the weight of the penalty is divergence/ε instead of τ."""
        return self.settings.tau is None and self.settings.penalty == "share"

    def adversary(self, context: AttentionContext) -> Tensor:
        """Q̃K̃ᵀ/√d + b, (B, 1, T, S): the logit of the probability of masking a pair.

        The input is detached: the adversary's gradient does not reach the model.
        """
        x, m = context.query_input.detach(), self.settings.lr_multiplier  # (T, B, C)
        linear = self.queries_and_keys
        weight, bias = magnify(linear.weight, m), magnify(linear.bias, m)
        q, k = functional.linear(x, weight, bias).transpose(0, 1).chunk(2, dim=-1)  # (B, T, d)
        scores = at_least_float(torch.bmm(q * self.dim**-0.5, k.transpose(1, 2)))
        return scores.unsqueeze(1) + magnify(self.b, m).to(scores.dtype)

    def score(self, logits: Tensor, context: AttentionContext, valid: Tensor) -> Tensor:
        scores = self.adversary(context)
        return scores + logistic_noise(scores)

    def mask(self, masked: Tensor, score: Tensor, valid: Tensor, count: Tensor) -> Tensor:
        """Return the mask. The attention's gradient is reversed in it, the penalty's is not.

        In the warm-up the objective has only a part of the divergence. The reversed gradient is
        divided by this part: the adversary always sees the whole divergence.
        """
        m = straight_through(masked, score.sigmoid().masked_fill(~valid, 0.0))
        if self.settings.penalty == "sum":
            self.add_measure("masked_share", masked.sum(), count)
            self.add_loss("masked_pairs", m.sum(), self.tau, "sum")
        else:
            self.add_loss("masked_share", m.sum(), self.tau, "mean", count)
        return reverse_gradient(m, 1 / self.settings.warmth(self.num_updates))

    def skip(self) -> None:
        super().skip()
        # Add a loss of zero, since DistributedDataParallel waits for a gradient of every parameter.
        zero = sum(0.0 * parameter.sum() for parameter in self.parameters())
        self.add_loss("masked_share", zero, 0.0, "mean", zero.detach())

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        """Load the adversary of a checkpoint with another multiplier, or without one."""
        name = f"{prefix}lr_multiplier"
        own = {f"{prefix}{key}" for key, _ in self.named_parameters()}
        if own & set(state_dict):
            stored, m = state_dict.get(name, torch.ones(())), self.settings.lr_multiplier
            if stored.item() != torch.tensor(m, dtype=stored.dtype).item():  # fp16 rounds it
                for key in own & set(state_dict):
                    state_dict[key] = state_dict[key] * (stored.item() / m)
            state_dict[name] = torch.tensor(m)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def with_budget(
    model: nn.Module, losses: Iterable[tuple[str, NamedLoss]], divergence: Tensor
) -> Iterator[tuple[str, NamedLoss]]:
    """The losses, where the weight of the penalty on masks is divergence/ε if there is a budget.

    ``divergence`` is the mean over the targets of the batch, with its weight α. If it grows as a
    power a of the masked share s, the adversary's optimum of D − (D/ε)·s is at s = a·ε, whatever
    the scale of D: a divergence near 0, as at the start of a training, does not silence it.
    """
    methods = (m for m in model.modules() if isinstance(m, AdversarialSelfAttention))
    method = next(methods, None)
    weight = None
    if method is not None and method.has_budget:
        weight = divergence.detach() / method.settings.budget
    for name, loss in losses:
        if name == "masked_share" and loss.weight is not None and weight is not None:
            loss = replace(loss, weight=weight)
        yield name, loss
