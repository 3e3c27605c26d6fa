"""Fine-tunes a Hugging Face encoder on SQuAD with any method, and writes answers and EM and F1.

python examples/huggingface/squad.py --model FOLDER --squad FOLDER --version 2.0 --method babn \
    --output OUT

--squad contains train-v2.0.json and dev-v2.0.json, or those of 1.1, packed or not. With
--articles A B the development set alone is used: its first A articles for training, the next B for
testing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finetune import METHODS, Trainer  # first: it keeps transformers from a broken torchaudio

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "data-prep"))

import torch
import transformers
from torch import Tensor, nn

import fairseq_stochattn as sa
import prepare_squad
from fairseq_stochattn.analysis.answer_report import Answered, official
from fairseq_stochattn.analysis.answer_texts import Context, Question, decide
from fairseq_stochattn.core.errors import InputError
from fairseq_stochattn.tasks.span_labels import WindowScores
from fairseq_stochattn.uncertainty.sampling import is_random
from steps.errors import PrepError
from steps.questions import Article, find_answer


@dataclass(frozen=True)
class Windows:
    """The windows of all questions: inputs for the model, and what they were cut from."""

    inputs: list[dict[str, Any]]  # with start_positions and end_positions
    places: list[slice]  # the tokens of the context in each row
    questions: list[Question]


class StackedLogits(nn.Module):
    """Returns the start and the end logits of a model as one tensor, (B, 2, T)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: Tensor) -> Tensor:
        output = self.model(**inputs)
        return torch.stack([output.start_logits, output.end_logits], dim=1)


def encode(articles: Sequence[Article], tokenizer: Any, length: int, stride: int) -> Windows:
    """Cut the contexts of all questions into windows; a label is 0, 0 where there is no answer."""
    found = Windows([], [], [])
    for paragraph in (p for article in articles for p in article.paragraphs):
        for question in paragraph.questions:
            rows = tokenizer(
                question.text,
                paragraph.context,
                truncation="only_second",
                max_length=length,
                stride=stride,  # of transformers: the overlap of two windows
                return_overflowing_tokens=True,
                return_offsets_mapping=True,
            )
            windows, offsets = [], {}
            for number, places in enumerate(rows.pop("offset_mapping")):
                inside = [n for n, x in enumerate(rows.sequence_ids(number)) if x == 1]
                first = inside[0] if inside else 0
                windows.append((len(found.inputs), places[first : first + len(inside)]))
                offsets.update(dict.fromkeys(map(tuple, windows[-1][1])))
                span = _span(paragraph.context, question.answers or (), places, inside)
                found.inputs.append(
                    {key: rows[key][number] for key in tokenizer.model_input_names}
                    | dict(zip(("start_positions", "end_positions"), span, strict=True))
                )
                found.places.append(slice(first, first + len(inside)))
            found.questions.append(_question(question, paragraph.context, windows, list(offsets)))
    return found


def _span(
    context: str, answers: Sequence[tuple[str, int]], places: list, inside: list[int]
) -> tuple[int, int]:
    """The first and the last token of the first answer, 0 and 0 if it is not in the window."""
    start = find_answer(context, *answers[0]) if answers else None
    if start is None or not inside:
        return 0, 0
    end = start + len(answers[0][0].rstrip())
    covered = [n for n in inside if places[n][1] > start and places[n][0] < end]
    if places[inside[0]][0] > start or places[inside[-1]][1] < end or not covered:
        return 0, 0
    return covered[0], covered[-1]


def _question(question: Any, text: str, windows: list, offsets: list) -> Question:
    order = {place: number for number, place in enumerate(offsets)}
    context = Context(text, [start for start, _ in offsets], [end for _, end in offsets])
    cut = tuple(
        (row, order[tuple(places[0])] if places else 0, len(places)) for row, places in windows
    )
    answers = None if question.answers is None else tuple(x for x, _ in question.answers)
    return Question(question.id, context, cut, answers)


@torch.no_grad()
def answer(model: nn.Module, windows: Windows, tokenizer: Any, samples: int) -> Answered:
    """Answer all questions by the mean logits over samples of the attention, if it is random."""
    stacked, scores = StackedLogits(model.eval()), {}
    for rows, batch in _batches(windows, tokenizer):
        if samples and is_random(model):
            logits = sa.sample(stacked, samples, max_rows=256, **batch).mean
        else:
            logits = stacked(**batch)  # (B, 2, T)
        for row, (start, end) in zip(rows, logits.double().cpu().numpy(), strict=True):
            place = windows.places[row]
            scores[row] = WindowScores(start[place], end[place], float(start[0] + end[0]))
    decisions = {question.id: decide(question, scores, 20, 30) for question in windows.questions}
    return Answered(windows.questions, decisions)


def _batches(windows: Windows, tokenizer: Any, size: int = 32) -> Iterator[tuple[list[int], Any]]:
    """Row numbers and inputs of rows of similar length."""
    lengths = [len(row["input_ids"]) for row in windows.inputs]
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    collate = transformers.DataCollatorWithPadding(tokenizer)
    for begin in range(0, len(order), size):
        rows = order[begin : begin + size]
        parts = [{k: x for k, x in windows.inputs[n].items() if "_pos" not in k} for n in rows]
        yield rows, dict(collate(parts))


def read_splits(args: argparse.Namespace) -> tuple[list[Article], list[Article]]:
    """The articles for training and for testing."""
    numbers = None if args.articles is None else [*args.articles, 0]
    wanted = argparse.Namespace(
        version=args.version, origin=args.squad, articles=numbers, holdout=0
    )
    splits = prepare_squad.split_articles(prepare_squad.find_files(wanted), wanted)
    return splits["train"], splits["valid"]


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="folder of the encoder")
    parser.add_argument("--squad", type=Path, required=True, help="folder of SQuAD's files")
    parser.add_argument("--version", choices=prepare_squad.REMOTES, default="2.0")
    parser.add_argument("--articles", type=int, nargs=2, metavar=("A", "B"))
    parser.add_argument("--method", choices=METHODS, default="plain")
    parser.add_argument("--output", type=Path, required=True, help="folder of the result")
    parser.add_argument("--max-length", type=int, default=384, help="tokens of a window")
    parser.add_argument("--overlap", type=int, default=128, help="tokens that windows share")
    parser.add_argument("--epochs", type=float, default=2)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=5e-5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--samples", type=int, default=20, help="samples of Bayesian attention")
    parser.add_argument("--max-steps", type=int, default=-1, help="stop after so many updates")
    return parser


def train(args: argparse.Namespace) -> dict[str, Any]:
    """Fine-tune, answer the test questions, and save answers and model; returns the result."""
    transformers.set_seed(args.seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)
    parts = read_splits(args)
    data, test = (encode(part, tokenizer, args.max_length, args.overlap) for part in parts)
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(args.model)
    if METHODS[args.method] is not None:
        sa.convert(model, METHODS[args.method]())
    arguments = transformers.TrainingArguments(
        output_dir=str(args.output / "trainer"),
        num_train_epochs=args.epochs,
        max_steps=args.max_steps,
        per_device_train_batch_size=args.batch_size,
        learning_rate=args.lr,
        warmup_steps=0.1,  # of all updates
        weight_decay=0.01,
        logging_steps=50,
        save_strategy="no",
        report_to=[],
        seed=args.seed,
    )
    trainer = Trainer(model, arguments, train_dataset=data.inputs, processing_class=tokenizer)
    trainer.repulsive = {} if args.method == "repulsive" else None
    trainer.train()
    found = answer(trainer.model, test, tokenizer, args.samples)
    has_no_answers = any(question.answers == () for question in data.questions)
    threshold = 0.5 if has_no_answers else None
    (args.output / "answers.json").write_text(official(found, threshold), encoding="utf-8")
    if METHODS[args.method] is None:
        model.save_pretrained(args.output / "model")
    else:
        sa.save_pretrained(model, args.output / "model")
    tokenizer.save_pretrained(args.output / "model")
    about = {"method": args.method, "seed": args.seed, "updates": trainer.state.global_step}
    return {**about, "questions": len(test.questions), **found.metrics(threshold)}


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    args.output.mkdir(parents=True, exist_ok=True)
    try:
        result = train(args)
    except (InputError, PrepError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    (args.output / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
