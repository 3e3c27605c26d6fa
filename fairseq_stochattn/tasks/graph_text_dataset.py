"""Examples of ``--task graph_to_text`` as tensors, and batches of graphs of different sizes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from fairseq.data import Dictionary, FairseqDataset
from torch import Tensor

from ..core.errors import InputError
from ..core.graph_text_file import GraphText, relation_symbol


class Encoded(NamedTuple):
    """The numbers of one example: E entities, R triples."""

    entities: list[np.ndarray]  # E rows of words
    types: np.ndarray  # (E,): symbols of the target dictionary
    relations: np.ndarray  # (R,)
    ends: np.ndarray  # (2, R): entities at the head and the tail of every triple
    title: np.ndarray
    linear: np.ndarray  # the graph as text
    target: np.ndarray


class GraphTextDataset(FairseqDataset):
    """Graphs with texts. An unknown word, relation or type gets the number of <unk>."""

    def __init__(
        self,
        examples: Iterable[GraphText],
        words: Dictionary,
        relations: Dictionary,
        texts: Dictionary,
        first_entity: int,
        titles: bool,
        name: str,
    ) -> None:
        self.words, self.relations, self.texts, self.titles = words, relations, texts, titles
        self.room = len(texts) - first_entity
        self.examples = []
        for number, example in enumerate(examples, start=1):
            if len(example.entities) > self.room:
                raise InputError(
                    f"{name}, line {number} has {len(example.entities)} entities, but "
                    f"dict.text.txt has symbols for {self.room}"
                )
            self.examples.append(self._encode(example))
        targets = [len(x.target) for x in self.examples]
        nodes = [1 + len(x.types) + 2 * len(x.relations) for x in self.examples]
        self.sizes = np.array([nodes, targets], dtype=np.int64).T.reshape(-1, 2)

    def _encode(self, example: GraphText) -> Encoded:
        unknown = self.words.unk_word
        names = [self._line(self.words, name or unknown) for name in example.entities]
        triples = example.triples
        relations = [self.relations.index(relation_symbol(r)) for _, r, _ in triples]
        ends = [[head for head, _, _ in triples], [tail for _, _, tail in triples]]
        return Encoded(
            names,
            np.array([self.texts.index(x) for x in example.types], dtype=np.int32),
            np.array(relations, dtype=np.int32),
            np.array(ends, dtype=np.int32).reshape(2, -1),
            self._line(self.words, example.title or "", end=True),
            self._line(self.words, example.as_text(), end=True),
            self._line(self.texts, example.text, end=True),
        )

    @staticmethod
    def _line(symbols: Dictionary, text: str, end: bool = False) -> np.ndarray:
        numbers = [symbols.index(word) for word in text.split()] + [symbols.eos()] * end
        return np.array(numbers, dtype=np.int32)

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"id": index, "example": self.examples[index]}

    def collater(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        """A batch; B graphs, E entities, W words, R triples, T tokens, all padded on the right."""
        if not samples:
            return {}
        rows = [sample["example"] for sample in samples]
        pad = self.words.pad()
        width = max([1, *(len(name) for row in rows for name in row.entities)])
        entities = max([1, *(len(row.types) for row in rows)])
        tokens = np.full((len(rows), entities, width), pad, dtype=np.int64)
        for number, row in enumerate(rows):
            for entity, name in enumerate(row.entities):
                tokens[number, entity, : len(name)] = name
        targets = padded([row.target for row in rows], self.texts.pad())
        sources = padded([row.linear for row in rows], pad)
        inputs = {
            "src_tokens": sources,
            "src_lengths": torch.tensor([len(row.linear) for row in rows]),
            "entity_tokens": torch.from_numpy(tokens),
            "entity_types": padded([row.types for row in rows], self.texts.pad(), entities),
            "relations": padded([row.relations for row in rows], self.relations.pad()),
            "heads": padded([row.ends[0] for row in rows], 0),
            "tails": padded([row.ends[1] for row in rows], 0),
            "prev_output_tokens": padded(
                [np.concatenate([row.target[-1:], row.target[:-1]]) for row in rows],
                self.texts.pad(),
            ),
        }
        if self.titles:
            inputs["title_tokens"] = padded([row.title for row in rows], pad)
        return {
            "id": torch.tensor([sample["id"] for sample in samples]),
            "nsentences": len(rows),
            "ntokens": sum(len(row.target) for row in rows),
            "net_input": inputs,
            "target": targets,
        }

    def num_tokens(self, index: int) -> int:
        return int(self.sizes[index].max())

    def num_tokens_vec(self, indices: np.ndarray) -> np.ndarray:
        return self.sizes[indices].max(axis=1)

    def size(self, index: int) -> tuple[int, int]:
        nodes, target = self.sizes[index]
        return int(nodes), int(target)

    def ordered_indices(self) -> np.ndarray:
        """All examples in random order, then sorted by length: similar lengths share a batch."""
        order = np.random.permutation(len(self))
        return order[np.argsort(self.sizes[order, 1], kind="mergesort")]


def padded(rows: Sequence[np.ndarray], value: int, width: int = 0) -> Tensor:
    """The rows as one tensor (B, n), padded on the right; n is at least ``width``."""
    out = np.full((len(rows), max([width, *map(len, rows)])), value, dtype=np.int64)
    for number, row in enumerate(rows):
        out[number, : len(row)] = row
    return torch.from_numpy(out)
