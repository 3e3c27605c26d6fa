"""The training loop of AttendOut (Wu et al. 2021, §4): two players and the generator's policy.

The attacker trains with the generator's dropout, the defender without it. Every T updates a round
ends: both players are scored, the generator takes a step along the policy gradient (Eq. 5)
∇J = Σ_t 1/m Σ_k ∇ log P(a_t) (r − b), and both players continue from the parameters of one of them,
which is chosen by the scores. a_t are the dropped pairs in update t, which has m sentences k; r is
the reward and b its moving average.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from ...core.errors import InputError, SettingError, require_not_negative, require_positive
from ...core.method import MethodDict
from ...core.settings import Settings, setting
from ...core.stack import AttentionStack
from .attention import AttendOutAttention
from .generator import DropoutGenerator

OPTIMIZERS = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}
Pairs = list[tuple[nn.Parameter, nn.Parameter]]  # (from, to)


@dataclass(frozen=True)
class LoopSettings(Settings):
    """Settings of the training loop."""

    method = "attendout"

    steps: int = setting(20, "T, the dropout step: number of updates per round")
    samples: int = setting(
        64,
        "number of random examples of the reward set that score a round; 0 means T, as in the "
        "paper",
    )
    holdout: int = setting(
        20,
        "every N-th training example belongs to the reward set and is not trained on; without "
        "effect if --attendout-subset is given",
    )
    subset: str = setting(
        "",
        "split that serves as the reward set, in place of a part of the training set: valid for "
        "the paper's way, after which results on it no longer measure generalisation",
    )
    reward: Literal["scores", "sign", "losses"] = setting(
        "losses",
        "reward of the generator: the attacker's score minus the defender's, where a score is the "
        "accuracy if the criterion counts correct answers and −loss otherwise (scores); the sign "
        "of this difference (sign); or the difference of −loss in any case (losses)",
    )
    baseline_decay: float = setting(0.9, "decay of b, the moving average of the reward")
    optimizer: Literal["adam", "sgd"] = setting(
        "adam", "optimizer of the generator, which takes one step per round"
    )
    lr: float = setting(1e-3, "learning rate of the generator")
    frozen: bool = setting(
        False, "ablation: the generator does not learn, so its dropout stays random"
    )
    no_drops: bool = setting(False, "ablation: nothing is dropped, both players train alike")
    survivor: Literal["softmax", "proportional", "better", "attacker"] = setting(
        "softmax",
        "player that both continue from: the attacker with probability σ(difference of scores / "
        "temperature) (softmax), with probabilities in proportion to the accuracies or likelihoods "
        "(proportional), always the player with the higher score (better), or always the attacker, "
        "an ablation without a choice (attacker)",
    )
    temperature: float = setting(0.05, "temperature of --attendout-survivor softmax")
    optimizer_state: Literal["follow", "keep"] = setting(
        "follow",
        "optimizer state of the player that is overwritten: copied together with the parameters "
        "(follow), or unchanged (keep)",
    )

    def check(self) -> None:
        require_positive(self, "steps", "lr", "temperature")
        require_not_negative(self, "samples")
        if self.holdout < 2:
            raise SettingError(self, "holdout", "must be at least 2")
        if not 0 <= self.baseline_decay < 1:
            raise SettingError(self, "baseline_decay", "must be at least 0 and below 1")


@dataclass(frozen=True)
class PlayerResult:
    """A player's mean loss on the reward set, and its accuracy if the task has one."""

    loss: float
    accuracy: float | None

    def score(self, reward: str) -> float:
        """Accuracy or −loss: higher is better."""
        return -self.loss if self.accuracy is None or reward == "losses" else self.accuracy


def reward_of(attacker: float, defender: float, kind: str) -> float:
    """The reward r from both scores; positive if the attacker's is higher."""
    difference = attacker - defender
    return float(np.sign(difference)) if kind == "sign" else difference


def survival(attacker: PlayerResult, defender: PlayerResult, settings: LoopSettings) -> float:
    """The probability that both players continue from the attacker."""
    a, d = attacker.score(settings.reward), defender.score(settings.reward)
    if settings.survivor == "attacker":
        return 1.0
    if a == d:
        return 0.5
    if settings.survivor == "better":
        return float(a > d)
    if settings.survivor == "softmax":
        return 0.5 + 0.5 * math.tanh((a - d) / settings.temperature / 2)
    if attacker.accuracy is None or settings.reward == "losses":
        return 0.5 + 0.5 * math.tanh((a - d) / 2)  # in proportion to the likelihoods, exp(−loss)
    return a / (a + d)


def without_attendout(model: nn.Module) -> nn.Module:
    """A deep copy of the model without the generator and its dropout."""
    twin = copy.deepcopy(model)
    name = AttendOutAttention.name
    for module in twin.modules():
        if isinstance(module, MethodDict) and name in module:
            del module[name]
        if isinstance(module, AttentionStack):
            module.methods = [m for m in module.methods if not isinstance(m, AttendOutAttention)]
    original = dict(model.named_parameters())
    for key, parameter in twin.named_parameters():
        # deepcopy drops attributes of parameters, such as a layer's learning-rate factor.
        vars(parameter).update(vars(original[key]))
    return twin


def copy_embeddings(model: nn.Module) -> None:
    """Give every generator that wants it a copy of the word embedding of its side of the model."""
    sides = {name: module for name, module in model.named_modules() if name}
    for name, generator in sides.items():
        if not (isinstance(generator, DropoutGenerator) and generator.copies_embedding):
            continue
        tables = {
            key: module.weight
            for key, module in sides.items()
            if isinstance(module, nn.Embedding) and key.endswith("embed_tokens")
        }
        if not tables:
            raise InputError("--attendout-embedding model: the model has no word embedding")
        side = "decoder" if "decoder" in name else "encoder"
        key = next((key for key in tables if side in key), next(iter(tables)))
        generator.copy_embedding(tables[key])


class PolicySignal:
    """The signal-to-noise ratio of the policy gradient g: ‖E g‖² / (E‖g‖² − ‖E g‖²).

    Gradients of different rounds are independent given the generator, which changes slowly, so the
    product of consecutive gradients estimates ‖E g‖² without bias. A generator that walks at
    random has a ratio around 0.
    """

    def __init__(
        self,
        decay: float,
        previous: Tensor | None = None,
        product: float = 0.0,
        square: float = 0.0,
    ) -> None:
        self.decay, self.previous, self.product, self.square = decay, previous, product, square

    def add(self, gradient: Tensor) -> None:
        """Add the gradient of one round, a flat vector."""
        if self.previous is not None:
            product = torch.dot(gradient, self.previous.to(gradient)).item()
            square = torch.dot(gradient, gradient).item()
            self.product = self.decay * self.product + (1 - self.decay) * product
            self.square = self.decay * self.square + (1 - self.decay) * square
        self.previous = gradient

    @property
    def ratio(self) -> float:
        """The ratio over the last rounds; 0 before the second round."""
        noise = self.square - self.product
        return self.product / noise if noise > 0 else 0.0

    def state(self) -> tuple[Tensor | None, float, float]:
        """The state for checkpoints."""
        return self.previous, self.product, self.square


class TwoPlayerLoop(nn.Module):
    """Holds the defender, a child module, and all state that outlives an update.

    The attacker is the model itself, which is trained, used and saved as usual; it is not a child.
    ``copy_parameters(pairs, optimizer)`` copies parameters and, depending on the settings, their
    optimizer state. ``reduce`` sums a tensor over all ranks.
    """

    def __init__(
        self,
        model: nn.Module,
        settings: LoopSettings,
        seed: int,
        copy_parameters: Callable[[Pairs, Any], None],
        reduce: Callable[[Tensor], Tensor] = lambda values: values,
    ) -> None:
        super().__init__()
        self.settings, self.seed = settings, seed
        self.copy_parameters, self.reduce = copy_parameters, reduce
        self.defender = without_attendout(model)
        self._attacker = [model]  # in a list, so that torch does not register it as a child
        self.updates: int | None = None  # number of updates of the run; None before the first
        self.generators = [m for m in model.modules() if isinstance(m, DropoutGenerator)]
        for generator in self.generators:
            generator.in_training_loop = True
            generator.drops = not settings.no_drops
        self.reset()

    def reset(self) -> None:
        """Start a new sequence of rounds. Both players keep their parameters."""
        self.rounds = 0  # number of finished rounds
        self.signal = PolicySignal(self.settings.baseline_decay)
        self.draw_actions()
        self.baseline = 0.0  # b
        self.last_round: dict[str, float] = {}  # for the log
        self.traces: list[Tensor] = []  # Σ_t 1/m Σ_k ∇ log P(a_t) of this round, per generator
        parameters = [p for generator in self.generators for p in generator.parameters()]
        self.policy = OPTIMIZERS[self.settings.optimizer](parameters, lr=self.settings.lr)

    @property
    def attacker(self) -> nn.Module:
        return self._attacker[0]

    def begin_update(self, update: int, optimizer: Any) -> None:
        """Start a new sequence of rounds if ``update`` is not the next update of this loop.

        That happens at the start of a run, and after loading a checkpoint without a training loop.
        """
        if self.updates == update:
            return
        self.updates = update
        self.reset()
        self.restart_from(self.attacker, optimizer)
        copy_embeddings(self.attacker)

    def discard_gradients(self) -> None:
        """Drop the gradients of an unfinished update (out of memory, overflow)."""
        for generator in self.generators:
            generator.take_gradients()

    def end_update(self) -> bool:
        """Add a finished update's gradients to the trace; returns whether the round is over."""
        traces = []
        for generator in self.generators:
            grad, sentences = generator.take_gradients()
            # Summed over ranks in every update, since only one rank writes the checkpoint.
            total = self.reduce(torch.cat([grad, grad.new_tensor([sentences])]))
            traces.append(total[:-1] / total[-1].clamp(min=1))
        previous = self.traces or [torch.zeros_like(trace) for trace in traces]
        self.traces = [a + b for a, b in zip(previous, traces, strict=True)]
        self.updates += 1
        return self.updates % self.settings.steps == 0

    def random(self) -> np.random.Generator:
        """The random numbers of this round: the same on all ranks, and after resuming."""
        return np.random.default_rng((self.seed, self.rounds))

    def draw_actions(self) -> None:
        """Draw the actions of a round for generators whose actions are those of layers."""
        random = np.random.default_rng((self.seed, self.rounds, 1))
        for generator in self.generators:
            noise = random.standard_normal(len(generator.layers))
            generator.noise = torch.as_tensor(noise, dtype=torch.float32)

    def end_round(
        self, attacker: PlayerResult, defender: PlayerResult, chance: float, optimizer: Any
    ) -> None:
        """Reward the generator, and let both players continue from one of them.

        ``chance``, uniform on [0, 1), decides which one.
        """
        scores = [player.score(self.settings.reward) for player in (attacker, defender)]
        reward = reward_of(*scores, self.settings.reward)
        self.learn(reward)
        kept = chance < survival(attacker, defender, self.settings)
        self.restart_from(self.attacker if kept else self.defender, optimizer)
        self.rounds += 1
        self.draw_actions()
        self.last_round = {
            "reward": reward,
            "baseline": self.baseline,
            "attacker_won": 0.5 + 0.5 * float(np.sign(scores[0] - scores[1])),
            "attacker_kept": float(kept),
            "policy_snr": self.signal.ratio,
        }

    def learn(self, reward: float) -> None:
        """One step of the generator along Eq. 5; then the baseline moves towards the reward."""
        advantage = reward - self.baseline
        self.signal.add(torch.cat(self.traces) * advantage)
        for generator, trace in zip(self.generators, self.traces, strict=True):
            parameters = list(generator.parameters())
            parts = trace.split([p.numel() for p in parameters])
            for parameter, part in zip(parameters, parts, strict=True):
                parameter.grad = (-advantage * part).view_as(parameter)
        if not self.settings.frozen:
            self.policy.step()
        self.policy.zero_grad()
        self.traces = []
        decay = self.settings.baseline_decay
        self.baseline = decay * self.baseline + (1 - decay) * reward

    def restart_from(self, winner: nn.Module, optimizer: Any) -> None:
        """Copy the parameters of ``winner`` to the other player."""
        loser = self.defender if winner is self.attacker else self.attacker
        source, target = dict(winner.named_parameters()), dict(loser.named_parameters())
        names = [name for name, _ in self.defender.named_parameters()]
        self.copy_parameters([(source[name], target[name]) for name in names], optimizer)

    def get_extra_state(self) -> dict[str, Any]:
        """The state for checkpoints; "turn" is the name of a round in their format."""
        return {
            "updates": self.updates,
            "turn": self.rounds,
            "baseline": self.baseline,
            "last_turn": self.last_round,
            "traces": self.traces,
            "policy": self.policy.state_dict(),
            "signal": self.signal.state(),
        }

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.updates, self.rounds = state["updates"], state["turn"]
        self.baseline, self.last_round = state["baseline"], state["last_turn"]
        self.policy.load_state_dict(state["policy"])
        device = next(self.generators[0].parameters()).device
        self.traces = [trace.to(device) for trace in state["traces"]]
        self.signal = PolicySignal(self.settings.baseline_decay, *state.get("signal", ()))
        self.draw_actions()
