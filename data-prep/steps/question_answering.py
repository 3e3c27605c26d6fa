"""Turn articles with questions into the binary data of ``--task question_answering``.

- ``input0`` and ``input1``: the question and a part of the paragraph, one row per window.
- ``label/SPLIT.label``: the first and the last subword of the answer within that part, or ``-1 -1``
  if the part has no answer. A split without answers has no such file.
- ``questions/SPLIT.jsonl``: one question per line with its windows and the texts of all answers;
  ``questions/SPLIT.contexts.jsonl``: one paragraph per line with the first and the last character
  of each subword. Only stochattn-predict reads them.
"""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from tqdm import tqdm

from steps import subwords
from steps.binary import binarise_text, count_tokens
from steps.errors import PrepError
from steps.examples import TaskSpec
from steps.finetuning import MAX_UNKNOWN, Encoding, make_dictionary, with_model
from steps.offsets import Pieces, offset_applier, plain_text
from steps.parallel import map_chunks
from steps.questions import (
    NO_ANSWER,
    Article,
    Counts,
    Paragraph,
    Question,
    target_of,
    windows_of,
    within,
)

SPEC = TaskSpec("span", 2)
LARGE = 2_000  # paragraphs; with fewer, starting worker processes costs more than it saves


@dataclass(frozen=True)
class Windows:
    """How contexts are cut: a new window every ``step`` subwords, questions of at most ``most``."""

    step: int
    most: int


def prepare(
    splits: dict[str, Sequence[Article]],
    encoding: Encoding,
    windows: Windows,
    out: Path,
    workers: int,
    keep_text: bool = False,
) -> dict[str, Any]:
    """Run all steps, write the data to ``out`` and return the statistics for the manifest."""
    cut, scratch = out / "cut", out / "scratch"
    for folder in (cut, scratch, out / "label", out / "questions", *(out / x for x in SPEC.parts)):
        folder.mkdir()
    texts = scratch / "train.text"
    _write_texts(splits["train"], texts, encoding.lowercase)
    encoding = with_model(encoding, [texts], out)
    found: dict[str, dict[str, Any]] = {}
    for split, articles in splits.items():
        counts = _write_split(split, articles, encoding, windows, out, workers)
        found[split] = {**vars(counts), "dropped": dict(counts.dropped)}
    if not found["train"]["windows_with_answer"]:
        raise PrepError("the training set has no question with an answer")
    dictionary = make_dictionary(SPEC, encoding, cut, scratch, workers)
    for split, stats in found.items():
        for part in SPEC.parts:
            binarise_text({split: cut / f"{split}.{part}"}, out / part, workers, dictionary)
        counted = [count_tokens(out / part / split, dictionary) for part in SPEC.parts]
        tokens, unknown = (sum(column) for column in zip(*counted, strict=True))
        stats |= {"tokens": tokens, "unknown_rate": round(unknown / max(1, tokens), 6)}
    rate = found["train"]["unknown_rate"]
    if rate > MAX_UNKNOWN:
        raise PrepError(
            f"{dictionary} does not belong to the subword model: "
            f"it lacks {rate:.0%} of the subwords of the training set"
        )
    for folder in (scratch, *(() if keep_text else (cut,))):
        shutil.rmtree(folder)
    return {
        "recipe": {"subwords": encoding.kind, "lowercase": encoding.lowercase},
        "model": {"flags": encoding.model_flags, "two_separators": encoding.two_separators},
        # Whether a model of this data has to decide if a question has an answer at all.
        "no_answer": found["train"]["unanswerable"] > 0,
        "splits": found,
        "vocabulary": len((out / "input0" / "dict.txt").read_text("utf-8").splitlines()),
    }


def _write_texts(articles: Sequence[Article], path: Path, lowercase: bool) -> None:
    """Write paragraphs and questions as plain text, from which a subword model can be learnt."""
    with path.open("w", encoding="utf-8") as file:
        for paragraph in _paragraphs(articles):
            for text in (paragraph.context, *(x.text for x in paragraph.questions)):
                file.write(plain_text(text, lowercase)[0] + "\n")


def _paragraphs(articles: Sequence[Article]) -> Iterator[Paragraph]:
    for article in articles:
        yield from article.paragraphs


def _paragraph_cutter(kind: str, model: Path | None, lowercase: bool) -> Any:
    """Return a function that splits the context and the questions of paragraphs into subwords."""
    apply = offset_applier(kind, model, lowercase)

    def cut(paragraphs: list[Paragraph]) -> list[tuple[Paragraph, list[Pieces]]]:
        texts = [text for p in paragraphs for text in (p.context, *(q.text for q in p.questions))]
        pieces = iter(apply(texts))
        return [(p, [next(pieces) for _ in range(1 + len(p.questions))]) for p in paragraphs]

    return cut


def _write_split(
    split: str,
    articles: Sequence[Article],
    encoding: Encoding,
    windows: Windows,
    out: Path,
    workers: int,
) -> Counts:
    """Write the windows, labels, questions and contexts of a split; return what was counted."""
    counts = Counts()
    paragraphs = list(_paragraphs(articles))
    arguments = (encoding.kind, encoding.model, encoding.lowercase)
    processes = workers if len(paragraphs) > LARGE else 1
    cut = map_chunks(_paragraph_cutter, arguments, iter(paragraphs), processes)
    names = [f"cut/{split}.{part}" for part in SPEC.parts]
    names += [f"label/{split}.label"]
    names += [f"questions/{split}.jsonl", f"questions/{split}.contexts.jsonl"]
    labelled = False
    with ExitStack() as stack:
        files = [stack.enter_context((out / name).open("w", encoding="utf-8")) for name in names]
        progress = tqdm(cut, f"{split}: windows", len(paragraphs), leave=False, disable=None)
        for paragraph, (context, *questions) in progress:
            pairs = zip(paragraph.questions, questions, strict=True)
            checked = (_checked(split, *pair, paragraph, context, counts) for pair in pairs)
            rows = [row for row in checked if row is not None]
            for question, pieces, span in rows:
                labelled = labelled or question.answers is not None
                _write_question(question, pieces, span, context, encoding, windows, counts, files)
            if rows:
                _write_json(files[4], _context(paragraph.context, context))
                counts.contexts += 1
    if not counts.questions:
        reasons = ", ".join(f"{n} {reason}" for reason, n in counts.dropped.items())
        raise PrepError(f"the {split} set has no usable question: {reasons or 'it is empty'}")
    if not labelled:
        if split == "train":
            raise PrepError("the training set has no answers")
        (out / names[2]).unlink()
    return counts


Row = tuple[Question, list[str], tuple[int, int]]


def _checked(
    split: str,
    question: Question,
    pieces: Pieces,
    paragraph: Paragraph,
    context: Pieces,
    counts: Counts,
) -> Row | None:
    """Return a question with its subwords and its answer; None if it cannot be trained on.

    Questions of other splits than train always stay, because the official measures count them.
    """
    span = target_of(question, paragraph.context, context, counts)
    if isinstance(span, str) or not context.symbols:
        reason = span if isinstance(span, str) else "context without any subword"
        if split == "train":
            counts.dropped[reason] += 1
            return None
        span = NO_ANSWER
    return question, pieces.symbols or [subwords.UNKNOWN], span


def _write_question(
    question: Question,
    pieces: list[str],
    span: tuple[int, int],
    context: Pieces,
    encoding: Encoding,
    windows: Windows,
    counts: Counts,
    files: list[TextIO],
) -> None:
    """Write the windows of a question, their labels, and the line that describes it."""
    counts.shortened += len(pieces) > windows.most
    pieces = pieces[: windows.most]
    room = encoding.room(2) - len(pieces)
    places, answered = [], False
    for start, count in windows_of(len(context.symbols), room, min(windows.step, room)):
        first, last = within(span, start, count)
        answered = answered or first >= 0
        places.append([counts.windows, start, count])
        files[0].write(" ".join(pieces) + "\n")
        files[1].write(" ".join(context.symbols[start : start + count]) + "\n")
        files[2].write(f"{first} {last}\n")
        counts.windows += 1
        counts.windows_with_answer += first >= 0
    counts.questions += 1
    counts.unanswerable += question.answers == ()
    counts.in_no_window += span != NO_ANSWER and not answered
    answers = None if question.answers is None else [text for text, _ in question.answers]
    described = {"id": question.id, "question": question.text, "context": counts.contexts}
    _write_json(files[3], {**described, "windows": places, "answers": answers})


def _context(text: str, pieces: Pieces) -> dict[str, Any]:
    return {"text": text, "starts": pieces.starts, "ends": pieces.ends}


def _write_json(file: TextIO, value: dict[str, Any]) -> None:
    file.write(json.dumps(value, separators=(",", ":")) + "\n")


NOTES = {
    "shortened": "questions cut to --max-question",
    "moved": "answers whose answer_start was wrong",
    "inside": "answers that begin or end inside a subword",
    "in_no_window": "answers that are in no window",
}


def summary(manifest: dict[str, Any], out: Path) -> str:
    """Return the text that the script prints at the end."""
    lines = []
    for split, stats in manifest["splits"].items():
        dropped = ", ".join(f"{n} {why}" for why, n in sorted(stats["dropped"].items())) or "none"
        lines.append(
            f"{split}: {stats['questions']} questions ({stats['unanswerable']} without an answer) "
            f"about {stats['contexts']} contexts, dropped: {dropped}"
        )
        notes = [
            f"{stats['windows']} windows, {stats['windows_with_answer']} of them with an answer"
        ]
        notes += [f"{stats[key]} {note}" for key, note in NOTES.items() if stats[key]]
        notes.append(f"{stats['tokens']} tokens, {stats['unknown_rate']:.2%} unknown")
        lines.append(f"  {', '.join(notes)}")
    lines.append(f"vocabulary: {manifest['vocabulary']} entries")
    model = manifest["model"]
    pair = " --separator-token 2" if model["two_separators"] else ""
    plugin = "" if "--user-dir" in model["flags"] else " --user-dir fairseq_stochattn"
    lines.append(
        f"train with: fairseq-train {shlex.quote(str(out))}{plugin} --task question_answering "
        f"--criterion question_answering {model['flags']}{pair}"
    )
    return "\n".join(lines)
