"""The distances of alignment attention (Zhang et al. 2021, §2.3) with their networks.

A matcher takes queries q (B, H, T, d) and keys k (B, H, S, d) and gives one loss a sentence and
head, (B, H). Its networks are shared by the heads and see real tokens only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from argparse import Namespace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from fairseq_stochattn.attention.judging import Judge, judgement, slopes
from fairseq_stochattn.distributions import at_least_float
from fairseq_stochattn.gradients import gather_rows, highway, reverse_gradient
from fairseq_stochattn.transport import (
    conditional_transport,
    cosine_cost,
    euclidean_cost,
    sinkhorn,
)

# The discriminator's penalty is estimated on every so many tokens: enough, and nearly free.
PENALTY_STRIDE = 32


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
        # Positions of the real tokens among all L·B: fairseq's projections lie that way in memory.
        self.index = None if padding is None else keep.t().flatten().nonzero().squeeze(1)
        self.length, self.batch = length, batch
        self.count = length * batch if self.index is None else len(self.index)

    def some(self, x: Tensor, stride: int) -> Tensor:
        """Every so many of the real tokens of x (B, H, L, d): (n, H, d)."""
        rows = x.permute(2, 0, 1, 3)  # (L, B, H, d)
        if self.index is None:
            return rows.flatten(0, 1)[::stride]
        index = self.index[::stride]
        return rows[index // self.batch, index % self.batch]

    def masses(self, present: Tensor) -> Tensor:
        """What every real token counts, (N,); nothing where its sentence is not ``present``."""
        mass = (self.mass.squeeze(1) * present.unsqueeze(1)).t().flatten()  # (L·B,)
        return mass if self.index is None else mass[self.index]

    def unpack(self, rows: Tensor) -> Tensor:
        """(N, H, e) → (B, H, L, e), 0 at padding."""
        if self.index is not None:
            every = rows.new_zeros((self.length * self.batch, *rows.shape[1:]))
            rows = every.index_copy(0, self.index, rows)
        return rows.unflatten(0, (self.length, self.batch)).permute(1, 2, 0, 3)


def pack(
    q: Tensor, k: Tensor, queries: Tokens, keys: Tokens, reverse: bool = False
) -> tuple[Tensor, list[int]]:
    """All real queries, then all real keys, (N, H, d), and how many there are of each.

    With ``reverse`` those who made them climb what lies behind descends.
    """
    sides = [x.permute(2, 0, 1, 3).flatten(0, 1) for x in (q, k)]  # (L·B, H, d) each
    rows = gather_rows(*sides, queries.index, keys.index, -1.0 if reverse else 1.0)
    return rows, [queries.count, keys.count]


def run(network: nn.Module, x: Tensor, adversary: bool = False, rate: float = 1.0) -> Tensor:
    """A network in the precision of x, whatever the model's.

    As an ``adversary`` its parameters climb where everybody else descends: the reversal stands
    before the parameters, so what flows on to x is the true gradient. Parameters that are stored
    as 1/``rate`` of what they mean learn ``rate`` times as fast under Adam and its relatives.
    """
    parameters = {name: p.to(x.dtype) for name, p in network.named_parameters()}
    if rate != 1:
        parameters = {name: p * rate for name, p in parameters.items()}
    if adversary:
        parameters = {name: reverse_gradient(p) for name, p in parameters.items()}
    return functional_call(network, parameters, (x,))


class Highway(nn.Module):
    """I_X = τ ⊙ ReLU(Φ_h(X)) + (1 − τ) ⊙ X with the gate τ = σ(Φ_τ(X)) (§2.3.1)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gate_and_transform = nn.Linear(dim, 2 * dim)  # Φ_τ and Φ_h, in one product

    def forward(self, x: Tensor) -> Tensor:
        return highway(x, self.gate_and_transform.weight, self.gate_and_transform.bias)


def mlp(dim: int, hidden: int, out: int) -> list[nn.Module]:
    """Φ_2(F_NL(Φ_1(·)))."""
    return [nn.Linear(dim, hidden), nn.LeakyReLU(), nn.Linear(hidden, out)]


class HeadEmbedding(nn.Module):
    """Adds to every vector what tells its head."""

    def __init__(self, heads: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(heads, dim))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.weight  # (N, H, d)


class Matcher(nn.Module, ABC):
    """A distance between the queries and the keys of every sentence and head."""

    pays = False  # whether its networks have a ``penalty``

    @abstractmethod
    def forward(self, q: Tensor, k: Tensor, queries: Tokens, keys: Tokens) -> Tensor:
        """(B, H)."""

    def total(self, q: Tensor, k: Tensor, queries: Tokens, keys: Tokens) -> Tensor:
        """The sum over heads and the sentences that have a token on both sides; a scalar."""
        present = (queries.present & keys.present).unsqueeze(1)  # (B, 1)
        return (self(q, k, queries, keys) * present).sum()

    def penalty(self, q: Tensor, k: Tensor, queries: Tokens, keys: Tokens) -> Tensor:
        """What its own networks pay in training; a scalar."""
        return q.new_zeros(())


class Discriminator(Matcher):
    """Eq. 2: D says how likely a token's vector is a query; one network for all heads.

    Three things beyond the paper make the game settle, each has a flag. D is told the head: blind
    to it, it only matches the mixture of all heads. D pays for its slope (R1, Mescheder et al.
    2018), without which a minimax game under gradient reversal circles. And D learns faster than
    those it judges (Heusel et al. 2017).
    """

    def __init__(self, config: Namespace, heads: int, dim: int) -> None:
        super().__init__()
        told = [] if config.alignment_gan_blind else [HeadEmbedding(heads, dim)]
        self.d = nn.Sequential(*told, Highway(dim), *mlp(dim, config.alignment_hidden, 1))
        self.blind = config.alignment_gan_blind
        self.rate, self.gamma = config.alignment_gan_rate, config.alignment_gan_penalty
        self.pays = self.gamma > 0
        with torch.no_grad():
            for parameter in self.d.parameters():
                parameter.div_(self.rate)

    def forward(self, q: Tensor, k: Tensor, queries: Tokens, keys: Tokens) -> Tensor:
        """−E_q log D(q) − E_k log(1 − D(k)), (B, H): D descends, queries and keys climb."""
        rows, sides = pack(q, k, queries, keys, reverse=True)
        of_q, of_k = run(self.d, rows, rate=self.rate).split(sides)
        of_q, of_k = queries.unpack(of_q).squeeze(-1), keys.unpack(of_k).squeeze(-1)  # (B, H, L)
        taken_for_keys = (F.softplus(-of_q) * queries.mass).sum(dim=-1)
        taken_for_queries = (F.softplus(of_k) * keys.mass).sum(dim=-1)
        return taken_for_keys + taken_for_queries

    def total(self, q: Tensor, k: Tensor, queries: Tokens, keys: Tokens) -> Tensor:
        if not torch.is_grad_enabled():
            return super().total(q, k, queries, keys)
        present = queries.present & keys.present  # (B,)
        return judgement(
            *(x.permute(2, 0, 1, 3).flatten(0, 1) for x in (q, k)),  # (L·B, H, d) each
            (queries.index, keys.index),
            (queries.masses(present), keys.masses(present)),
            self.judge(q),
        )

    def judge(self, x: Tensor) -> Judge:
        """The parameters as they act, in the precision of x."""
        own = [p.to(x.dtype) * self.rate for p in self.d.parameters()]
        return Judge(*([x.new_zeros(1, x.size(-1))] if self.blind else []), *own)

    def penalty(self, q: Tensor, k: Tensor, queries: Tokens, keys: Tokens) -> Tensor:
        """R1 on both sides: γ/2·E_q ‖∇D(q)‖² + γ/2·E_k ‖∇D(k)‖², D before the sigmoid."""
        some = [tokens.some(x, PENALTY_STRIDE) for tokens, x in ((queries, q), (keys, k))]
        slope = slopes(torch.cat(some).detach(), self.judge(q))  # (nH, d)
        return self.gamma * slope.square().sum() / len(slope)


class OptimalTransport(Matcher):
    """Eq. 3: the cost of the entropic plan; nothing to learn."""

    def __init__(self, config: Namespace, heads: int, dim: int) -> None:
        super().__init__()
        self.cost = cosine_cost if str(config.alignment_cost) == "cosine" else euclidean_cost
        self.epsilon = config.alignment_ot_epsilon
        self.iterations = config.alignment_ot_iterations

    def forward(self, q: Tensor, k: Tensor, queries: Tokens, keys: Tokens) -> Tensor:
        cost = self.cost(q, k)
        plan = sinkhorn(cost.detach(), queries.mass, keys.mass, self.epsilon, self.iterations)
        return (cost * plan).sum(dim=(-2, -1))


class ConditionalTransport(Matcher):
    """Eq. 4: the navigator τ_φ says who goes where, the critic τ_η what it costs.

    W_Q, W_K and φ descend. η climbs: the gradient is reversed where it enters η, and nowhere else.
    """

    def __init__(self, config: Namespace, heads: int, dim: int) -> None:
        super().__init__()
        hidden = config.alignment_hidden
        self.navigator = nn.Sequential(*mlp(dim, hidden, hidden))
        self.critic = nn.Sequential(Highway(dim), *mlp(dim, hidden, hidden))

    def forward(self, q: Tensor, k: Tensor, queries: Tokens, keys: Tokens) -> Tensor:
        rows, sides = pack(q, k, queries, keys)
        way_q, way_k = run(self.navigator, rows).split(sides)
        point_q, point_k = run(self.critic, rows, adversary=True).split(sides)
        affinity = torch.matmul(queries.unpack(way_q), keys.unpack(way_k).transpose(-1, -2))
        cost = cosine_cost(queries.unpack(point_q), keys.unpack(point_k))  # (B, H, T, S)
        return conditional_transport(affinity, cost, queries.mass, keys.mass)


MATCHERS: dict[str, type[Matcher]] = {
    "gan": Discriminator,
    "ot": OptimalTransport,
    "ct": ConditionalTransport,
}


def build_matcher(config: Namespace, heads: int, dim: int) -> Matcher:
    return MATCHERS[str(config.alignment)](config, heads, dim)
