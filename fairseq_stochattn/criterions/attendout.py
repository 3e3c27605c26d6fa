"""The task's own loss of two players, and every T updates the turn of the game between them.

``--arch roberta_attendout --criterion attendout --attendout-steps 20``
Attacker and defender see the same batches. The attacker is the model; the defender and what the
game remembers are this criterion's, so they are in checkpoints where a criterion's state is, and
nobody but training loads them. Logged: ``defender_loss``, ``drop_<site>_<layer>`` (the mean
probability to drop a cell), and of the last turn ``reward``, ``baseline``, ``attacker_won`` (it
scored higher; 0.5: neither), ``attacker_kept`` (both go on from it).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import torch
from fairseq.criterions import register_criterion
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.logging import metrics
from torch import Tensor, nn

from fairseq_stochattn.attention.dropout_maker import DropoutMaker
from fairseq_stochattn.compat import loss_scale, took_step
from fairseq_stochattn.criterions.attention_losses import AttentionLosses, wrapping_config
from fairseq_stochattn.errors import UsageError, require_not_negative, require_positive
from fairseq_stochattn.game import OPTIMIZERS, REWARDS, SURVIVORS, Game, Result, Rules
from fairseq_stochattn.held_out import HeldOut, summed_over_ranks

logger = logging.getLogger(__name__)


@dataclass
class AttendOutConfig(FairseqDataclass):
    attendout_steps: int = field(
        default=20, metadata={"help": "T, the dropout step: updates between two turns of the game"}
    )
    attendout_samples: int = field(
        default=0,
        metadata={"help": "random held-out samples by which a turn is decided; 0: T, as the paper"},
    )
    attendout_subset: str = field(
        default="",
        metadata={
            "help": "the set they are drawn from, which the model is then not blind to; by default "
            "the first of --valid-subset, as in the paper"
        },
    )
    attendout_reward: ChoiceEnum(list(REWARDS)) = field(
        default="scores",
        metadata={
            "help": "attacker's minus defender's score, which is the accuracy where the criterion "
            "counts right answers and −loss elsewhere; the sign of that; or of −losses"
        },
    )
    attendout_baseline_decay: float = field(
        default=0.9, metadata={"help": "decay of b, the moving average of the reward"}
    )
    attendout_optimizer: ChoiceEnum(list(OPTIMIZERS)) = field(
        default="adam", metadata={"help": "what the generator learns with, once a turn"}
    )
    attendout_lr: float = field(default=1e-3, metadata={"help": "its learning rate"})
    attendout_survivor: ChoiceEnum(list(SURVIVORS)) = field(
        default="softmax",
        metadata={
            "help": "who both go on from: the attacker with probability σ(difference of scores / "
            "temperature), in proportion to accuracies (likelihoods), or always the better"
        },
    )
    attendout_temperature: float = field(default=0.05, metadata={"help": "of softmax"})
    attendout_optimizer_state: ChoiceEnum(["follow", "keep"]) = field(
        default="follow",
        metadata={"help": "the optimizer's state goes to the other with the parameters, or not"},
    )


@register_criterion(
    "attendout", dataclass=wrapping_config("AttendOutCriterionConfig", AttendOutConfig)
)
class AttendOutCriterion(AttentionLosses):
    """Loss of the attacker + loss of the defender; turns between updates."""

    def __init__(self, task: Any, task_criterion: Any, cfg: Any) -> None:
        super().__init__(task, task_criterion, cfg)
        self.rules = checked_rules(cfg)
        self.samples = cfg.attendout_samples or cfg.attendout_steps
        self.game: Game | None = None
        self.held_out: HeldOut | None = None

    def attach(self, model: nn.Module, config: Any) -> None:
        """Meet the model; ``config`` is that of the whole run."""
        refuse_impossible(model, config, self.rules)
        split = self.cfg.attendout_subset or config.dataset.valid_subset.split(",")[0]
        self.held_out = HeldOut(self.task, model, config, split, "--attendout-subset")
        self.game = Game(model, self.rules, config.common.seed)
        self.task.train_step = self._within(self.task.train_step)
        self.task.optimizer_step = self._before_turn(self.task.optimizer_step)

    def forward(
        self, model: nn.Module, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, Any, dict[str, Any]]:
        loss, sample_size, log = super().forward(model, sample, reduce)
        if not model.training:
            return loss, sample_size, log
        if self.game is None:
            raise UsageError("--criterion attendout trains within fairseq's Trainer alone")
        other, _, other_log = super().forward(self.game.defender, sample, reduce)
        log["attention/defender_loss"] = torch.as_tensor(other_log["loss"]).sum() / math.log(2)
        return loss + other, sample_size, log

    def train(self, mode: bool = True) -> AttendOutCriterion:
        """fairseq calls it once an update, before the first batch."""
        if mode and self.game is not None:
            self.game.forget_record()
        return super().train(mode)

    def load_state_dict(self, state: dict[str, Any] | None, *args: Any, **kwargs: Any) -> Any:
        """A checkpoint without this game, or of another model's, begins a new one."""
        own = self.state_dict()
        stored = {} if state is None else state
        same = own.keys() == stored.keys() and all(
            getattr(value, "shape", None) == getattr(stored[name], "shape", None)
            for name, value in own.items()
        )
        if same:
            return super().load_state_dict(stored, *args, **kwargs)
        logger.info("the checkpoint has no game of this model: a new one begins")

    def _within(self, train_step: Callable) -> Callable:
        """One batch of an update; a dummy, which fills up a rank, teaches the generator nothing."""

        @wraps(train_step)
        def step(
            sample: Any,
            model: nn.Module,
            criterion: Any,
            optimizer: Any,
            update_num: int,
            ignore_grad: bool = False,
            **more: Any,
        ) -> Any:
            self.game.begin_update(update_num, optimizer)
            self.game.defender.set_num_updates(update_num)
            for maker in self.game.makers:
                maker.learning = not ignore_grad
            try:
                return train_step(
                    sample, model, criterion, optimizer, update_num, ignore_grad, **more
                )
            finally:
                for maker in self.game.makers:
                    maker.learning = False

        return step

    def _before_turn(self, optimizer_step: Callable) -> Callable:
        @wraps(optimizer_step)
        def step(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            scale = loss_scale(optimizer)
            optimizer_step(optimizer, *args, **kwargs)
            if took_step(optimizer, scale) and self.game.end_update():
                self.play_turn(optimizer)
            for name, value in self.game.last_turn.items():
                metrics.log_scalar(name, value, round=4)

        return step

    def play_turn(self, optimizer: Any) -> None:
        random = self.game.random()
        numbers = self.held_out.draw(self.samples, random)
        players = self.game.attacker, self.game.defender
        results = [self.result_of(player, numbers) for player in players]
        self.game.end_turn(*results, random.random(), optimizer)

    @torch.no_grad()
    def result_of(self, player: nn.Module, numbers: Any) -> Result:
        """Of one player on held-out samples, over all ranks."""
        device = next(player.parameters()).device
        totals = torch.zeros(4, dtype=torch.float64, device=device)
        player.eval()
        for sample in self.held_out.batches(numbers, device):
            _, size, log = self.task_criterion(player, sample)
            counted = size if "ncorrect" in log else 0
            row = (log["loss"], log.get("ncorrect", 0), size, counted)
            totals += torch.stack([torch.as_tensor(x, device=device).double() for x in row])
        player.train()
        loss, right, size, counted = summed_over_ranks(totals).tolist()
        return Result(loss / max(size, 1), right / counted if counted else None)


def checked_rules(cfg: Any) -> Rules:
    """Refuse what makes no sense."""
    require_positive(cfg, "attendout_steps", "attendout_lr", "attendout_temperature")
    require_not_negative(cfg, "attendout_samples")
    if not 0 <= cfg.attendout_baseline_decay < 1:
        raise UsageError("--attendout-baseline-decay must be at least 0 and below 1")
    return Rules(
        steps=cfg.attendout_steps,
        reward=str(cfg.attendout_reward),
        baseline_decay=cfg.attendout_baseline_decay,
        survivor=str(cfg.attendout_survivor),
        temperature=cfg.attendout_temperature,
        optimizer=str(cfg.attendout_optimizer),
        lr=cfg.attendout_lr,
        state_follows=str(cfg.attendout_optimizer_state) == "follow",
    )


def refuse_impossible(model: nn.Module, config: Any, rules: Rules) -> None:
    if not any(isinstance(module, DropoutMaker) for module in model.modules()):
        raise UsageError(
            "--criterion attendout needs an arch with attendout attention, e.g. roberta_attendout "
            f"or --attention attendout, not {config.model._name}"
        )
    if config.optimization.use_bmuf:
        raise UsageError(
            "--use-bmuf keeps parameters where --criterion attendout cannot reach them"
        )
    if config.distributed_training.zero_sharding == "os" and rules.state_follows:
        raise UsageError(
            "--zero-sharding os scatters the optimizer's state over ranks; "
            "add --attendout-optimizer-state keep"
        )
