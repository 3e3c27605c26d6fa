"""The distances of alignment attention (Zhang et al. 2021, §2.3) with their networks.

A matcher takes queries q (B, H, T, d) and keys k (B, H, S, d) and gives one loss a sentence and
head, (B, H). Its networks are shared by the heads and see real tokens only.
"""

from __future__ import annotations

from argparse import Namespace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from fairseq_stochattn.distributions import at_least_float
from fairseq_stochattn.gradients import reverse_gradient
from fairseq_stochattn.transport import (
    conditional_transport,
    cosine_cost,
    euclidean_cost,
    sinkhorn,
)


class Tokens:
    """The real tokens of a batch: p_Q or p_K of every sentence, and networks on them alone."""

    def __init__(self, x: Tensor, padding: Tensor | None) -> None:
        """x (B, H, L, d); padding (B, L), True at padding."""
        batch, _, length, _ = x.shape
        keep = x.new_ones((batch, length), dtype=torch.bool) if padding is None else ~padding
        self.present = keep.any(dim=1)  # (B,)
        self.several = keep.sum(dim=1) > 1
        # A sentence of nothing but padding has no distribution: any finite one does, it is not
        # counted.
        keep = keep | ~self.present.unsqueeze(1)
        mass = at_least_float(keep.to(x.dtype))
        self.mass = (mass / mass.sum(dim=1, keepdim=True)).unsqueeze(1)  # (B, 1, L)
        self.index = None if padding is None else keep.flatten().nonzero().squeeze(1)

    def apply(self, network: nn.Module, x: Tensor, adversary: bool = False) -> Tensor:
        """x (B, H, L, d) → network(x) (B, H, L, e), 0 at padding, which the network never sees."""
        batch, _, length, _ = x.shape
        rows = x.transpose(1, 2).flatten(0, 1)  # (B·L, H, d)
        if self.index is None:
            out = run(network, rows, adversary)
        else:
            real = run(network, rows.index_select(0, self.index), adversary)
            out = real.new_zeros((len(rows), *real.shape[1:])).index_copy(0, self.index, real)
        return out.unflatten(0, (batch, length)).transpose(1, 2)


def run(network: nn.Module, x: Tensor, adversary: bool = False) -> Tensor:
    """A network in the precision of x, whatever the model's.

    As an ``adversary`` its parameters climb where everybody else descends: the reversal stands
    before the parameters, so what flows on to x is the true gradient.
    """
    parameters = {name: p.to(x.dtype) for name, p in network.named_parameters()}
    if adversary:
        parameters = {name: reverse_gradient(p) for name, p in parameters.items()}
    return functional_call(network, parameters, (x,))


class Highway(nn.Module):
    """I_X = τ ⊙ ReLU(Φ_h(X)) + (1 − τ) ⊙ X with the gate τ = σ(Φ_τ(X)) (§2.3.1)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gate = nn.Linear(dim, dim)
        self.transform = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.gate(x).sigmoid()
        return gate * self.transform(x).relu() + (1 - gate) * x


def mlp(dim: int, hidden: int, out: int) -> list[nn.Module]:
    """Φ_2(F_NL(Φ_1(·)))."""
    return [nn.Linear(dim, hidden), nn.LeakyReLU(), nn.Linear(hidden, out)]


class Discriminator(nn.Module):
    """Eq. 2: D says how likely a token's vector is a query; shared by the heads."""

    def __init__(self, config: Namespace, dim: int) -> None:
        super().__init__()
        self.d = nn.Sequential(Highway(dim), *mlp(dim, config.alignment_hidden, 1))

    def forward(self, q: Tensor, k: Tensor, queries: Tokens, keys: Tokens) -> Tensor:
        """−E_q log D(q) − E_k log(1 − D(k)), (B, H): D descends, queries and keys climb."""
        of_q = queries.apply(self.d, reverse_gradient(q)).squeeze(-1)  # (B, H, T)
        of_k = keys.apply(self.d, reverse_gradient(k)).squeeze(-1)
        taken_for_keys = (F.softplus(-of_q) * queries.mass).sum(dim=-1)
        taken_for_queries = (F.softplus(of_k) * keys.mass).sum(dim=-1)
        return taken_for_keys + taken_for_queries


class OptimalTransport(nn.Module):
    """Eq. 3: the cost of the entropic plan; nothing to learn."""

    def __init__(self, config: Namespace, dim: int) -> None:
        super().__init__()
        self.cost = cosine_cost if str(config.alignment_cost) == "cosine" else euclidean_cost
        self.epsilon = config.alignment_ot_epsilon
        self.iterations = config.alignment_ot_iterations

    def forward(self, q: Tensor, k: Tensor, queries: Tokens, keys: Tokens) -> Tensor:
        cost = self.cost(q, k)
        plan = sinkhorn(cost.detach(), queries.mass, keys.mass, self.epsilon, self.iterations)
        return (cost * plan).sum(dim=(-2, -1))


class ConditionalTransport(nn.Module):
    """Eq. 4: the navigator τ_φ says who goes where, the critic τ_η what it costs.

    W_Q, W_K and φ descend. η climbs: the gradient is reversed where it enters η, and nowhere else.
    """

    def __init__(self, config: Namespace, dim: int) -> None:
        super().__init__()
        hidden = config.alignment_hidden
        self.navigator = nn.Sequential(*mlp(dim, hidden, hidden))
        self.critic = nn.Sequential(Highway(dim), *mlp(dim, hidden, hidden))

    def forward(self, q: Tensor, k: Tensor, queries: Tokens, keys: Tokens) -> Tensor:
        ways = queries.apply(self.navigator, q), keys.apply(self.navigator, k)
        points = (
            queries.apply(self.critic, q, adversary=True),
            keys.apply(self.critic, k, adversary=True),
        )
        affinity = torch.matmul(ways[0], ways[1].transpose(-1, -2))  # (B, H, T, S)
        return conditional_transport(affinity, cosine_cost(*points), queries.mass, keys.mass)


MATCHERS: dict[str, type[nn.Module]] = {
    "gan": Discriminator,
    "ot": OptimalTransport,
    "ct": ConditionalTransport,
}


def build_matcher(config: Namespace, dim: int) -> nn.Module:
    return MATCHERS[str(config.alignment)](config, dim)
