"""Generate a German-English corpus of short sentences with numbers, dates, times and prices.

Example: stochattn-prepare numbers --out numbers
In a clone, python data-prep/generate_numbers.py takes the same flags.

The script writes the text files {train,valid,test}.{de,en}, and {valid,test}.jsonl with all correct
translations of every sentence. To binarise the text, use stochattn-prepare pairs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

from numbers_corpus.carriers import KINDS, Sentence
from steps.command import OneLineParser, main_of, positive_int
from steps.errors import PrepError

# isort: split
# Imported after steps, which finds the package in a clone where it is not installed.
from fairseq_stochattn.core.errors import InputError
from fairseq_stochattn.core.files import atomic_file

# If this many draws of one kind give no new sentence, an error is raised.
_MAX_DRAWS = 2_000
# The test and validation sets are drawn first, so they do not depend on the size of the training
# set.
_SPLIT_ORDER = ("test", "valid", "train")


def draw_distinct(rng: Random, size: int, seen: set[str]) -> list[Sentence]:
    """Draw ``size`` sentences whose German text is not in ``seen``; add the texts to ``seen``."""
    names = list(KINDS)
    weights = [KINDS[name][0] for name in names]
    sentences = []
    while len(sentences) < size:
        # A duplicate is replaced by a sentence of the same kind, so the shares of the kinds stay.
        kind = rng.choices(names, weights=weights)[0]
        sentence = _draw_new(rng, kind, seen)
        seen.add(sentence.german)
        sentences.append(sentence)
    return sentences


def _draw_new(rng: Random, kind: str, seen: set[str]) -> Sentence:
    draw = KINDS[kind][1]
    for _ in range(_MAX_DRAWS):
        sentence = draw(rng)
        if sentence.german not in seen:
            return sentence
    raise PrepError(
        f"too many sentences requested: after {len(seen)} sentences there is no new one "
        f"of kind {kind!r}"
    )


def build_corpus(sizes: Mapping[str, int], seed: int) -> dict[str, list[tuple[Sentence, str]]]:
    """Return the sentences of each split, each with one translation chosen as the target."""
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
    """Return the JSON record of one sentence."""
    record = {
        "de": sentence.german,
        "en": target,
        "references": list(sentence.references),
        "kind": sentence.kind,
        "ambiguous": sentence.ambiguous,
    }
    return json.dumps(record, ensure_ascii=False)


def write_corpus(corpus: Mapping[str, list[tuple[Sentence, str]]], folder: Path) -> None:
    """Write all files; older files are replaced only after all new ones are complete."""
    texts = {}
    for split, pairs in corpus.items():
        texts[f"{split}.de"] = [sentence.german for sentence, _ in pairs]
        texts[f"{split}.en"] = [target for _, target in pairs]
        if split != "train":
            texts[f"{split}.jsonl"] = [as_json(sentence, target) for sentence, target in pairs]
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        for name, lines in texts.items():
            stack.enter_context(atomic_file(folder / name)).write_text(
                "".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n"
            )


def make_parser() -> OneLineParser:
    """Return the parser of the command line."""
    parser = OneLineParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="output folder")
    parser.add_argument("--seed", type=int, default=1, help="random seed, default: %(default)s")
    for split, size in (("train", 12_000), ("valid", 500), ("test", 500)):
        parser.add_argument(
            f"--{split}",
            type=positive_int,
            default=size,
            help=f"number of sentences in the {split} set, default: %(default)s",
        )
    return parser


def run(argv: Sequence[str] | None) -> None:
    args = make_parser().parse_args(argv)
    corpus = build_corpus({split: getattr(args, split) for split in _SPLIT_ORDER}, args.seed)
    try:
        write_corpus(corpus, args.out)
    except (InputError, OSError) as error:
        raise PrepError(str(error)) from None
    for split in reversed(_SPLIT_ORDER):
        ambiguous = sum(sentence.ambiguous for sentence, _ in corpus[split])
        kinds = Counter(sentence.kind for sentence, _ in corpus[split])
        kind_counts = ", ".join(f"{kind} {kinds[kind]}" for kind in KINDS)
        share = ambiguous / len(corpus[split])
        print(f"{split}: {len(corpus[split])} sentences, {share:.0%} ambiguous ({kind_counts})")


main = main_of(run)

if __name__ == "__main__":
    sys.exit(main())
