"""A labelled corpus from rows to the binary data that fairseq's fine-tuning tasks read.

Every part of an example has its folder with the splits and a dict.txt: ``input0``, ``input1`` ...
for the texts, all with one dictionary, and ``label``:

- classification: ``label`` is binarised; its dict.txt holds the classes in a fixed order, so the
  number of a class never depends on the data (task sentence_prediction).
- regression: ``label/SPLIT.label`` has one number a line, divided by the highest score as in
  fairseq's GLUE recipe (sentence_prediction --regression-target).
- choice: ``input0`` is the context, ``input1`` ... are the options, ``label/SPLIT.label`` has the
  index of the right one (sentence_ranking).
- tagging: ``input0`` holds subwords and ``label`` exactly one symbol for each: the word's tag at
  its first subword, ``<ignore>`` at the others. label/dict.txt lists ``O``, the other tags sorted,
  and last ``<ignore>``, so tags are numbered from 0. Words are cut one by one, after a space for
  gpt2 and tokenizers except at the start. A word that the subwords cannot write is one ``<unk>``,
  in the other kinds a text that they cannot write.

A split without labels (the test sets of GLUE, SWAG, HellaSWAG) has inputs only.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from steps import overlap, subwords
from steps.binary import (
    binarise_text,
    build_dictionary,
    count_tokens,
    workers_for,
    write_dictionary,
)
from steps.errors import PrepError
from steps.examples import IGNORE, Example, Figures, Shape, examples, write_text
from steps.lines import Report
from steps.models import copy_given
from steps.parallel import map_chunks
from steps.tables import Table

MISMATCH = 0.5  # unknown subwords in the training data that cannot be an accident
NOTES = {
    "duplicates": "duplicates (kept)",
    "seen_in_train": "whose input is in train too",
    "shortened": "texts cut at --max-tokens",
    "too_long": "pairs longer than --max-tokens (kept whole)",
    "unwritable": "words or texts that the subwords cannot write (one <unk> each)",
}


@dataclass(frozen=True)
class Encoding:
    """The subwords: of a kind, learnt with this size or taken from ``model``, with its dict.txt."""

    kind: str
    size: int
    max_tokens: int
    model: Path | None = None
    files: tuple[Path, ...] = ()  # of a model that is a folder
    dictionary: Path | None = None
    lowercase: bool = False
    model_flags: str = "--arch roberta_base"  # of the model that is to be fine-tuned
    two_separators: bool = True  # it has two between the sentences of a pair, BERT has one


def cutter(kind: str, model: Path | None) -> Callable[[list[tuple[str, ...]]], list]:
    """Work that cuts every text of examples into subwords; a text without any is left empty."""
    cut = subwords.applier(kind, model)

    def work(rows: list[tuple[str, ...]]) -> list[list[list[str]]]:
        found = iter(cut([text.rstrip("\n") for row in rows for text in row]))
        return [[subwords.plain_pieces(next(found)) for _ in row] for row in rows]

    return work


def word_cutter(kind: str, model: Path | None) -> Callable[[list[tuple[str, str]]], list]:
    """Work that cuts sentences word by word, and gives every subword its tag."""
    cut = subwords.applier(kind, model)
    space = " " if kind in ("gpt2", "tokenizer") else ""

    def work(rows: list[tuple[str, str]]) -> list[tuple[list[str], list[str], int]]:
        sentences = [text.rstrip("\n").split(" ") for text, _ in rows]
        found = iter(cut([space * (i > 0) + word for s in sentences for i, word in enumerate(s)]))
        done = []
        for sentence, (_, tags) in zip(sentences, rows, strict=True):
            pieces, symbols, unwritable = [], [], 0
            for _, tag in zip(sentence, tags.split(), strict=True):
                written = subwords.plain_pieces(next(found))
                unwritable += not written
                pieces += written or [subwords.UNKNOWN]
                symbols += [tag, *[IGNORE] * (len(written) - 1)]
            done.append((pieces, symbols, unwritable))
        return done

    return work


def cut_split(
    split: str,
    shape: Shape,
    encoding: Encoding,
    text: Path,
    cut: Path,
    workers: int,
    figures: Figures,
) -> None:
    """The subwords of a split; single texts end after ``max_tokens``, longer pairs are counted."""
    tags = shape.kind == "tagging"
    parts = [*shape.parts, "label"] if tags else shape.parts
    rows = tqdm(
        overlap.parallel_lines(text / split, parts), f"{split}: subwords", leave=False, disable=None
    )
    most = encoding.max_tokens
    with overlap.writers(cut / split, parts) as files:
        work = word_cutter if tags else cutter
        many = workers_for(text / f"{split}.input0", workers)
        for row in map_chunks(work, (encoding.kind, encoding.model), rows, many):
            if tags:
                figures.unwritable += row[2]
                row = row[:2]
            else:
                figures.unwritable += sum(not pieces for pieces in row)
                row = [pieces or [subwords.UNKNOWN] for pieces in row]
            if shape.inputs == 1:
                figures.shortened += len(row[0]) > most
                row = [pieces[:most] for pieces in row]
            else:
                pair = len(row[0]) + max(map(len, row[1:]))
                figures.too_long += pair > most
            overlap.write(files, [" ".join(pieces) + "\n" for pieces in row])


def make_dictionary(
    shape: Shape, encoding: Encoding, cut: Path, scratch: Path, workers: int
) -> Path:
    """The given dict.txt, all symbols of the model, or the words of the training text."""
    if encoding.dictionary is not None:
        return encoding.dictionary
    path = scratch / "dict.txt"
    symbols = subwords.vocabulary(encoding.kind, encoding.model)
    if symbols is not None:
        write_dictionary(symbols, path)
        return path
    build_dictionary([cut / f"train.{part}" for part in shape.parts], path, workers)
    return path


def write_labels(split: str, shape: Shape, folder: Path, out: Path, scratch: Path) -> None:
    """The labels of a split, if it has any: as numbers in text, or binarised."""
    path = folder / f"{split}.label"
    if not path.exists():
        return
    if shape.kind in ("regression", "choice"):
        shutil.copyfile(path, out / "label" / f"{split}.label")
        return
    dictionary = scratch / "labels.txt"
    write_dictionary(shape.symbols, dictionary)
    binarise_text({split: path}, out / "label", 1, dictionary)


def prepare(
    tables: dict[str, Table],
    make: Callable[[Any], Example | str],
    shape: Shape,
    encoding: Encoding,
    out: Path,
    workers: int,
    keep_text: bool = False,
) -> dict[str, Any]:
    """All steps into ``out``; returns the figures of the manifest."""
    text, cut, scratch = out / "text", out / "cut", out / "scratch"
    for folder in (text, cut, scratch, out / "label", *(out / part for part in shape.parts)):
        folder.mkdir()
    found: dict[str, Figures] = {}
    splits: dict[str, dict[str, Any]] = {}
    for split, table in tables.items():
        report = Report()
        found[split] = write_text(
            split, examples(table(report), make, shape, encoding.lowercase), shape, text
        )
        found[split].dropped.update(report.dropped)
        splits[split] = {"mended": dict(report.mended)}
    shared = overlap.check(text, list(tables), shape.parts, drop=False)
    encoding = _with_model(encoding, [text / f"train.{part}" for part in shape.parts], out)
    for split, figures in found.items():
        cut_split(split, shape, encoding, text, cut, workers, figures)
    dictionary = make_dictionary(shape, encoding, cut, scratch, workers)
    for split, figures in found.items():
        for part in shape.parts:
            binarise_text({split: cut / f"{split}.{part}"}, out / part, workers, dictionary)
        write_labels(split, shape, cut if shape.kind == "tagging" else text, out, scratch)
        counts = [count_tokens(out / part / split, dictionary) for part in shape.parts]
        tokens, unknown = (sum(column) for column in zip(*counts, strict=True))
        splits[split] |= {
            **vars(figures),
            "dropped": dict(figures.dropped),
            "labels": {x: figures.labels[x] for x in shape.labels} or None,
            "duplicates": shared.duplicates[split],
            "seen_in_train": shared.seen_in_train.get(split),
            "tokens": tokens,
            "unknown_rate": round(unknown / max(1, tokens), 6),
        }
    if splits["train"]["unknown_rate"] > MISMATCH:
        rate = splits["train"]["unknown_rate"]
        raise PrepError(f"{dictionary} does not fit the subwords: it lacks {rate:.0%} of them")
    for folder in (scratch, *(() if keep_text else (text, cut))):
        shutil.rmtree(folder)
    size = len((out / "input0" / "dict.txt").read_text("utf-8").splitlines())
    return {
        "recipe": {"subwords": encoding.kind, "lowercase": encoding.lowercase},
        "model": {"flags": encoding.model_flags, "two_separators": encoding.two_separators},
        "splits": splits,
        "vocabulary": size,
    }


def _with_model(encoding: Encoding, train: list[Path], out: Path) -> Encoding:
    """Learn the model on the training text into ``out``, or put a copy of the given one there."""
    name = subwords.model_name(encoding.kind)
    if name is None:
        return encoding
    if encoding.model is None:
        # Left to itself, sentencepiece does not look at lines of more than 4,192 bytes.
        whole = {"max_sentence_length": 1 << 16}
        subwords.learn(encoding.kind, train, encoding.size, out / name, **whole)
    elif encoding.files:
        copy_given(encoding.files, out / name)
    else:
        shutil.copyfile(encoding.model, out / name)
    return replace(encoding, model=out / name)


def summary(manifest: dict[str, Any], out: Path) -> str:
    """What a user wants to read at the end."""
    lines = []
    for split, figures in manifest["splits"].items():
        dropped = ", ".join(f"{n} {why}" for why, n in sorted(figures["dropped"].items())) or "none"
        lines.append(f"{split}: {figures['kept']} examples kept, dropped: {dropped}")
        notes = [f"{n} lines with {what}" for what, n in figures["mended"].items()]
        for key, note in NOTES.items():
            notes += [f"{figures[key]} {note}"] if figures[key] else []
        if not figures["labelled"]:
            notes.append("no labels: inputs only")
        notes.append(f"{figures['tokens']} tokens, {figures['unknown_rate']:.2%} unknown")
        lines.append(f"  {', '.join(notes)}")
    lines.append(f"vocabulary: {manifest['vocabulary']} entries")
    kind, inputs = (manifest["arguments"][key] for key in ("kind", "inputs"))
    if kind == "tagging":
        lines.append(
            f"train with: fairseq-train {out} --user-dir fairseq_stochattn --task token_tagging "
            "--criterion token_tagging --arch roberta_deterministic_base --init-token 0"
        )
        return "\n".join(lines)
    task = "sentence_ranking" if kind == "choice" else "sentence_prediction"
    number = len(manifest["arguments"]["labels"]) or 1
    model = {"flags": Encoding.model_flags, "two_separators": True, **manifest.get("model", {})}
    pair = " --separator-token 2" if inputs > 1 and model["two_separators"] else ""
    target = " --regression-target" if kind == "regression" else ""
    lines.append(
        f"train with: fairseq-train {out} --task {task} --criterion {task} "
        f"--num-classes {number} {model['flags']} --init-token 0{pair}{target}"
    )
    return "\n".join(lines)
