"""A trained checkpoint on a data set: its loss and its BLEU, by fairseq's own task and search."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from fairseq import checkpoint_utils, utils
from fairseq.data import data_utils
from fairseq.dataclass.configs import GenerationConfig
from fairseq.tasks import TASK_REGISTRY
from fairseq_cli.generate import get_symbols_to_strip_from_output
from sacrebleu.metrics import BLEU
from torch import nn

from fairseq_stochattn.criterions.attention_losses import AttentionLosses
from fairseq_stochattn.errors import UsageError

# The loss is per target, --sentence-avg would make it per sentence; --eval-bleu would search too.
_OVERRIDES = {"sentence_avg": False, "eval_bleu": False}


@dataclass(frozen=True)
class DataSelection:
    """Which sentences, in which batches."""

    data: str
    subset: str = "valid"
    limit: int | None = None  # only the first of the corpus
    max_tokens: int | None = None
    batch_size: int | None = None
    seed: int | None = None  # None: the one the model was trained with
    ids: tuple[int, ...] | None = None  # only these, each a batch, in this order


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
        if not checkpoint.is_file():
            raise UsageError(f"checkpoint {checkpoint} does not exist")
        for part in utils.split_paths(selection.data):
            if not Path(part).is_dir():
                raise UsageError(f"data directory {part} does not exist")
        overrides = {"data": selection.data, **_OVERRIDES}
        if selection.seed is not None:
            overrides["seed"] = selection.seed
        try:
            (model,), config, task = checkpoint_utils.load_model_ensemble_and_task(
                [str(checkpoint)], arg_overrides=overrides
            )
            criterion = task.build_criterion(config.criterion)
        except Exception as error:  # fairseq raises bare ones too
            raise UsageError(
                f"{checkpoint} does not fit the data in {selection.data}: {_cause(error)}"
            ) from None
        if isinstance(criterion, AttentionLosses):
            criterion = criterion.task_criterion
        seed = config.common.seed
        batches = _load_batches(task, model, selection, seed)
        cuda = torch.cuda.is_available() and not cpu
        if cuda:
            model, criterion = model.cuda(), criterion.cuda()
        return cls(model.eval(), task, criterion.eval(), batches, seed, cuda)

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


def _load_batches(
    task: Any, model: nn.Module, selection: DataSelection, seed: int
) -> list[dict[str, Any]]:
    """The batches of a data set, collated once for all passes; too long sentences are skipped."""
    try:
        task.load_dataset(selection.subset)
    except Exception as error:
        raise UsageError(
            f"no {selection.subset} set in {selection.data}: {_cause(error)}"
        ) from None
    dataset = task.dataset(selection.subset)
    dataset.set_epoch(1)  # masks of a masked LM depend on it: those of fairseq-validate
    with data_utils.numpy_seed(seed + 1):
        indices = dataset.ordered_indices()
    if selection.limit is not None:
        indices = indices[indices < selection.limit]  # they are ordered by length
    positions = utils.resolve_max_positions(task.max_positions(), model.max_positions())
    if selection.ids is not None:
        return [_single(dataset, number, indices, selection) for number in selection.ids]
    indices = task.filter_indices_by_size(indices, dataset, positions, ignore_invalid_inputs=True)
    if len(indices) == 0:
        raise UsageError(f"the {selection.subset} set in {selection.data} has no usable sentence")
    batches = dataset.batch_by_size(
        indices, max_tokens=selection.max_tokens, max_sentences=selection.batch_size
    )
    return [dataset.collater([dataset[index] for index in batch]) for batch in batches]


def _single(
    dataset: Any, number: int, known: Sequence[int], selection: DataSelection
) -> dict[str, Any]:
    if number not in known:
        raise UsageError(f"the {selection.subset} set in {selection.data} has no sentence {number}")
    return dataset.collater([dataset[number]])


def _cause(error: BaseException) -> str:
    """torch lists every mismatch of a state below a title; the first of them says enough."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return " ".join(lines[:2])
