"""Turn the rows of a labelled corpus into the binary data of fairseq's fine-tuning tasks.

Every part of an example has its own folder with the splits and a dict.txt. ``input0``, ``input1``,
… contain the texts and share one dictionary. ``label`` depends on the kind of the task:

- classification: ``label`` is binarised. Its dict.txt lists the classes in a fixed order, so the
  number of a class never depends on the data (task sentence_prediction).
- regression: ``label/SPLIT.label`` has one number per line, divided by the highest score as in
  fairseq's GLUE recipe (sentence_prediction --regression-target).
- choice: ``input0`` is the context, ``input1``, … are the options, and ``label/SPLIT.label`` has
  the index of the right option (sentence_ranking).
- tagging: ``input0`` contains subwords, and ``label`` has one symbol per subword: the tag of
  the word for its first subword, ``<ignore>`` for the others. label/dict.txt lists ``O``, then the
  other tags in sorted order, then ``<ignore>``, so tags are numbered from 0. Each word is split
  into subwords separately; for gpt2 and tokenizers, a space precedes all words but the first.

A word (tagging) or text (other tasks) without any subword becomes one ``<unk>``. A split without
labels (the test sets of GLUE, SWAG and HellaSWAG) contains only inputs.
"""

from __future__ import annotations

import shlex
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
from steps.examples import IGNORE, Example, SplitStats, TaskSpec, check_examples, write_text
from steps.lines import Report
from steps.models import copy_model
from steps.parallel import map_chunks
from steps.tables import Table

MAX_UNKNOWN = 0.5  # a higher share of unknown subwords means that the dictionary is the wrong one
NOTES = {
    "duplicates": "duplicates (kept)",
    "seen_in_train": "examples whose input is also in train",
    "shortened": "texts truncated to --max-length",
    "too_long": "pairs truncated to --max-length, the longer text first",
    "unwritable": "words or texts without any subword (each became <unk>)",
}


@dataclass(frozen=True)
class Encoding:
    """The subword model to use: one to learn with ``size`` pieces, or the ready-made ``model``."""

    kind: str
    size: int
    max_tokens: int
    model: Path | None = None
    files: tuple[Path, ...] = ()  # the files of a model that is a folder
    dictionary: Path | None = None
    lowercase: bool = False
    model_flags: str = "--arch roberta_base"  # fairseq-train's flags for the model to fine-tune
    # RoBERTa has two separators between the sentences of a pair, BERT has one.
    two_separators: bool = True

    def room(self, inputs: int) -> int:
        """The number of subwords of an example, without the tokens that the task adds to it.

        These are the first and the last token, and between the texts of a pair one separator or
        two; --max-tokens counts the subwords of a single text.
        """
        added = 2 if inputs == 1 else 4 if self.two_separators else 3
        return max(min(inputs, 2), self.max_tokens + 2 - added)


def cut_pair(first: int, second: int, room: int) -> tuple[int, int]:
    """The lengths of both texts of a pair after truncation: the longer one loses tokens first."""
    if first + second <= room:
        return first, second
    half = room // 2
    if min(first, second) > half:
        return room - half, half
    return (first, room - first) if first < second else (room - second, second)


def text_applier(kind: str, model: Path | None) -> Callable[[list[tuple[str, ...]]], list]:
    """Return a function that splits all texts of a list of examples into subwords."""
    apply = subwords.applier(kind, model)

    def split(rows: list[tuple[str, ...]]) -> list[list[list[str]]]:
        pieces = iter(apply([text.rstrip("\n") for row in rows for text in row]))
        return [[subwords.plain_pieces(next(pieces)) for _ in row] for row in rows]

    return split


def word_applier(kind: str, model: Path | None) -> Callable[[list[tuple[str, str]]], list]:
    """Return a function that splits (text, tags) pairs word by word.

    Its results are (subwords, one tag per subword, number of words without any subword).
    """
    apply = subwords.applier(kind, model)
    space = " " if kind in ("gpt2", "tokenizer") else ""

    def split(rows: list[tuple[str, str]]) -> list[tuple[list[str], list[str], int]]:
        sentences = [text.rstrip("\n").split(" ") for text, _ in rows]
        words = [space * (i > 0) + word for s in sentences for i, word in enumerate(s)]
        pieces_of_words = iter(apply(words))
        results = []
        for sentence, (_, tags) in zip(sentences, rows, strict=True):
            pieces, symbols, unwritable = [], [], 0
            for _, tag in zip(sentence, tags.split(), strict=True):
                word_pieces = subwords.plain_pieces(next(pieces_of_words))
                unwritable += not word_pieces
                pieces += word_pieces or [subwords.UNKNOWN]
                symbols += [tag, *[IGNORE] * (len(word_pieces) - 1)]
            results.append((pieces, symbols, unwritable))
        return results

    return split


def write_subwords(
    split: str,
    spec: TaskSpec,
    encoding: Encoding,
    text_folder: Path,
    subword_folder: Path,
    workers: int,
    stats: SplitStats,
) -> None:
    """Write the subwords of a split; truncate long texts and pairs."""
    tags = spec.kind == "tagging"
    parts = [*spec.parts, "label"] if tags else spec.parts
    lines = overlap.parallel_lines(text_folder / split, parts)
    rows = tqdm(lines, f"{split}: subwords", leave=False, disable=None)
    limit = encoding.room(spec.inputs)
    with overlap.open_writers(subword_folder / split, parts) as files:
        make_function = word_applier if tags else text_applier
        processes = workers_for(text_folder / f"{split}.input0", workers)
        for row in map_chunks(make_function, (encoding.kind, encoding.model), rows, processes):
            if tags:
                stats.unwritable += row[2]
                row = row[:2]
            else:
                stats.unwritable += sum(not pieces for pieces in row)
                row = [pieces or [subwords.UNKNOWN] for pieces in row]
            if spec.inputs == 1:
                stats.shortened += len(row[0]) > limit
                row = [pieces[:limit] for pieces in row]
            else:
                # All options of a choice share one context, which fits with the longest option.
                longest = max(map(len, row[1:]))
                stats.too_long += len(row[0]) + longest > limit
                first, other = cut_pair(len(row[0]), longest, limit)
                context = row[0][len(row[0]) - first :] if spec.keep_end else row[0][:first]
                row = [context, *(pieces[:other] for pieces in row[1:])]
            overlap.write_lines(files, [" ".join(pieces) + "\n" for pieces in row])


def make_dictionary(
    spec: TaskSpec, encoding: Encoding, subword_folder: Path, scratch: Path, workers: int
) -> Path:
    """Return the path of the dictionary of the inputs.

    It is the dict.txt of a ready-made model if there is one; else it lists all symbols of the
    subword model, or all words of the training text.
    """
    if encoding.dictionary is not None:
        return encoding.dictionary
    path = scratch / "dict.txt"
    symbols = subwords.vocabulary(encoding.kind, encoding.model)
    if symbols is not None:
        write_dictionary(symbols, path)
        return path
    build_dictionary([subword_folder / f"train.{part}" for part in spec.parts], path, workers)
    return path


def write_labels(split: str, spec: TaskSpec, folder: Path, out: Path, scratch: Path) -> None:
    """Write the labels of a split, if it has any, as numbers in a text file or binarised."""
    path = folder / f"{split}.label"
    if not path.exists():
        return
    if spec.kind in ("regression", "choice"):
        shutil.copyfile(path, out / "label" / f"{split}.label")
        return
    dictionary = scratch / "labels.txt"
    write_dictionary(spec.symbols, dictionary)
    binarise_text({split: path}, out / "label", 1, dictionary)


def prepare(
    tables: dict[str, Table],
    convert: Callable[[Any], Example | str],
    spec: TaskSpec,
    encoding: Encoding,
    out: Path,
    workers: int,
    keep_text: bool = False,
) -> dict[str, Any]:
    """Run all steps, write the data to ``out`` and return the statistics for the manifest."""
    text_folder, subword_folder, scratch = out / "text", out / "cut", out / "scratch"
    inputs = [out / part for part in spec.parts]
    for folder in (text_folder, subword_folder, scratch, out / "label", *inputs):
        folder.mkdir()
    stats_by_split: dict[str, SplitStats] = {}
    splits: dict[str, dict[str, Any]] = {}
    for split, table in tables.items():
        report = Report()
        examples = check_examples(table(report), convert, spec, encoding.lowercase)
        stats_by_split[split] = write_text(split, examples, spec, text_folder)
        stats_by_split[split].dropped.update(report.dropped)
        splits[split] = {"mended": dict(report.repaired)}
    shared = overlap.find_overlap(text_folder, list(tables), spec.parts, drop=False)
    encoding = with_model(encoding, [text_folder / f"train.{part}" for part in spec.parts], out)
    for split, stats in stats_by_split.items():
        write_subwords(split, spec, encoding, text_folder, subword_folder, workers, stats)
    dictionary = make_dictionary(spec, encoding, subword_folder, scratch, workers)
    label_folder = subword_folder if spec.kind == "tagging" else text_folder
    for split, stats in stats_by_split.items():
        for part in spec.parts:
            text = subword_folder / f"{split}.{part}"
            binarise_text({split: text}, out / part, workers, dictionary)
        write_labels(split, spec, label_folder, out, scratch)
        counts = [count_tokens(out / part / split, dictionary) for part in spec.parts]
        tokens, unknown = (sum(column) for column in zip(*counts, strict=True))
        splits[split] |= {
            **vars(stats),
            "dropped": dict(stats.dropped),
            "labels": {x: stats.labels[x] for x in spec.labels} or None,
            "duplicates": shared.duplicates[split],
            "seen_in_train": shared.seen_in_train.get(split),
            "tokens": tokens,
            "unknown_rate": round(unknown / max(1, tokens), 6),
        }
    rate = splits["train"]["unknown_rate"]
    if rate > MAX_UNKNOWN:
        raise PrepError(
            f"{dictionary} does not belong to the subword model: "
            f"it lacks {rate:.0%} of the subwords of the training set"
        )
    for folder in (scratch, *(() if keep_text else (text_folder, subword_folder))):
        shutil.rmtree(folder)
    size = len((out / "input0" / "dict.txt").read_text("utf-8").splitlines())
    return {
        "recipe": {"subwords": encoding.kind, "lowercase": encoding.lowercase},
        "model": {"flags": encoding.model_flags, "two_separators": encoding.two_separators},
        "splits": splits,
        "vocabulary": size,
    }


def with_model(encoding: Encoding, train: list[Path], out: Path) -> Encoding:
    """Learn the subword model into ``out``, or copy a ready-made one there."""
    name = subwords.model_name(encoding.kind)
    if name is None:
        return encoding
    if encoding.model is None:
        # By default sentencepiece ignores lines of more than 4,192 bytes.
        options = {"max_sentence_length": 1 << 16}
        subwords.learn(encoding.kind, train, encoding.size, out / name, **options)
    elif encoding.files:
        copy_model(encoding.files, out / name)
    else:
        shutil.copyfile(encoding.model, out / name)
    return replace(encoding, model=out / name)


def summary(manifest: dict[str, Any], out: Path) -> str:
    """Return the text that the script prints at the end."""
    lines = []
    for split, stats in manifest["splits"].items():
        dropped = ", ".join(f"{n} {why}" for why, n in sorted(stats["dropped"].items())) or "none"
        lines.append(f"{split}: {stats['kept']} examples kept, dropped: {dropped}")
        notes = [f"repaired {n} lines ({problem})" for problem, n in stats["mended"].items()]
        for key, note in NOTES.items():
            notes += [f"{stats[key]} {note}"] if stats[key] else []
        if not stats["labelled"]:
            notes.append("no labels: inputs only")
        notes.append(f"{stats['tokens']} tokens, {stats['unknown_rate']:.2%} unknown")
        lines.append(f"  {', '.join(notes)}")
    lines.append(f"vocabulary: {manifest['vocabulary']} entries")
    kind, inputs = (manifest["arguments"][key] for key in ("kind", "inputs"))
    if kind == "tagging":
        lines.append(
            f"train with: fairseq-train {shlex.quote(str(out))} --user-dir fairseq_stochattn "
            "--task token_tagging --criterion token_tagging "
            "--arch roberta_deterministic_base --init-token 0"
        )
        return "\n".join(lines)
    task = "sentence_ranking" if kind == "choice" else "sentence_prediction"
    classes = len(manifest["arguments"]["labels"]) or 1
    # Manifests of earlier versions do not record the model.
    model = {"flags": Encoding.model_flags, "two_separators": True, **manifest.get("model", {})}
    pair = " --separator-token 2" if inputs > 1 and model["two_separators"] else ""
    target = " --regression-target" if kind == "regression" else ""
    lines.append(
        f"train with: fairseq-train {shlex.quote(str(out))} --task {task} --criterion {task} "
        f"--num-classes {classes} {model['flags']} --init-token 0{pair}{target}"
    )
    return "\n".join(lines)
