"""Write data of visual question answering: questions, soft answers and features of regions.

``fairseq_stochattn/tasks/vqa_file.py`` describes the files and reads them.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from steps import subwords
from steps.binary import binarise_text, build_dictionary, count_tokens
from steps.errors import PrepError
from steps.parallel import map_chunks

LAYOUT = "vqa.json"
QUESTIONS = "question"
DTYPE = np.dtype("<f2")
Features = Callable[[int], np.ndarray]  # number of an image in the corpus → (R, width)


@dataclass(frozen=True)
class Question:
    """One question about an image."""

    id: int  # in the corpus
    image: int  # number of the image in the corpus
    text: str
    # Answer → score, the most frequent answer first; None without labels.
    answers: Mapping[str, float] | None


@dataclass
class SplitStats:
    """Counts of one split."""

    read: int = 0
    kept: int = 0
    images: int = 0
    regions: int = 0
    shortened: int = 0  # questions with too many words
    no_known_answer: int = 0
    dropped: Counter[str] = field(default_factory=Counter)


def _splitter() -> Callable[[list[str]], list[list[str]]]:
    """Return a function that splits lowercased questions into words, without punctuation."""
    split = subwords.applier("words", None)

    def words(texts: list[str]) -> list[list[str]]:
        lines = split([" ".join(text.lower().replace("\0", "").split()) for text in texts])
        return [[w for w in line.split() if any(c.isalnum() for c in w)] for line in lines]

    return words


def prepare(
    folder: Path,
    splits: Mapping[str, Iterable[Question]],
    features: Features,
    answers: Sequence[str],
    width: int,
    grid: tuple[int, int] | None = None,
    max_words: int = 14,
    workers: int = 1,
    keep_text: bool = False,
) -> dict[str, Any]:
    """Write all splits and return statistics for the manifest.

    The dictionary has the words of the split ``train``. ``answers`` are the classes; an answer
    that is not among them is left out of the scores of its question.
    """
    layout = {"answers": list(answers), "width": width, "grid": grid}
    (folder / LAYOUT).write_text(json.dumps(layout, ensure_ascii=False) + "\n", encoding="utf-8")
    number = {answer: index for index, answer in enumerate(answers)}
    statistics: dict[str, SplitStats] = {}
    # On the same disk as the output, and removed with it if the script is stopped.
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        texts = {}
        for split, questions in splits.items():
            texts[split] = Path(scratch) / split
            stats = statistics[split] = SplitStats()
            kept = _write_texts(split, questions, texts[split], max_words, workers, stats)
            _write_split(folder, split, kept, number, features, width, stats)
        dictionary = folder / QUESTIONS / "dict.txt"
        build_dictionary([texts["train"]], dictionary, workers)
        binarise_text(texts, folder / QUESTIONS, workers, dictionary)
        if keep_text:
            (folder / "text").mkdir()
            for split, text in texts.items():
                shutil.copyfile(text, folder / "text" / f"{split}.txt")
    tokens, unknown = count_tokens(folder / QUESTIONS / list(splits)[-1], dictionary)
    return {
        "vqa": {"answers": len(answers), "width": width, "grid": grid},
        "unknown_words": {list(splits)[-1]: unknown / max(1, tokens)},
        "splits": {split: vars(stats) for split, stats in statistics.items()},
    }


def _write_texts(
    split: str,
    questions: Iterable[Question],
    path: Path,
    max_words: int,
    workers: int,
    stats: SplitStats,
) -> list[Question]:
    """Write the words of every question to one line; return the questions that have any words."""
    every = list(questions)
    stats.read = len(every)
    rows = map_chunks(_splitter, (), (question.text for question in every), workers)
    kept = []
    with path.open("w", encoding="utf-8") as file:
        for question, words in zip(
            tqdm(every, f"{split}: questions", leave=False, disable=None), rows, strict=True
        ):
            if not words:
                stats.dropped["question without words"] += 1
                continue
            stats.shortened += len(words) > max_words
            file.write(" ".join(words[:max_words]) + "\n")
            kept.append(question)
    if not kept:
        raise PrepError(f"the {split} set has no question")
    stats.kept = len(kept)
    return kept


def _write_split(
    folder: Path,
    split: str,
    questions: Sequence[Question],
    number: Mapping[str, int],
    features: Features,
    width: int,
    stats: SplitStats,
) -> None:
    """Write SPLIT.regions and SPLIT.npz."""
    images = sorted({question.image for question in questions})
    place = {image: index for index, image in enumerate(images)}
    arrays = {
        "image": np.array([place[question.image] for question in questions], dtype=np.int64),
        "question_id": np.array([question.id for question in questions], dtype=np.int64),
        "starts": write_regions(folder / f"{split}.regions", images, features, width, split),
    }
    labelled = sum(question.answers is not None for question in questions)
    if 0 < labelled < len(questions):
        missing = len(questions) - labelled
        raise PrepError(f"{missing} questions of the {split} set have no answers")
    if labelled:
        known = [
            [(number[a], s) for a, s in question.answers.items() if a in number and s > 0]
            for question in questions
        ]
        pairs = [pair for row in known for pair in row]
        arrays["answer_starts"] = np.cumsum([0, *map(len, known)], dtype=np.int64)
        arrays["answers"] = np.array([answer for answer, _ in pairs], dtype=np.int64)
        arrays["scores"] = np.array([score for _, score in pairs], dtype=np.float32)
        stats.no_known_answer = sum(not row for row in known)
    np.savez_compressed(folder / f"{split}.npz", **arrays)
    stats.images, stats.regions = len(images), int(arrays["starts"][-1])


def write_regions(
    path: Path, images: Sequence[int], features: Features, width: int, split: str
) -> np.ndarray:
    """Write the features of all images one after the other; return where each begins, (M + 1,)."""
    starts = [0]
    with path.open("wb") as file:
        for image in tqdm(images, f"{split}: images", leave=False, disable=None):
            x = features(image)
            if x.ndim != 2 or x.shape[1] != width or not len(x):
                raise PrepError(
                    f"image {image}: features of shape {x.shape}, not (regions, {width})"
                )
            with np.errstate(over="ignore"):  # too large numbers become infinite
                rows = np.ascontiguousarray(x, dtype=DTYPE)
            if not np.isfinite(rows).all():
                raise PrepError(f"image {image}: a feature is not finite, or too large for 16 bits")
            file.write(rows.tobytes())
            starts.append(starts[-1] + len(x))
    return np.array(starts, dtype=np.int64)


def summary(manifest: dict[str, Any], out: Path) -> str:
    """Return the statistics of prepared data, and how to train on it."""
    shape = manifest["vqa"]
    lines = []
    for split, stats in manifest["splits"].items():
        line = f"{split}: {stats['kept']} questions about {stats['images']} images"
        line += f" ({stats['regions']} regions)"
        for name, label in (
            ("shortened", "shortened"),
            ("no_known_answer", "without a known answer"),
        ):
            line += f", {stats[name]} {label}" if stats[name] else ""
        for reason, count in stats["dropped"].items():
            line += f", {count} dropped: {reason}"
        lines.append(line)
    unknown = ", ".join(f"{x:.2%} in {split}" for split, x in manifest["unknown_words"].items())
    return "\n".join(
        [
            *lines,
            f"{shape['answers']} answers, {shape['width']} features per region, "
            f"unknown words: {unknown}",
            f"fairseq-train {out} --task vqa --arch mcan_deterministic --criterion vqa …",
        ]
    )
