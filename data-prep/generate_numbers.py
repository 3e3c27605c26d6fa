"""Generate a German-English corpus of numbers, dates, clock times and prices in short sentences.

Writes train/valid/test .de and .en files, and valid/test .jsonl with every right translation.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import NoReturn

from numbers_corpus.carriers import KINDS, Sentence

# Draws of one kind in a row that may all be known already before the kind counts as used up.
_PATIENCE = 2_000
# Held-out splits come first, so that they do not change with the size of the training part.
_SPLIT_ORDER = ("test", "valid", "train")


class CorpusError(Exception):
    """The corpus cannot be made as asked; the message is one line for the user."""


def draw_distinct(rng: Random, size: int, seen: set[str]) -> list[Sentence]:
    """Draw size sentences whose German is not in seen, and add it there."""
    names = list(KINDS)
    weights = [KINDS[name][0] for name in names]
    sentences = []
    while len(sentences) < size:
        # A known sentence is replaced by one of its kind, so that the mixture stays as weighted.
        kind = rng.choices(names, weights=weights)[0]
        sentence = _draw_new(rng, kind, seen)
        seen.add(sentence.german)
        sentences.append(sentence)
    return sentences


def _draw_new(rng: Random, kind: str, seen: set[str]) -> Sentence:
    draw = KINDS[kind][1]
    for _ in range(_PATIENCE):
        sentence = draw(rng)
        if sentence.german not in seen:
            return sentence
    raise CorpusError(
        f"too many sentences asked: no new sentence of kind {kind!r} left after {len(seen)}"
    )


def build_corpus(sizes: Mapping[str, int], seed: int) -> dict[str, list[tuple[Sentence, str]]]:
    """Return for each split its sentences, each with the one translation picked as its target."""
    rng = Random(seed)
    seen: set[str] = set()
    corpus = {}
    for split in _SPLIT_ORDER:
        sentences = draw_distinct(rng, sizes[split], seen)
        corpus[split] = [(sentence, rng.choice(sentence.references)) for sentence in sentences]
    train_sources = {sentence.german for sentence, _ in corpus["train"]}
    for split in ("test", "valid"):
        assert not any(sentence.german in train_sources for sentence, _ in corpus[split])
    return corpus


def as_json(sentence: Sentence, target: str) -> str:
    record = {
        "de": sentence.german,
        "en": target,
        "references": list(sentence.references),
        "kind": sentence.kind,
        "ambiguous": sentence.ambiguous,
    }
    return json.dumps(record, ensure_ascii=False)


def write_corpus(corpus: Mapping[str, list[tuple[Sentence, str]]], folder: Path) -> None:
    """Write all files, replacing older ones only when every new one is complete."""
    texts = {}
    for split, pairs in corpus.items():
        texts[f"{split}.de"] = [sentence.german for sentence, _ in pairs]
        texts[f"{split}.en"] = [target for _, target in pairs]
        if split != "train":
            texts[f"{split}.jsonl"] = [as_json(sentence, target) for sentence, target in pairs]
    folder.mkdir(parents=True, exist_ok=True)
    temporary = {name: folder / f".{name}.{os.getpid()}.tmp" for name in texts}
    try:
        for name, lines in texts.items():
            temporary[name].write_text(
                "".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n"
            )
        for name, path in temporary.items():
            path.replace(folder / name)
    finally:
        for path in temporary.values():
            path.unlink(missing_ok=True)


class _OneLineParser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, without the usage in front."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


def positive_size(text: str) -> int:
    try:
        size = int(text)
    except ValueError:
        size = 0
    if size < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return size


def make_parser() -> argparse.ArgumentParser:
    parser = _OneLineParser(prog="generate_numbers.py", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder to write the files to")
    parser.add_argument("--seed", type=int, default=1, help="default: %(default)s")
    for split, size in (("train", 12_000), ("valid", 500), ("test", 500)):
        parser.add_argument(
            f"--{split}", type=positive_size, default=size, help="sentences, default: %(default)s"
        )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = make_parser().parse_args(argv)
    sizes = {split: getattr(arguments, split) for split in _SPLIT_ORDER}
    try:
        corpus = build_corpus(sizes, arguments.seed)
        write_corpus(corpus, arguments.out)
    except (CorpusError, OSError) as error:
        print(f"generate_numbers.py: error: {error}", file=sys.stderr)
        return 1
    for split in reversed(_SPLIT_ORDER):
        ambiguous = sum(sentence.ambiguous for sentence, _ in corpus[split])
        kinds = Counter(sentence.kind for sentence, _ in corpus[split])
        mixture = ", ".join(f"{kind} {kinds[kind]}" for kind in KINDS)
        share = ambiguous / len(corpus[split])
        print(f"{split}: {len(corpus[split])} sentences, {share:.0%} ambiguous ({mixture})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
