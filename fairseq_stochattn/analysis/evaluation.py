"""A trained checkpoint on a data set: its loss and its BLEU, by fairseq's own task and search."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from fairseq import utils
from fairseq.dataclass.configs import GenerationConfig
from fairseq.tasks import TASK_REGISTRY
from fairseq_cli.generate import get_symbols_to_strip_from_output
from sacrebleu.metrics import BLEU
from torch import nn

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


class Bleu(NamedTuple):
    score: float
    signature: str  # sacrebleu's: what the score was computed with


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

    @torch.no_grad()
    def bleu(self, beam: int = 5, remove_bpe: str | None = None) -> Bleu:
        """Corpus BLEU of sacrebleu after beam search, texts made as fairseq-generate makes them."""
        if not isinstance(self.task, TASK_REGISTRY["translation"]):
            raise UsageError(f"BLEU is for translation, not for a {type(self.task).__name__}")
        generator = self.task.build_generator([self.model], GenerationConfig(beam=beam))
        symbols = self.task.target_dictionary
        ignored = get_symbols_to_strip_from_output(generator)
        hypotheses, references = [], []
        for sample in self._samples():
            found = self.task.inference_step(generator, [self.model], sample)
            for best, target in zip((beams[0] for beams in found), sample["target"], strict=True):
                tokens = best["tokens"].int().cpu()
                hypotheses.append(
                    symbols.string(tokens, remove_bpe, extra_symbols_to_ignore=ignored)
                )
                # An unknown word of the reference is escaped: no hypothesis may match it.
                tokens = utils.strip_pad(target, symbols.pad()).int().cpu()
                references.append(
                    symbols.string(
                        tokens, remove_bpe, escape_unk=True, extra_symbols_to_ignore=ignored
                    )
                )
        scorer = BLEU()
        score = scorer.corpus_score(hypotheses, [references]).score
        return Bleu(score, str(scorer.get_signature()))

    @property
    def _regression(self) -> bool:
        return getattr(self.criterion, "regression_target", False)

    def _samples(self) -> Iterator[dict[str, Any]]:
        utils.set_torch_seed(self.seed)
        for sample in self.batches:
            yield utils.move_to_cuda(sample) if self.cuda else sample
