"""Token tagging, such as named entities: one tag a word, read at the word's first subword.

``--task token_tagging --criterion token_tagging`` on what data-prep writes: ``input0`` holds
subwords and ``label`` one symbol for each, ``<ignore>`` where a word goes on. Tags are numbered
from 0 in the order of label/dict.txt.
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

from fairseq_stochattn.errors import UsageError

IGNORE = "<ignore>"  # in the data: this subword has no tag
IGNORED = -100  # in a batch: nothing is predicted here
TAGGING_HEAD = "tagging_head"


@dataclass
class TokenTaggingConfig(FairseqDataclass):
    data: str = field(default=MISSING, metadata={"help": "path to data directory"})
    init_token: Optional[int] = field(
        default=None, metadata={"help": "add token at the beginning of each sentence"}
    )
    max_positions: int = field(default=512, metadata={"help": "max tokens per sentence"})
    shorten_method: ChoiceEnum(["none", "truncate", "random_crop"]) = field(
        default="none", metadata={"help": "if not none, shorten sentences of more tokens than that"}
    )
    shorten_data_split_list: str = field(
        default="", metadata={"help": "splits to shorten, comma-separated, default: all"}
    )
    no_shuffle: bool = field(default=False, metadata={"help": "batches in the order of the data"})
    seed: int = II("common.seed")


class PerToken:
    """Mixin over a classification head: every token as if it were the first of its sentence."""

    def forward(self, features: Tensor, **kwargs: Any) -> Tensor:
        batch, length, width = features.shape
        single = features.reshape(batch * length, 1, width)
        return super().forward(single, **kwargs).view(batch, length, -1)  # (B, T, tags)


@cache
def _per_token(head: type[nn.Module]) -> type[nn.Module]:
    return type(f"PerToken{head.__name__}", (PerToken, head), {"__module__": __name__})


class TagDataset(BaseWrapperDataset):
    """Symbols of labels as numbers of tags, IGNORED where there is none."""

    def __init__(self, labels: FairseqDataset, numbers: Tensor) -> None:
        super().__init__(labels)
        self.numbers = numbers  # (symbols,)

    def __getitem__(self, index: int) -> Tensor:
        return self.numbers[self.dataset[index].long()]


@register_task("token_tagging", dataclass=TokenTaggingConfig)
class TokenTaggingTask(FairseqTask):
    """A tag for every word."""

    def __init__(self, cfg: TokenTaggingConfig, dictionary: Dictionary, labels: Dictionary) -> None:
        super().__init__(cfg)
        self.dictionary = dictionary
        self.label_dictionary = labels
        self.tags = [symbol for symbol in labels.symbols[labels.nspecial :] if symbol != IGNORE]
        if not self.tags:
            raise UsageError(f"{cfg.data}/label/dict.txt has no tag")

    @classmethod
    def setup_task(cls, cfg: TokenTaggingConfig, **kwargs: Any) -> "TokenTaggingTask":
        symbols, labels = (_dictionary(cfg.data, part) for part in ("input0", "label"))
        symbols.add_symbol("<mask>")  # as in pre-training
        return cls(cfg, symbols, labels)

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> nn.Module:
        model = models.build_model(cfg, self, from_checkpoint)
        if not hasattr(model, "register_classification_head"):
            raise UsageError("--task token_tagging needs an encoder, such as --arch roberta_babn")
        # fairseq's own head, so that its checkpoints come and go as those of other tasks do.
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
        """Tokens or tags with their start, shortened: both alike, a crop has the same seed."""
        return maybe_shorten_dataset(
            PrependTokenDataset(rows, start),
            split,
            self.cfg.shorten_data_split_list,
            str(self.cfg.shorten_method),
            self.cfg.max_positions,
            self.cfg.seed,
        )

    def _numbers(self) -> Tensor:
        """(symbols,): the tag that a symbol of label/dict.txt is."""
        numbers = torch.full((len(self.label_dictionary),), IGNORED)
        for number, tag in enumerate(self.tags):
            numbers[self.label_dictionary.index(tag)] = number
        return numbers

    def tags_of(self, numbers: Tensor, words: Tensor) -> list[list[str]]:
        """(B, T) numbers of tags → the tags of each sentence, where ``words`` (B, T) has one."""
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


def _dictionary(data: str, part: str) -> Dictionary:
    path = Path(data) / part / "dict.txt"
    if not path.is_file():
        raise UsageError(f"{path} does not exist: data-prep writes it with the data")
    return Dictionary.load(str(path))


def _check(tokens: FairseqDataset, labels: FairseqDataset, symbols: Dictionary, split: str) -> None:
    """Refuse data in which tags and subwords do not belong together."""
    if len(tokens) != len(labels):
        raise UsageError(f"the {split} set has {len(tokens)} sentences and tags for {len(labels)}")
    unequal = np.flatnonzero(np.asarray(tokens.sizes) != np.asarray(labels.sizes))
    if len(unequal):
        at = unequal[0]
        sizes = f"{tokens.sizes[at] - 1} subwords and {labels.sizes[at] - 1} labels"
        raise UsageError(f"sentence {at} of the {split} set has {sizes}")
    if any(row.eq(symbols.unk()).any() for row in labels):
        raise UsageError(f"the {split} set has tags that label/dict.txt does not know")
