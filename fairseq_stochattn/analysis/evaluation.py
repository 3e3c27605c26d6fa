"""Computes loss and BLEU of a trained checkpoint on a data set with fairseq's task and search."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fairseq import utils
from torch import nn

from ..core.errors import InputError
from ..criterions.attention_losses import AttentionLosses
from .detokenize import TextFormat, read_text_format
from .fairseq_errors import reading
from .loading import DataSelection, chosen_device, load_batches, load_models
from .translations import Score, Search, bleu, require_translation, translate

# --sentence-avg would average the loss over sentences instead of targets, and --eval-bleu would add
# a beam search to every validation step.
_OVERRIDES = {"sentence_avg": False, "eval_bleu": False}


@dataclass
class Evaluation:
    """A model in eval mode with its task, the task's criterion and the batches of a data set.

    Every pass starts from the same seed, so that only a change of the model can change the loss.
    """

    model: nn.Module
    task: Any
    criterion: nn.Module
    batches: Sequence[dict[str, Any]]
    seed: int
    cuda: bool

    @classmethod
    def load(cls, checkpoint: Path, selection: DataSelection, cpu: bool = False) -> Evaluation:
        """Load a checkpoint of plain fairseq or of this package, and the selected data.

        Raises ``InputError`` if the checkpoint and the data do not fit together.
        """
        seed = {} if selection.seed is None else {"seed": selection.seed}
        (model,), task, config = load_models(
            [str(checkpoint)], selection.data, {**_OVERRIDES, **seed}
        )
        with reading(f"{checkpoint} does not fit the data in {selection.data}"):
            criterion = task.build_criterion(config.criterion)
        if isinstance(criterion, AttentionLosses):
            criterion = criterion.task_criterion
        # A list, so that the batches are collated only once for all passes.
        batches = list(load_batches(task, [model], selection))
        device = chosen_device(cpu)
        return cls(
            model.to(device),
            task,
            criterion.to(device).eval(),
            batches,
            config.common.seed,
            device.type == "cuda",
        )

    @property
    def sentences(self) -> int:
        return sum(int(batch["nsentences"]) for batch in self.batches)

    @property
    def loss_unit(self) -> str:
        return "squared error" if self._regression else "bits per target"

    def loss(self) -> float:
        """The negative log-likelihood in bits per target, or the squared error in regression.

        It equals the loss that fairseq logs. Targets are target tokens, masked tokens or labels.
        """
        total, targets = 0.0, 0
        for batch in self._batches():
            _, sample_size, log = self.task.valid_step(batch, self.model, self.criterion)
            total += float(log.get("nll_loss", log["loss"]))
            targets += int(sample_size)
        if targets == 0:
            raise InputError("the data has no targets to predict")
        return total / targets / (1.0 if self._regression else math.log(2))

    def bleu(self, beam: int = 5, remove_bpe: str | None = None) -> Score:
        """Corpus BLEU (sacrebleu) of detokenised translations by beam search.

        How the text was cut is read from the data's manifest; ``remove_bpe`` overrides the kind of
        subwords.
        """
        found = self._text_format
        subwords = found.subwords if remove_bpe is None else remove_bpe
        detokenize = found.detokenizer(self.task.cfg.target_lang)
        search = Search(beam, remove_bpe=subwords, detokenize=detokenize)
        return bleu(translate([self.model], self.task, self._batches(), search))

    @cached_property
    def _text_format(self) -> TextFormat:
        require_translation(self.task)
        return read_text_format(self.task.cfg.data)

    @property
    def _regression(self) -> bool:
        return getattr(self.criterion, "regression_target", False)

    def _batches(self) -> Iterator[dict[str, Any]]:
        """The batches on the model's device, after a reset of the seed."""
        utils.set_torch_seed(self.seed)
        for batch in self.batches:
            yield utils.move_to_cuda(batch) if self.cuda else batch
