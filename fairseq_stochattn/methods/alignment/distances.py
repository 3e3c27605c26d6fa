"""The distances of alignment attention (Zhang et al. 2021, §2.3): gan, ot and ct.

A matcher maps queries q (B, H, T, d) and keys k (B, H, S, d) to one loss per sentence and head,
(B, H). Its networks are shared by all heads and applied to non-padding tokens only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .gan_loss import DiscriminatorWeights, gan_loss, input_gradients
from .networks import HeadEmbedding, Highway, mlp, run
from .tokens import TokenSet, pack
from .transport import conditional_transport, cosine_cost, euclidean_cost, sinkhorn

if TYPE_CHECKING:
    from .attention import Alignment

# The discriminator's penalty is estimated on every 32nd token, which is accurate and costs little.
PENALTY_STRIDE = 32


class Matcher(nn.Module, ABC):
    """A distance between the queries and the keys of every sentence and head."""

    has_penalty = False  # whether ``penalty`` has to be added to the loss in training

    @abstractmethod
    def forward(self, q: Tensor, k: Tensor, queries: TokenSet, keys: TokenSet) -> Tensor:
        """The loss of every sentence and head, (B, H)."""

    def total(self, q: Tensor, k: Tensor, queries: TokenSet, keys: TokenSet) -> Tensor:
        """The sum of the losses of all heads and sentences with queries and keys, a scalar."""
        present = (queries.present & keys.present).unsqueeze(1)  # (B, 1)
        return (self(q, k, queries, keys) * present).sum()

    def penalty(self, q: Tensor, k: Tensor, queries: TokenSet, keys: TokenSet) -> Tensor:
        """A penalty on the networks of the matcher in training, a scalar."""
        return q.new_zeros(())


class Discriminator(Matcher):
    """Eq. 2: D predicts the probability that a vector is a query rather than a key.

    One network is used for all heads. Three additions to the paper make the training converge; each
    has a flag. D is conditioned on the head; otherwise queries and keys would be matched over all
    heads together, not in each head. D has a penalty on its gradient (R1, Mescheder et al. 2018),
    without which minimax training by gradient reversal oscillates. D has a higher learning rate
    than the model (Heusel et al. 2017).
    """

    def __init__(self, settings: Alignment, heads: int, dim: int) -> None:
        super().__init__()
        head_embedding = [] if settings.gan_blind else [HeadEmbedding(heads, dim)]
        self.d = nn.Sequential(*head_embedding, Highway(dim), *mlp(dim, settings.hidden, 1))
        self.blind = settings.gan_blind
        self.rate, self.gamma = settings.gan_rate, settings.gan_penalty
        self.has_penalty = self.gamma > 0
        with torch.no_grad():
            for parameter in self.d.parameters():
                parameter.div_(self.rate)

    def forward(self, q: Tensor, k: Tensor, queries: TokenSet, keys: TokenSet) -> Tensor:
        """−E_q log D(q) − E_k log(1 − D(k)), (B, H). D minimises this loss, q and k maximise it."""
        rows, counts = pack(q, k, queries, keys, reverse=True)
        logit_q, logit_k = run(self.d, rows, rate=self.rate).split(counts)
        logit_q = queries.unpack(logit_q).squeeze(-1)  # (B, H, T)
        logit_k = keys.unpack(logit_k).squeeze(-1)  # (B, H, S)
        loss_q = (F.softplus(-logit_q) * queries.mass).sum(dim=-1)  # softplus(−x) = −log σ(x)
        loss_k = (F.softplus(logit_k) * keys.mass).sum(dim=-1)
        return loss_q + loss_k

    def total(self, q: Tensor, k: Tensor, queries: TokenSet, keys: TokenSet) -> Tensor:
        """As in ``Matcher``, but if gradients are needed, by ``gan_loss``, which is faster."""
        if not torch.is_grad_enabled():
            return super().total(q, k, queries, keys)
        present = queries.present & keys.present  # (B,)
        return gan_loss(
            *(x.permute(2, 0, 1, 3).flatten(0, 1) for x in (q, k)),  # (L·B, H, d) each
            (queries.index, keys.index),
            (queries.token_weights(present), keys.token_weights(present)),
            self.weights(q),
        )

    def weights(self, x: Tensor) -> DiscriminatorWeights:
        """The parameters of D, multiplied by ``rate``, in the precision of x (see ``run``)."""
        parameters = [p.to(x.dtype) * self.rate for p in self.d.parameters()]
        if self.blind:
            parameters.insert(0, x.new_zeros(1, x.size(-1)))
        return DiscriminatorWeights(*parameters)

    def penalty(self, q: Tensor, k: Tensor, queries: TokenSet, keys: TokenSet) -> Tensor:
        """R1 = γ/2·E_q ‖∇D(q)‖² + γ/2·E_k ‖∇D(k)‖², where D is the logit before the sigmoid."""
        some = [tokens.subsample(x, PENALTY_STRIDE) for tokens, x in ((queries, q), (keys, k))]
        grad_x = input_gradients(torch.cat(some).detach(), self.weights(q))  # (nH, d)
        if queries.kept is None and keys.kept is None:
            return self.gamma * grad_x.square().sum() / len(grad_x)
        weights = [
            tokens.subsampled_weights(rows, PENALTY_STRIDE)
            for tokens, rows in zip((queries, keys), some, strict=True)
        ]
        heads = q.size(1)
        squares = grad_x.square().sum(dim=-1).unflatten(0, (-1, heads)).sum(dim=-1)  # (n,)
        weight = torch.cat(weights)
        return self.gamma * torch.dot(squares, weight) / (heads * weight.sum()).clamp(min=1)


class OptimalTransport(Matcher):
    """Eq. 3: the cost of the entropic transport plan. This distance has no parameters."""

    def __init__(self, settings: Alignment, heads: int, dim: int) -> None:
        super().__init__()
        self.cost = cosine_cost if settings.cost == "cosine" else euclidean_cost
        # Squared distances have any scale, so ε would have no meaning without the division.
        self.divided = settings.cost == "euclidean" and settings.recipe != "paper"
        self.epsilon = settings.ot_epsilon
        self.iterations = settings.ot_iterations

    def forward(self, q: Tensor, k: Tensor, queries: TokenSet, keys: TokenSet) -> Tensor:
        cost = self.cost(q, k)
        if self.divided:
            cost = cost / mean_cost(cost.detach(), queries, keys)
        plan = sinkhorn(cost.detach(), queries.mass, keys.mass, self.epsilon, self.iterations)
        return (cost * plan).sum(dim=(-2, -1))


def mean_cost(cost: Tensor, queries: TokenSet, keys: TokenSet) -> Tensor:
    """The mean of the cost (B, H, T, S) over all pairs of tokens, (B, H, 1, 1)."""
    pairs = queries.mass.unsqueeze(-1) * keys.mass.unsqueeze(-2)  # (B, 1, T, S)
    return (cost * pairs).sum(dim=(-2, -1), keepdim=True).clamp(min=1e-6)


class ConditionalTransport(Matcher):
    """Eq. 4: the navigator τ_φ gives the transport probabilities, the critic τ_η the costs.

    φ are the parameters of the navigator, η those of the critic. φ and the projections W_Q, W_K
    minimise the loss. η maximises it, so the gradient of η, and no other, is reversed.
    """

    def __init__(self, settings: Alignment, heads: int, dim: int) -> None:
        super().__init__()
        hidden = settings.hidden
        self.temperature = settings.ct_temperature
        self.navigator = nn.Sequential(*mlp(dim, hidden, hidden))
        self.critic = nn.Sequential(Highway(dim), *mlp(dim, hidden, hidden))

    def forward(self, q: Tensor, k: Tensor, queries: TokenSet, keys: TokenSet) -> Tensor:
        rows, counts = pack(q, k, queries, keys)
        phi_q, phi_k = run(self.navigator, rows).split(counts)  # τ_φ(q), τ_φ(k)
        eta_q, eta_k = run(self.critic, rows, adversary=True).split(counts)  # τ_η(q), τ_η(k)
        affinity = torch.matmul(queries.unpack(phi_q), keys.unpack(phi_k).transpose(-1, -2))
        cost = cosine_cost(queries.unpack(eta_q), keys.unpack(eta_k))  # (B, H, T, S)
        if self.temperature != 1:
            affinity = affinity / self.temperature
        return conditional_transport(affinity, cost, queries.mass, keys.mass)


MATCHERS: dict[str, type[Matcher]] = {
    "gan": Discriminator,
    "ot": OptimalTransport,
    "ct": ConditionalTransport,
}


def build_matcher(settings: Alignment, heads: int, dim: int) -> Matcher:
    """The matcher named by ``settings.distance``, for heads of dimension ``dim``."""
    return MATCHERS[settings.distance](settings, heads, dim)
