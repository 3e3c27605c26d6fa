"""``--criterion attendout``: the task losses of two players; a round ends every T updates.

``--arch roberta_attendout --criterion attendout --attendout-steps 20``
Attacker and defender train on the same batches. The attacker is the model. The defender and the
state of the training loop belong to this criterion, so checkpoints store them as criterion state,
which only training loads. Logged: ``defender_loss``; ``drop_<site>_<layer>``, the mean probability
of dropping a (query, key) pair; and for the last round ``reward``, ``baseline``, ``attacker_won``
(1 if it scored higher, 0.5 for a draw), ``attacker_kept`` (1 if both players continue from it) and
``policy_snr``, the signal-to-noise ratio of the policy gradient.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import torch
from fairseq.criterions import register_criterion
from fairseq.logging import metrics
from torch import Tensor, nn

from ..compat import UsageError, loss_scale, took_step
from ..methods.attendout.generator import DropoutGenerator
from ..methods.attendout.training_loop import LoopSettings, PlayerResult, TwoPlayerLoop
from ..models.method_flags import settings_flags, settings_from
from ..optim.copy_parameters import copy_parameters
from .attention_losses import AttentionLosses, wrapping_config
from .reward_set import HeldOut, RewardSet, summed_over_ranks

logger = logging.getLogger(__name__)


@register_criterion(
    "attendout", dataclass=wrapping_config("AttendOutCriterionConfig", settings_flags(LoopSettings))
)
class AttendOutCriterion(AttentionLosses):
    """Loss of the attacker + loss of the defender; rounds end between updates."""

    def __init__(self, task: Any, task_criterion: Any, cfg: Any) -> None:
        super().__init__(task, task_criterion, cfg)
        self.settings = settings_from(LoopSettings, cfg)
        self.loop: TwoPlayerLoop | None = None
        self.reward_set: RewardSet | None = None

    def attach(self, model: nn.Module, config: Any) -> None:
        """Create the training loop for this model; ``config`` is that of the whole run.

        Called once by the Trainer, before the optimizer is built.
        """
        refuse_impossible(model, config, self.settings)
        if self.settings.subset:
            self.reward_set = RewardSet(
                self.task, model, config, self.settings.subset, "--attendout-subset"
            )
        else:
            self.reward_set = HeldOut(self.task, model, config, self.settings.holdout)
        follow = self.settings.optimizer_state == "follow"
        self.loop = TwoPlayerLoop(
            model,
            self.settings,
            config.common.seed,
            copy_parameters=partial(copy_parameters, with_state=follow),
            reduce=summed_over_ranks,
        )
        self.task.train_step = self._wrap_train_step(self.task.train_step)
        self.task.optimizer_step = self._wrap_optimizer_step(self.task.optimizer_step)

    def forward(
        self, model: nn.Module, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, Any, dict[str, Any]]:
        loss, sample_size, log = super().forward(model, sample, reduce)
        if not model.training:
            return loss, sample_size, log
        if self.loop is None:
            raise UsageError("--criterion attendout can train only within fairseq's Trainer")
        defender_loss, _, defender_log = super().forward(self.loop.defender, sample, reduce)
        # In bits, like fairseq's own loss.
        bits = torch.as_tensor(defender_log["loss"]).sum() / math.log(2)
        log["attention/defender_loss"] = bits
        return loss + defender_loss, sample_size, log

    def train(self, mode: bool = True) -> AttendOutCriterion:
        """Called by fairseq once per update, before the first batch."""
        if mode and self.loop is not None:
            self.loop.discard_gradients()
        return super().train(mode)

    def load_state_dict(self, state: dict[str, Any] | None, *args: Any, **kwargs: Any) -> Any:
        """Load the training loop, or start a new one if the checkpoint has none for this model."""
        own = self.state_dict()
        # Checkpoints of version 0.1 call the loop "game".
        stored = {
            f"loop.{name.removeprefix('game.')}" if name.startswith("game.") else name: value
            for name, value in (state or {}).items()
        }
        same = own.keys() == stored.keys() and all(
            getattr(value, "shape", None) == getattr(stored[name], "shape", None)
            for name, value in own.items()
        )
        if same:
            return super().load_state_dict(stored, *args, **kwargs)
        logger.info("the checkpoint has no attendout training loop for this model: starting anew")

    def _wrap_train_step(self, train_step: Callable) -> Callable:
        """Let the generator learn from one batch, unless it is a dummy batch (``ignore_grad``).

        fairseq gives dummy batches to ranks that have run out of data.
        """

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
            self.loop.begin_update(update_num, optimizer)
            self.loop.defender.set_num_updates(update_num)
            for generator in self.loop.generators:
                generator.learning = not ignore_grad
            try:
                return train_step(
                    sample, model, criterion, optimizer, update_num, ignore_grad, **more
                )
            finally:
                for generator in self.loop.generators:
                    generator.learning = False

        return step

    def _wrap_optimizer_step(self, optimizer_step: Callable) -> Callable:
        """End the update, and the round if it was the last one, after the optimizer's step."""

        @wraps(optimizer_step)
        def step(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            scale = loss_scale(optimizer)
            optimizer_step(optimizer, *args, **kwargs)
            if took_step(optimizer, scale) and self.loop.end_update():
                self.end_round(optimizer)
            for name, value in self.loop.last_round.items():
                metrics.log_scalar(name, value, round=4)

        return step

    def end_round(self, optimizer: Any) -> None:
        """Score both players on random examples of the reward set and finish the round."""
        random = self.loop.random()
        indices = self.reward_set.draw(self.settings.samples or self.settings.steps, random)
        players = self.loop.attacker, self.loop.defender
        results = [self.result_of(player, indices) for player in players]
        self.loop.end_round(*results, random.random(), optimizer)

    @torch.no_grad()
    def result_of(self, player: nn.Module, indices: Any) -> PlayerResult:
        """Loss and accuracy of one player on samples of the reward set, over all ranks."""
        device = next(player.parameters()).device
        totals = torch.zeros(4, dtype=torch.float64, device=device)
        player.eval()
        for sample in self.reward_set.batches(indices, device):
            _, size, log = self.task_criterion(player, sample)
            counted = size if "ncorrect" in log else 0
            row = (log["loss"], log.get("ncorrect", 0), size, counted)
            totals += torch.stack([torch.as_tensor(x, device=device).double() for x in row])
        player.train()
        loss, right, size, counted = summed_over_ranks(totals).tolist()
        return PlayerResult(loss / max(size, 1), right / counted if counted else None)


def refuse_impossible(model: nn.Module, config: Any, settings: LoopSettings) -> None:
    """Exit if the model or the configuration of the run cannot work with this criterion."""
    if not any(isinstance(module, DropoutGenerator) for module in model.modules()):
        raise UsageError(
            "--criterion attendout needs an arch with attendout attention, e.g. roberta_attendout "
            f"or --attention attendout, not {config.model._name}"
        )
    if config.optimization.use_bmuf:
        raise UsageError(
            "--use-bmuf keeps its own copy of the parameters, which --criterion attendout cannot "
            "change; leave the flag out"
        )
    if config.distributed_training.zero_sharding == "os" and settings.optimizer_state == "follow":
        raise UsageError(
            "--zero-sharding os splits the optimizer's state over the ranks, so that it cannot be "
            "copied; add --attendout-optimizer-state keep"
        )
