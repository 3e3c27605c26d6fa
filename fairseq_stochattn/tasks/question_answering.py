"""Extractive question answering (SQuAD): where in a context does the answer start and end?

``--task question_answering --criterion question_answering`` with data of
``stochattn-prepare squad``. Each row is one window: ``<s> question </s> part of the context </s>``,
with two separators for RoBERTa (``--separator-token 2``). The model predicts two positions of the
row, the start and the end of the answer. The first token stands for "no answer in this window".
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

import numpy as np
import torch
from fairseq import models
from fairseq.data import (
    BaseWrapperDataset,
    ConcatSentencesDataset,
    Dictionary,
    FairseqDataset,
    IdDataset,
    NestedDictionaryDataset,
    NumelDataset,
    NumSamplesDataset,
    PrependTokenDataset,
    RawLabelDataset,
    RightPadDataset,
    SortDataset,
    data_utils,
)
from fairseq.dataclass import FairseqDataclass
from fairseq.models.roberta import RobertaClassificationHead
from fairseq.tasks import FairseqTask, register_task
from omegaconf import II, MISSING
from torch import Tensor, nn

from ..compat import UsageError
from ..core.distributions import at_least_float
from .token_tagging import data_dictionary

SPAN_HEAD = "span_head"
NO_ANSWER = 0  # the position that stands for "no answer": that of the first token
IMPOSSIBLE = -1e4  # the logit of positions that cannot be an answer; finite, so that KL is too


@dataclass
class QuestionAnsweringConfig(FairseqDataclass):
    """The flags of the task; names follow fairseq's sentence_prediction."""

    data: str = field(default=MISSING, metadata={"help": "data directory that data-prep wrote"})
    init_token: int = field(
        default=0,
        metadata={"help": "id of the first token of every row, which stands for no answer"},
    )
    separator_token: Optional[int] = field(
        default=None,
        metadata={"help": "id of a second separator after the question (RoBERTa: 2; BERT: none)"},
    )
    max_positions: int = field(default=512, metadata={"help": "largest number of tokens per row"})
    no_shuffle: bool = field(
        default=False, metadata={"help": "read the windows in the order of the data"}
    )
    seed: int = II("common.seed")


class _NoDense(nn.Module):
    """Stands for the dense layer of fairseq's heads, whose size fairseq compares when it loads."""

    out_features = 0

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.empty(0, width))


class SpanHead(RobertaClassificationHead):
    """One linear layer that gives every token a start and an end logit: (B, T, C) → (B, T, 2)."""

    def __init__(self, width: int, dropout: float) -> None:
        nn.Module.__init__(self)
        self.dense = _NoDense(width)
        self.dropout = nn.Dropout(dropout)
        self.out_proj = nn.Linear(width, 2)

    def forward(self, features: Tensor, **kwargs: Any) -> Tensor:
        return self.out_proj(self.dropout(features))


def answerable(tokens: Tensor, dictionary: Dictionary) -> Tensor:
    """Return a mask of the positions that can start or end an answer, (B, T).

    These are the tokens of the context, and the first token, which stands for no answer.
    """
    ends = tokens.eq(dictionary.eos())
    context = (ends.cumsum(dim=1) > 0) & ~ends & tokens.ne(dictionary.pad())
    context[:, NO_ANSWER] = True
    return context


def span_logits(output: Tensor, tokens: Tensor, dictionary: Dictionary) -> Tensor:
    """Return start and end logits in fp32 or fp64, (B, T, 2) → (B, 2, T).

    Positions that cannot be an answer, such as the question and padding, are set to ``IMPOSSIBLE``,
    so that the probabilities of a row do not depend on its batch.
    """
    logits = at_least_float(output).transpose(1, 2)
    return logits.masked_fill(~answerable(tokens, dictionary)[:, None], IMPOSSIBLE)


class SpanTargets(BaseWrapperDataset):
    """The positions of start and end in the whole row, (2,), from those in the context."""

    def __init__(self, spans: RawLabelDataset, before: np.ndarray) -> None:
        super().__init__(spans)
        self.before = before  # (N,): the number of tokens of each row before the context

    def __getitem__(self, index: int) -> Tensor:
        first, last = self.dataset[index]
        if first < 0:
            return torch.tensor([NO_ANSWER, NO_ANSWER])
        return torch.tensor([first, last]) + int(self.before[index])

    def collater(self, samples: list[Tensor]) -> Tensor:
        return torch.stack(samples)


@register_task("question_answering", dataclass=QuestionAnsweringConfig)
class QuestionAnsweringTask(FairseqTask):
    """Predicts where the answer to a question starts and ends in a context."""

    def __init__(self, cfg: QuestionAnsweringConfig, dictionary: Dictionary) -> None:
        super().__init__(cfg)
        self.dictionary = dictionary

    @classmethod
    def setup_task(cls, cfg: QuestionAnsweringConfig, **kwargs: Any) -> "QuestionAnsweringTask":
        symbols = data_dictionary(cfg.data, "input0")
        symbols.add_symbol("<mask>")  # the pre-trained embedding has a row for it
        if cfg.separator_token not in (None, symbols.eos()):
            raise UsageError(
                f"--separator-token {cfg.separator_token}: only {symbols.eos()}, that of </s>, "
                "separates a question from its context"
            )
        return cls(cfg, symbols)

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> nn.Module:
        model = models.build_model(cfg, self, from_checkpoint)
        if not hasattr(model, "classification_heads"):
            raise UsageError(
                "--task question_answering needs an encoder, such as --arch roberta_babn"
            )
        head = SpanHead(model.args.encoder_embed_dim, model.args.pooler_dropout)
        model.classification_heads[SPAN_HEAD] = head
        return model

    def load_dataset(self, split: str, combine: bool = False, **kwargs: Any) -> FairseqDataset:
        question, context = (self._rows(part, split, combine) for part in ("input0", "input1"))
        if len(question) != len(context):
            raise UsageError(
                f"the {split} set has {len(question)} questions but {len(context)} contexts"
            )
        first = PrependTokenDataset(question, self.cfg.init_token)
        second = PrependTokenDataset(context, self.cfg.separator_token)
        source = ConcatSentencesDataset(first, second)
        sizes = np.asarray(source.sizes)
        parts = {
            "id": IdDataset(),
            "net_input": {
                "src_tokens": RightPadDataset(source, pad_idx=self.dictionary.pad()),
                "src_lengths": NumelDataset(source, reduce=False),
            },
            "nsentences": NumSamplesDataset(),
            "ntokens": NumelDataset(source, reduce=True),
        }
        spans = self._spans(split, np.asarray(context.sizes))
        if spans is not None:
            parts["target"] = SpanTargets(RawLabelDataset(spans), sizes - np.asarray(context.sizes))
        dataset: FairseqDataset = NestedDictionaryDataset(parts, sizes=[sizes])
        if not self.cfg.no_shuffle:
            with data_utils.numpy_seed(self.cfg.seed):
                # Batches of rows of similar length, in random order among equal lengths.
                order = [np.random.permutation(len(source)), sizes]
            dataset = SortDataset(dataset, sort_order=order)
        self.datasets[split] = dataset
        return dataset

    def _rows(self, part: str, split: str, combine: bool) -> FairseqDataset:
        folder = Path(self.cfg.data) / part
        rows = data_utils.load_indexed_dataset(
            str(folder / split), self.dictionary, combine=combine
        )
        if rows is None:
            raise UsageError(f"no {split} set in {folder}")
        return rows

    def _spans(self, split: str, sizes: np.ndarray) -> list[tuple[int, int]] | None:
        """The first and the last token of each answer within its part of the context.

        −1, −1 if the part has no answer. None if the split has no labels.
        """
        path = Path(self.cfg.data) / "label" / f"{split}.label"
        if not path.is_file():
            return None
        spans = []
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines()):
            try:
                first, last = map(int, line.split())
            except ValueError:
                raise UsageError(f"{path}, line {number + 1}: not a start and an end") from None
            length = int(sizes[number]) - 1 if number < len(sizes) else 0  # without </s>
            if (first, last) != (-1, -1) and not 0 <= first <= last < length:
                raise UsageError(
                    f"{path}, line {number + 1}: {first} {last} is not a span of {length} tokens"
                )
            spans.append((first, last))
        if len(spans) != len(sizes):
            raise UsageError(f"{path} has {len(spans)} lines for {len(sizes)} windows")
        return spans

    def max_positions(self) -> int:
        return self.cfg.max_positions

    @property
    def source_dictionary(self) -> Dictionary:
        return self.dictionary

    @property
    def target_dictionary(self) -> Dictionary:
        return self.dictionary  # not used: the classes are positions
