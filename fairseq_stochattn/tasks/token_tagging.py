"""Token tagging, such as named-entity recognition: one tag per word, at its first subword.

The task is used by ``--task token_tagging --criterion token_tagging`` with data from data-prep.
``input0`` contains subwords. ``label`` contains one symbol per subword: the tag at the first
subword of a word, ``<ignore>`` at the others. Tags are numbered from 0 in the order of
label/dict.txt.
"""

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Optional

import numpy as np
import torch
from fairseq import models
from fairseq.data import (
    BaseWrapperDataset,
    Dictionary,
    FairseqDataset,
    IdDataset,
    NestedDictionaryDataset,
    NumelDataset,
    NumSamplesDataset,
    PrependTokenDataset,
    RightPadDataset,
    SortDataset,
    data_utils,
)
from fairseq.data.shorten_dataset import maybe_shorten_dataset
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.tasks import FairseqTask, register_task
from omegaconf import II, MISSING
from torch import Tensor, nn

from ..compat import UsageError

IGNORE = "<ignore>"  # the symbol in the data for a subword without a tag
IGNORED = -100  # the target in a batch for a position without a tag
TAGGING_HEAD = "tagging_head"


@dataclass
class TokenTaggingConfig(FairseqDataclass):
    """The flags of the task; names and defaults follow fairseq's sentence_prediction."""

    data: str = field(default=MISSING, metadata={"help": "data directory that data-prep wrote"})
    init_token: Optional[int] = field(
        default=None,
        metadata={"help": "id of a token to add at the beginning of every sentence; default: none"},
    )
    max_positions: int = field(
        default=512, metadata={"help": "largest number of tokens per sentence"}
    )
    shorten_method: ChoiceEnum(["none", "truncate", "random_crop"]) = field(
        default="none",
        metadata={"help": "how to shorten sentences with more tokens than --max-positions"},
    )
    shorten_data_split_list: str = field(
        default="", metadata={"help": "splits to shorten, comma-separated; default: all"}
    )
    no_shuffle: bool = field(
        default=False, metadata={"help": "read the sentences in the order of the data"}
    )
    seed: int = II("common.seed")


class PerToken:
    """Mixin for fairseq's classification heads, which classify only the first token of a row.

    The mixin makes every token a separate row, so that the head classifies all tokens.
    """

    def forward(self, features: Tensor, **kwargs: Any) -> Tensor:
        """Convert features (B, T, C) to logits (B, T, tags)."""
        batch, length, width = features.shape
        single = features.reshape(batch * length, 1, width)
        return super().forward(single, **kwargs).view(batch, length, -1)


@cache
def _per_token(head: type[nn.Module]) -> type[nn.Module]:
    """Create the subclass of a classification head that classifies every token."""
    return type(f"PerToken{head.__name__}", (PerToken, head), {"__module__": __name__})


class TagDataset(BaseWrapperDataset):
    """Converts the symbols of label/dict.txt to tag numbers, and symbols without tag to IGNORED."""

    def __init__(self, labels: FairseqDataset, numbers: Tensor) -> None:
        super().__init__(labels)
        self.numbers = numbers  # (symbols,): symbol → tag number

    def __getitem__(self, index: int) -> Tensor:
        return self.numbers[self.dataset[index].long()]


@register_task("token_tagging", dataclass=TokenTaggingConfig)
class TokenTaggingTask(FairseqTask):
    """Predicts one tag per word."""

    def __init__(self, cfg: TokenTaggingConfig, dictionary: Dictionary, labels: Dictionary) -> None:
        super().__init__(cfg)
        self.dictionary = dictionary
        self.label_dictionary = labels
        self.tags = [symbol for symbol in labels.symbols[labels.nspecial :] if symbol != IGNORE]
        if not self.tags:
            raise UsageError(f"{cfg.data}/label/dict.txt contains no tags")

    @classmethod
    def setup_task(cls, cfg: TokenTaggingConfig, **kwargs: Any) -> "TokenTaggingTask":
        symbols, labels = (data_dictionary(cfg.data, part) for part in ("input0", "label"))
        symbols.add_symbol("<mask>")  # the pre-trained embedding has a row for it
        return cls(cfg, symbols, labels)

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> nn.Module:
        model = models.build_model(cfg, self, from_checkpoint)
        if not hasattr(model, "register_classification_head"):
            raise UsageError("--task token_tagging needs an encoder, such as --arch roberta_babn")
        # fairseq's own head class is used, so that fairseq saves and loads the head, and drops it
        # when another task loads the checkpoint.
        model.register_classification_head(TAGGING_HEAD, num_classes=len(self.tags))
        head = model.classification_heads[TAGGING_HEAD]
        head.__class__ = _per_token(type(head))
        return model

    def load_dataset(self, split: str, combine: bool = False, **kwargs: Any) -> FairseqDataset:
        tokens = self._rows("input0", split, self.dictionary, combine)
        if tokens is None:
            raise UsageError(f"no {split} set in {Path(self.cfg.data) / 'input0'}")
        labels = self._rows("label", split, self.label_dictionary, combine)
        source = self._sentences(tokens, split, self.cfg.init_token)
        parts = {
            "id": IdDataset(),
            "net_input": {
                "src_tokens": RightPadDataset(source, pad_idx=self.dictionary.pad()),
                "src_lengths": NumelDataset(source, reduce=False),
            },
            "nsentences": NumSamplesDataset(),
            "ntokens": NumelDataset(source, reduce=True),
        }
        if labels is not None:
            _check(tokens, labels, self.label_dictionary, split)
            start = None if self.cfg.init_token is None else IGNORED
            target = self._sentences(TagDataset(labels, self._numbers()), split, start)
            parts["target"] = RightPadDataset(target, pad_idx=IGNORED)
        dataset: FairseqDataset = NestedDictionaryDataset(parts, sizes=[source.sizes])
        if not self.cfg.no_shuffle:
            with data_utils.numpy_seed(self.cfg.seed):
                dataset = SortDataset(dataset, sort_order=[np.random.permutation(len(source))])
        self.datasets[split] = dataset
        return dataset

    def _rows(
        self, part: str, split: str, dictionary: Dictionary, combine: bool
    ) -> Optional[FairseqDataset]:
        path = Path(self.cfg.data) / part / split
        return data_utils.load_indexed_dataset(str(path), dictionary, combine=combine)

    def _sentences(self, rows: FairseqDataset, split: str, start: Optional[int]) -> FairseqDataset:
        """Put ``start`` in front of every row of tokens or tags, then shorten the row.

        Random crops of tokens and tags agree because the same seed is used for both.
        """
        return maybe_shorten_dataset(
            PrependTokenDataset(rows, start),
            split,
            self.cfg.shorten_data_split_list,
            str(self.cfg.shorten_method),
            self.cfg.max_positions,
            self.cfg.seed,
        )

    def _numbers(self) -> Tensor:
        """The tag number of every symbol of label/dict.txt, (symbols,)."""
        numbers = torch.full((len(self.label_dictionary),), IGNORED)
        for number, tag in enumerate(self.tags):
            numbers[self.label_dictionary.index(tag)] = number
        return numbers

    def tags_of(self, numbers: Tensor, words: Tensor) -> list[list[str]]:
        """The tags of each sentence as strings, given tag numbers (B, T).

        Only the tags at positions where ``words`` (B, T) is True are returned.
        """
        rows = zip(numbers, words, strict=True)
        return [[self.tags[number] for number in row[kept].tolist()] for row, kept in rows]

    def max_positions(self) -> int:
        return self.cfg.max_positions

    @property
    def source_dictionary(self) -> Dictionary:
        return self.dictionary

    @property
    def target_dictionary(self) -> Dictionary:
        return self.label_dictionary


def data_dictionary(data: str, part: str) -> Dictionary:
    path = Path(data) / part / "dict.txt"
    if not path.is_file():
        raise UsageError(f"{path} does not exist; data-prep writes it together with the data")
    return Dictionary.load(str(path))


def _check(tokens: FairseqDataset, labels: FairseqDataset, symbols: Dictionary, split: str) -> None:
    """Exit unless the labels have one known symbol per subword."""
    if len(tokens) != len(labels):
        raise UsageError(f"the {split} set has {len(tokens)} sentences but tags for {len(labels)}")
    unequal = np.flatnonzero(np.asarray(tokens.sizes) != np.asarray(labels.sizes))
    if len(unequal):
        first = unequal[0]
        sizes = f"{tokens.sizes[first] - 1} subwords but {labels.sizes[first] - 1} labels"
        raise UsageError(f"sentence {first} of the {split} set has {sizes}")
    if any(row.eq(symbols.unk()).any() for row in labels):
        raise UsageError(f"the {split} set has tags that label/dict.txt does not contain")
