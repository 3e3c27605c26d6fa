"""The game of AttendOut (Wu et al. 2021, §4): attacker, defender, and the generator's policy.

Every T updates both players are scored. The generator climbs Eq. 5,
∇J = Σ_t 1/m Σ_k ∇ log P(a_t) (r − b), and both go on from one of the two, drawn by their scores.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from fairseq.optim import FairseqOptimizer
from torch import Tensor, nn

from fairseq_stochattn.attention.attendout import AttendOut
from fairseq_stochattn.attention.dropout_maker import DropoutMaker
from fairseq_stochattn.held_out import summed_over_ranks
from fairseq_stochattn.optim.twins import copy_to_twins

OPTIMIZERS = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}
REWARDS = ("scores", "sign", "losses")
SURVIVORS = ("softmax", "proportional", "better")


@dataclass(frozen=True)
class Rules:
    """What the paper leaves open."""

    steps: int = 20  # T
    reward: str = "scores"
    baseline_decay: float = 0.9
    survivor: str = "softmax"
    temperature: float = 0.05
    optimizer: str = "adam"
    lr: float = 1e-3
    state_follows: bool = True


@dataclass(frozen=True)
class Result:
    """How a player did: the mean loss, and the share of right answers where these are counted."""

    loss: float
    accuracy: float | None

    def score(self, reward: str) -> float:
        """The higher the better."""
        return -self.loss if self.accuracy is None or reward == "losses" else self.accuracy


def reward_of(attacker: float, defender: float, kind: str) -> float:
    """r, positive where the attacker won."""
    difference = attacker - defender
    return float(np.sign(difference)) if kind == "sign" else difference


def survival(attacker: Result, defender: Result, rules: Rules) -> float:
    """The probability that both go on from the attacker."""
    a, d = attacker.score(rules.reward), defender.score(rules.reward)
    if a == d:
        return 0.5
    if rules.survivor == "better":
        return float(a > d)
    if rules.survivor == "softmax":
        return 0.5 + 0.5 * math.tanh((a - d) / rules.temperature / 2)
    if attacker.accuracy is None or rules.reward == "losses":
        return 0.5 + 0.5 * math.tanh((a - d) / 2)  # in proportion to the likelihoods, exp(−loss)
    return a / (a + d)


def without_attendout(model: nn.Module) -> nn.Module:
    """A copy of the model with everything but the generator and its dropout."""
    twin = copy.deepcopy(model)
    name = AttendOut.name
    for module in twin.modules():
        for methods in (getattr(module, "attention_methods", {}), getattr(module, "shared", {})):
            if name in methods:
                del methods[name]
        if hasattr(module, "stack"):
            stack = module.stack
            stack.methods = [m for m in stack.methods if not isinstance(m, AttendOut)]
    own = dict(model.named_parameters())
    for key, parameter in twin.named_parameters():
        vars(parameter).update(vars(own[key]))  # a layer's share of the learning rate
    return twin


class Game(nn.Module):
    """The defender as a module of its own, and all that has to outlive an update.

    The attacker is the model itself, which trains, generates and is saved as ever; it is known
    here, but no part of this module.
    """

    def __init__(self, model: nn.Module, rules: Rules, seed: int) -> None:
        super().__init__()
        self.rules, self.seed = rules, seed
        self.defender = without_attendout(model)
        self._attacker = [model]  # in a list, so that it is no child
        self.updates: int | None = None  # of the run; None before it begins
        self.makers = [m for m in model.modules() if isinstance(m, DropoutMaker)]
        for maker in self.makers:
            maker.in_game = True
        self.reset()

    def reset(self) -> None:
        """What a new game begins with, but for the players."""
        self.turn = 0
        self.baseline = 0.0  # b
        self.last_turn: dict[str, float] = {}  # for the log
        self.traces: list[Tensor] = []  # Σ_t 1/m Σ_k ∇ log P(a_t) of this turn, a maker each
        parameters = [p for maker in self.makers for p in maker.parameters()]
        self.policy = OPTIMIZERS[self.rules.optimizer](parameters, lr=self.rules.lr)

    @property
    def attacker(self) -> nn.Module:
        return self._attacker[0]

    def begin_update(self, update: int, optimizer: FairseqOptimizer) -> None:
        """Go on, or begin anew where the model is not the one of the game: at the start, and when a
        checkpoint without this game was loaded."""
        if self.updates == update:
            return
        self.updates = update
        self.reset()
        self.restart_from(self.attacker, optimizer)

    def forget_record(self) -> None:
        """What an update has left that was not finished (out of memory, overflow)."""
        for maker in self.makers:
            maker.take_record()

    def end_update(self) -> bool:
        """An update was made: add its actions to the trace. Whether the turn is over."""
        traces = []
        for maker in self.makers:
            slope, sentences = maker.take_record()
            # Over ranks at once, so that the checkpoint, which one of them writes, has it all.
            total = summed_over_ranks(torch.cat([slope, slope.new_tensor([sentences])]))
            traces.append(total[:-1] / total[-1].clamp(min=1))
        before = self.traces or [torch.zeros_like(trace) for trace in traces]
        self.traces = [a + b for a, b in zip(before, traces, strict=True)]
        self.updates += 1
        return self.updates % self.rules.steps == 0

    def random(self) -> np.random.Generator:
        """The chance of this turn: the same on all ranks, and after resuming."""
        return np.random.default_rng((self.seed, self.turn))

    def end_turn(
        self, attacker: Result, defender: Result, chance: float, optimizer: FairseqOptimizer
    ) -> None:
        """Reward the generator, let one player survive; ``chance`` is uniform."""
        scores = [player.score(self.rules.reward) for player in (attacker, defender)]
        reward = reward_of(*scores, self.rules.reward)
        self.learn(reward)
        kept = chance < survival(attacker, defender, self.rules)
        self.restart_from(self.attacker if kept else self.defender, optimizer)
        self.turn += 1
        self.last_turn = {
            "reward": reward,
            "baseline": self.baseline,
            "attacker_won": 0.5 + 0.5 * float(np.sign(scores[0] - scores[1])),
            "attacker_kept": float(kept),
        }

    def learn(self, reward: float) -> None:
        """A step of the policy up Eq. 5; then the baseline moves towards the reward."""
        advantage = reward - self.baseline
        for maker, trace in zip(self.makers, self.traces, strict=True):
            parameters = list(maker.parameters())
            parts = trace.split([p.numel() for p in parameters])
            for parameter, part in zip(parameters, parts, strict=True):
                parameter.grad = (-advantage * part).view_as(parameter)
        self.policy.step()
        self.policy.zero_grad()
        self.traces = []
        decay = self.rules.baseline_decay
        self.baseline = decay * self.baseline + (1 - decay) * reward

    def restart_from(self, winner: nn.Module, optimizer: FairseqOptimizer) -> None:
        """Both players are what ``winner`` is."""
        loser = self.defender if winner is self.attacker else self.attacker
        source, target = dict(winner.named_parameters()), dict(loser.named_parameters())
        names = [name for name, _ in self.defender.named_parameters()]
        pairs = [(source[name], target[name]) for name in names]
        copy_to_twins(pairs, optimizer, with_state=self.rules.state_follows)

    def get_extra_state(self) -> dict[str, Any]:
        return {
            "updates": self.updates,
            "turn": self.turn,
            "baseline": self.baseline,
            "last_turn": self.last_turn,
            "traces": self.traces,
            "policy": self.policy.state_dict(),
        }

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.updates, self.turn, self.baseline = state["updates"], state["turn"], state["baseline"]
        self.last_turn = state["last_turn"]
        self.policy.load_state_dict(state["policy"])
        device = next(self.makers[0].parameters()).device
        self.traces = [trace.to(device) for trace in state["traces"]]
