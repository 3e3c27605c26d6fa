"""Small graphs with texts, and tiny models that write about them."""

from __future__ import annotations

import json
import random
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, build_model
from torch import Tensor, nn

from fairseq_stochattn.core.graph_text_file import ENTITY, GraphText, relation_symbol
from fairseq_stochattn.tasks.graph_text_dataset import GraphTextDataset

RELATIONS = ("likes", "knows", "owns")
TYPES = ("<agent>", "<patient>")
ENTITIES = 5
SIZES = {
    "encoder_embed_dim": 16,
    "encoder_ffn_embed_dim": 32,
    "encoder_attention_heads": 2,
    "encoder_layers": 2,
    "decoder_attention_heads": 2,
}


def dictionary(*symbols: str) -> Dictionary:
    """A dictionary of these symbols after fairseq's own four."""
    made = Dictionary()
    for symbol in symbols:
        made.add_symbol(symbol)
    return made


def task(titles: bool = False, words: Sequence[str] = ()) -> SimpleNamespace:
    """What a model reads of the task; texts have 50 symbols, which end with five entities."""
    words = words or [f"w{i}" for i in range(39)]
    entities = [ENTITY.format(i) for i in range(ENTITIES)]
    return SimpleNamespace(
        source_dictionary=dictionary(*words, *map(relation_symbol, RELATIONS), *entities),
        relation_dictionary=dictionary(*map(relation_symbol, RELATIONS)),
        target_dictionary=dictionary(*words, *TYPES, *entities),
        first_entity=4 + len(words) + len(TYPES),
        has_titles=titles,
        cfg=SimpleNamespace(max_target_positions=64),
    )


def dataset(examples: Sequence[GraphText], of: SimpleNamespace) -> GraphTextDataset:
    """The examples as numbers."""
    return GraphTextDataset(
        examples,
        of.source_dictionary,
        of.relation_dictionary,
        of.target_dictionary,
        of.first_entity,
        of.has_titles,
        "test",
    )


def batch(examples: Sequence[GraphText], of: SimpleNamespace) -> dict[str, Any]:
    """The examples as one batch."""
    rows = dataset(examples, of)
    return rows.collater([rows[i] for i in range(len(rows))])


def example(entities: int, triples: int, seed: int = 1, title: bool = False) -> GraphText:
    """A random graph; its text mentions entities between words."""
    rng = random.Random(seed)

    def words(most: int) -> str:
        return " ".join(f"w{rng.randrange(39)}" for _ in range(rng.randint(1, most)))

    chosen = [
        (rng.randrange(entities), rng.choice(RELATIONS), rng.randrange(entities))
        for _ in range(triples)
    ]
    mentions = [f"{words(2)} {ENTITY.format(i)}" for i in range(entities)]
    text = " ".join([*mentions, words(3)])
    types = [rng.choice(TYPES) for _ in range(entities)]
    named = GraphText([words(3) for _ in range(entities)], types, chosen, text, [])
    return GraphText(
        named.entities, types, chosen, text, [named.fill(text)], words(4) if title else None
    )


def from_tokens(tokens: Tensor) -> GraphText:
    """A graph made of a sentence: three words are an entity, and each likes the next one."""
    words = [f"w{int(x) % 39}" for x in tokens]
    names = [" ".join(words[i : i + 3]) for i in range(0, len(words), 3)]
    triples = [(i, RELATIONS[i % 3], i + 1) for i in range(len(names) - 1)]
    return GraphText(names, [TYPES[i % 2] for i in range(len(names))], triples, "w0", ["w0"])


def inputs(sources: Sequence[Tensor]) -> dict[str, Tensor]:
    """The arguments of an encoder for graphs made of sentences."""
    made = batch([from_tokens(row) for row in sources], task())["net_input"]
    return {name: x for name, x in made.items() if name != "prev_output_tokens"}


def build(
    of: SimpleNamespace, arch: str = "graph_writer", seed: int = 1, **flags: Any
) -> nn.Module:
    """A tiny model, by default without dropout."""
    rates = {"dropout": 0.0, "attention_dropout": 0.0}
    args = Namespace(arch=arch, **{**SIZES, **rates, **flags})
    ARCH_CONFIG_REGISTRY[arch](args)
    torch.manual_seed(seed)
    return build_model(args, of)


def write(folder: Path, titles: bool = False) -> Path:
    """Write a data folder: 24 examples to train, 8 each to validate and test."""
    folder.mkdir(parents=True, exist_ok=True)
    made = task(titles)
    for part in ("source", "relation", "target"):
        name = {"source": "graph", "target": "text"}.get(part, part)
        symbols = getattr(made, f"{part}_dictionary").symbols[4:]
        text = "".join(f"{symbol} 1\n" for symbol in symbols)
        (folder / f"dict.{name}.txt").write_text(text)
    for split, count, first in (("train", 24, 0), ("valid", 8, 100), ("test", 8, 200)):
        rows = [example(1 + i % 4, i % 5, first + i, titles) for i in range(count)]
        lines = (json.dumps({k: v for k, v in vars(x).items() if v is not None}) for x in rows)
        (folder / f"{split}.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder
