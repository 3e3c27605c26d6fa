"""``stochattn-predict DATA --path CHECKPOINT``: predict a data set and measure the predictions.

``--output FILE`` has one JSON object per line, in the order of the data: ``id``, ``prediction``,
``label`` if there is one, and ``probabilities`` (of classes, options, or predicted tags). The
metrics of GLUE are printed in percent. For question answering, FILE is SQuAD's official prediction
file, and exact match and F1 are printed.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from fairseq import utils
from tqdm import tqdm

from ..analysis.answer_report import (
    AnswerSettings,
    answered,
    candidates,
    no_answer_probabilities,
    official,
    write,
)
from ..analysis.answer_texts import has_no_answers
from ..analysis.loading import (
    DataSelection,
    chosen_device,
    load_batches,
    load_models,
    parse_overrides,
    require_settings,
)
from ..core.errors import InputError
from ..core.files import atomic_file
from ..tasks.kinds import labels_of
from ..tasks.labels import Labels, Prediction, predict
from ..tasks.span_labels import SpanPositions
from .command import (
    CPU_HELP,
    FP16_HELP,
    OVERRIDES_HELP,
    SUBSET_HELP,
    USER_DIR_HELP,
    OneLineParser,
    command,
    load_user_dir,
    require_output,
    seed,
)

DESCRIPTION = "Predict a data set with a fine-tuned model, and print the metrics of GLUE or SQuAD."
EXAMPLE = (
    "stochattn-predict data-bin/RTE --path checkpoints/checkpoint_best.pt --samples 20 \\\n"
    "    --output predictions.jsonl"
)


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Predict all examples, write the output file and print the metrics."""
    args = build_parser().parse_args(argv)
    if args.samples < 0 or args.batch_size < 1:
        raise InputError("--samples must not be negative, --batch-size must be positive")
    if args.n_best < 1 or args.max_answer_length < 1:
        raise InputError("--n-best and --max-answer-length must be positive")
    for name in ("output", "metrics", "no_answer_output", "n_best_output"):
        if getattr(args, name) is not None:
            require_output(getattr(args, name), f"--{name.replace('_', '-')}")
    load_user_dir(args.user_dir)
    overrides = parse_overrides(args.model_overrides)
    models, task, config = load_models(utils.split_paths(args.path), args.data, overrides)
    require_settings(overrides, config)
    labels = labels_of(task)
    for model in models:
        model.to(chosen_device(args.cpu), torch.float16 if args.fp16 else torch.float32)

    def run(subset: str) -> list[Prediction]:
        selection = DataSelection(args.data, subset, batch_size=args.batch_size, skip_long=False)
        utils.set_torch_seed(args.seed)
        found: list[Prediction] = []
        for batch in tqdm(load_batches(task, models, selection), subset, disable=None):
            found += predict(labels, models, batch, args.samples)
        return sorted(found, key=lambda prediction: prediction.id)

    is_answering = isinstance(labels, SpanPositions)
    if not is_answering:
        refuse_answer_files(args)
    with ExitStack() as stack:
        paths = (args.output, args.no_answer_output, args.n_best_output, args.metrics)
        files = [stack.enter_context(atomic_file(path)) if path else None for path in paths]
        if is_answering:
            summary, metrics = answer_questions(args, run, files)
        else:
            predictions = run(args.gen_subset)
            write(files[0], "".join(f"{as_json(prediction)}\n" for prediction in predictions))
            summary = {"subset": args.gen_subset, "examples": len(predictions)}
            metrics = compute_metrics(labels, predictions)
        write(files[3], json.dumps({**summary, **metrics}, indent=1) + "\n")
    if args.json:
        print(json.dumps({**summary, **metrics}))
        return 0
    shown = metrics or {"metrics": "none, the set has no labels"}
    print("\n".join(f"{name}\t{value}" for name, value in {**summary, **shown}.items()))
    return 0


def answer_questions(
    args: argparse.Namespace,
    run: Callable[[str], list[Prediction]],
    files: Sequence[Path | None],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Answer the questions of the split, write the files, and return a summary and the metrics."""
    settings = AnswerSettings(args.n_best, args.max_answer_length)
    threshold = None
    if has_no_answers(args.data):
        threshold = chosen_threshold(args, run, settings)
    rows = run(args.gen_subset)
    found = answered(args.data, args.gen_subset, rows, settings)
    write(files[0], official(found, threshold))
    write(files[1], no_answer_probabilities(found))
    write(files[2], candidates(found))
    summary = {"subset": args.gen_subset, "questions": len(found.questions), "windows": len(rows)}
    return summary, found.metrics(threshold)


def chosen_threshold(
    args: argparse.Namespace, run: Callable[[str], list[Prediction]], settings: AnswerSettings
) -> float:
    """The value of ``--no-answer-threshold``, or the best one on the split that it names."""
    given = args.no_answer_threshold
    try:
        return float(given)
    except ValueError:
        found = answered(args.data, given, run(given), settings).threshold("f1")
    if found is None:
        raise InputError(f"--no-answer-threshold {given}: this split has no answers")
    return found[0]


def refuse_answer_files(args: argparse.Namespace) -> None:
    """Raise ``InputError`` if a file is wanted that only question answering can fill."""
    for name in ("no_answer_output", "n_best_output"):
        if getattr(args, name) is not None:
            flag = name.replace("_", "-")
            raise InputError(f"--{flag}: the model was not trained with --task question_answering")


def as_json(prediction: Prediction) -> str:
    """Return a prediction as one line of JSON, without the fields that are None."""
    return json.dumps({k: v for k, v in asdict(prediction).items() if v is not None})


def compute_metrics(labels: Labels, predictions: Sequence[Prediction]) -> dict[str, Any]:
    """Return the metrics in percent, None for undefined ones; empty if labels are missing."""
    if not predictions or any(row.label is None for row in predictions):
        return {}
    metrics = labels.metrics(
        [row.label for row in predictions], [row.prediction for row in predictions]
    )
    return {k: None if math.isnan(v) else round(100 * v, 2) for k, v in metrics.items()}


def build_parser() -> OneLineParser:
    parser = OneLineParser(prog="stochattn-predict", description=DESCRIPTION, example=EXAMPLE)
    parser.add_argument(
        "data", help="folder of binarised data with the dictionaries of the training"
    )
    add = parser.add_argument_group("model and data").add_argument
    add("--path", required=True, help="checkpoint, or several checkpoints separated by :")
    add("--gen-subset", "--valid-subset", default="valid", metavar="NAME", help=SUBSET_HELP)
    add(
        "--samples",
        type=int,
        default=0,
        metavar="K",
        help="average the predictions of K samples of the attention; 0 uses the mean of the "
        "attention (default: %(default)s)",
    )
    add(
        "--batch-size",
        type=int,
        default=32,
        metavar="N",
        help="examples per batch (default: %(default)s)",
    )
    add("--seed", type=seed, default=1, help="seed of the samples (default: %(default)s)")
    add("--model-overrides", default="{}", metavar="DICT", help=OVERRIDES_HELP)
    add("--user-dir", metavar="DIR", help=USER_DIR_HELP)
    add("--fp16", action="store_true", help=FP16_HELP)
    add("--cpu", action="store_true", help=CPU_HELP)
    add = parser.add_argument_group("output").add_argument
    add("--output", type=Path, metavar="FILE", help="write the predictions to FILE")
    add("--json", action="store_true", help="print the metrics as JSON")
    add("--metrics", type=Path, metavar="FILE", help="also write the metrics to FILE as JSON")
    add = parser.add_argument_group("question answering").add_argument
    add(
        "--no-answer-threshold",
        default="0.5",
        metavar="P|NAME",
        help="give no answer if its probability against the best answer is higher than P; NAME is "
        "a split, whose P with the highest F1 is used; without effect if every training question "
        "has an answer (default: %(default)s)",
    )
    add(
        "--max-answer-length",
        type=int,
        default=AnswerSettings.longest,
        metavar="N",
        help="largest number of subwords of an answer (default: %(default)s)",
    )
    add(
        "--n-best",
        type=int,
        default=AnswerSettings.best,
        metavar="N",
        help="number of candidates per question (default: %(default)s)",
    )
    add(
        "--no-answer-output",
        type=Path,
        metavar="FILE",
        help="write the probability of no answer to every question to FILE",
    )
    add(
        "--n-best-output",
        type=Path,
        metavar="FILE",
        help="write the candidates of every question with their probabilities to FILE",
    )
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
