"""Write a corpus of graphs with texts, for ``--task graph_to_text`` and as pairs of lines.

- SPLIT.jsonl: the graphs and texts; ``fairseq_stochattn/core/graph_text_file.py`` describes it.
- dict.graph.txt, dict.relation.txt, dict.text.txt: words of names and titles with all symbols,
  relations, and words of texts with the symbols of types and, at the end, of entities.
- SPLIT.graph-text.graph and .text, binarised: the same corpus for ``--task translation -s graph
  -t text``, with graphs as text. Its symbols of entities are those of the texts.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from fairseq_stochattn.core.graph_text_file import ENTITY, GraphText, is_entity, relation_symbol
from steps.binary import binarise_text, write_dictionary
from steps.errors import PrepError


@dataclass(frozen=True)
class Vocabulary:
    """The symbols of the three dictionaries."""

    graph: list[str]
    relation: list[str]
    text: list[str]


def frequent(counts: Counter[str], least: int) -> list[str]:
    """The keys that occur at least ``least`` times, most frequent first, then alphabetically."""
    kept = [(-count, symbol) for symbol, count in counts.items() if count >= least]
    return [symbol for _, symbol in sorted(kept)]


def build_vocabulary(
    train: Iterable[GraphText], least: int, types: Iterable[str], entities: int
) -> Vocabulary:
    """The vocabularies of a training set; rarer words and relations become <unk>.

    ``types`` are the symbols of all types; ``entities`` is the largest number of them in a graph.
    """
    names: Counter[str] = Counter()
    relations: Counter[str] = Counter()
    words: Counter[str] = Counter()
    for example in train:
        for name in (*example.entities, example.title or ""):
            names.update(name.split())
        relations.update(relation_symbol(relation) for _, relation, _ in example.triples)
        words.update(word for word in example.text.split() if not is_entity(word))
    numbered = [ENTITY.format(i) for i in range(entities)]
    kept, types = frequent(relations, least), sorted(types)
    special = {*types, *kept, *numbered}
    return Vocabulary(
        [*(x for x in frequent(names, least) if x not in special), *kept, *numbered],
        kept,
        [*(x for x in frequent(words, least) if x not in special), *types, *numbered],
    )


def write_corpus(
    splits: Mapping[str, list[GraphText]], least: int, folder: Path, keep_text: bool
) -> dict[str, Any]:
    """Write all files to a folder and return statistics for the manifest."""
    if not splits["train"]:
        raise PrepError("the training set is empty")
    everything = [example for examples in splits.values() for example in examples]
    most = max(len(example.entities) for example in everything)
    types = {symbol for example in everything for symbol in example.types}
    vocabulary = build_vocabulary(splits["train"], least, types, most)
    dictionaries = {part: folder / f"dict.{part}.txt" for part in ("graph", "relation", "text")}
    for part, path in dictionaries.items():
        write_dictionary(getattr(vocabulary, part), path)
    lines = folder / "lines"
    lines.mkdir()
    for split, examples in splits.items():
        write_examples(examples, folder / f"{split}.jsonl")
        for part in ("graph", "text"):
            rows = (x.as_text() if part == "graph" else x.text for x in examples)
            (lines / f"{split}.{part}").write_text("".join(f"{row}\n" for row in rows), "utf-8")
    for part in ("graph", "text"):
        texts = {split: lines / f"{split}.{part}" for split in splits}
        binarise_text(texts, folder, 1, dictionaries[part], f".graph-text.{part}")
    if not keep_text:
        shutil.rmtree(lines)
    known = set(vocabulary.text)
    return {
        "vocabulary": {part: len(symbols) for part, symbols in asdict(vocabulary).items()},
        "entity_symbols": most,
        "splits": {split: statistics(examples, known) for split, examples in splits.items()},
    }


def write_examples(examples: Iterable[GraphText], path: Path) -> None:
    """Write SPLIT.jsonl."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for example in tqdm(examples, path.name, leave=False, disable=None):
            fields = {name: x for name, x in asdict(example).items() if x is not None}
            file.write(json.dumps(fields, ensure_ascii=False) + "\n")


def statistics(examples: list[GraphText], known: set[str]) -> dict[str, int]:
    """The numbers of examples, nodes and tokens of a split."""
    words = [example.text.split() for example in examples]
    mentioned = [
        sum(ENTITY.format(i) in text for i in range(len(example.entities)))
        for example, text in ((x, set(row)) for x, row in zip(examples, words, strict=True))
    ]
    return {
        "kept": len(examples),
        "entities": sum(len(x.entities) for x in examples),
        "mentioned": sum(mentioned),
        "triples": sum(len(x.triples) for x in examples),
        "tokens": sum(map(len, words)),
        "unknown": sum(word not in known for row in words for word in row),
    }


def summary(manifest: dict[str, Any], out: Path) -> str:
    """Return the statistics of a prepared corpus, and how to train on it."""
    sizes = manifest["vocabulary"]
    rows = [
        f"{split}: {x['kept']} texts, {x['triples']} triples, {x['entities']} entities "
        f"({x['mentioned'] / max(1, x['entities']):.1%} of them mentioned by a symbol), "
        f"{x['tokens']} tokens ({x['unknown'] / max(1, x['tokens']):.2%} unknown)"
        for split, x in manifest["splits"].items()
    ]
    return "\n".join(
        [
            *rows,
            f"vocabulary: {sizes['text']} symbols of texts ({manifest['entity_symbols']} of them "
            f"entities), {sizes['graph']} of graphs, {sizes['relation']} relations",
            f"fairseq-train {out} --task graph_to_text --arch graph_writer_deterministic …",
        ]
    )
