"""A trained checkpoint on a data set: its loss and its BLEU, by fairseq's own task and search."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq import utils
from torch import nn

from fairseq_stochattn.analysis.translations import Bleu, Search, bleu, translate
from fairseq_stochattn.criterions.attention_losses import AttentionLosses
from fairseq_stochattn.errors import UsageError
from fairseq_stochattn.loading import (
    DataSelection,
    cause,
    chosen_device,
    load_batches,
    load_models,
)

# The loss is per target, --sentence-avg would make it per sentence; --eval-bleu would search too.
_OVERRIDES = {"sentence_avg": False, "eval_bleu": False}


@dataclass
class Evaluation:
    """A model in eval mode with its task, the task's own criterion and the batches of a data set.

    Every pass starts from the same seed, so that passes differ by what was done to the model alone.
    """

    model: nn.Module
    task: Any
    criterion: nn.Module
    batches: Sequence[dict[str, Any]]
    seed: int
    cuda: bool

    @classmethod
    def load(cls, checkpoint: Path, selection: DataSelection, cpu: bool = False) -> Evaluation:
        """Load a checkpoint, plain or ours; whatever does not fit together is one line."""
        seed = {} if selection.seed is None else {"seed": selection.seed}
        (model,), task, config = load_models(
            [str(checkpoint)], selection.data, {**_OVERRIDES, **seed}
        )
        try:
            criterion = task.build_criterion(config.criterion)
        except Exception as error:  # fairseq raises bare ones too
            raise UsageError(
                f"{checkpoint} does not fit the data in {selection.data}: {cause(error)}"
            ) from None
        if isinstance(criterion, AttentionLosses):
            criterion = criterion.task_criterion
        batches = list(load_batches(task, [model], selection))  # collated once for all passes
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
        return sum(int(sample["nsentences"]) for sample in self.batches)

    @property
    def loss_unit(self) -> str:
        return "squared error" if self._regression else "bits per target"

    def loss(self) -> float:
        """Negative log-likelihood per target, in bits, as fairseq logs it.

        Targets are target tokens, masked tokens or labels; of regression it is the squared error.
        """
        total, targets = 0.0, 0
        for sample in self._samples():
            _, sample_size, log = self.task.valid_step(sample, self.model, self.criterion)
            total += float(log.get("nll_loss", log["loss"]))
            targets += int(sample_size)
        if targets == 0:
            raise UsageError("the data has no targets to predict")
        return total / targets / (1.0 if self._regression else math.log(2))

    def bleu(self, beam: int = 5, remove_bpe: str | None = None) -> Bleu:
        """Corpus BLEU of sacrebleu after beam search."""
        search = Search(beam, remove_bpe=remove_bpe)
        return bleu(translate(self.model, self.task, self._samples(), search))

    @property
    def _regression(self) -> bool:
        return getattr(self.criterion, "regression_target", False)

    def _samples(self) -> Iterator[dict[str, Any]]:
        utils.set_torch_seed(self.seed)
        for sample in self.batches:
            yield utils.move_to_cuda(sample) if self.cuda else sample
