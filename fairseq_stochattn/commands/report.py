"""``stochattn-report RUN_DIR``: write one HTML page about a training run.

The page shows the configuration, training curves, metrics, attention maps and the least certain
examples. It is made from the files in RUN_DIR: checkpoints, logs, evaluation.json
(stochattn-evaluate) and heads.json (stochattn-heads).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fairseq import utils

from ..analysis import page, report, report_evaluation
from ..analysis.attention_plot import attention_maps
from ..analysis.drawing import house_style
from ..analysis.evaluation import Evaluation
from ..analysis.evaluation_file import name_of, read_evaluation, with_part
from ..analysis.heads import show_heads
from ..analysis.heads_report import read_reports
from ..analysis.loading import DataSelection, warnings_only
from ..analysis.run_folder import Training, find_checkpoint, find_log, read_training
from ..analysis.sentences import sentences_of
from ..analysis.training_log import read_log
from ..compat import UsageError
from ..core.errors import InputError, require_positive
from ..core.files import atomic_file
from ..core.optional import require_package
from .command import CPU_HELP, OneLineParser, command

DESCRIPTION = "Write one HTML page about a training run; it needs no scripts and no network."
EXAMPLE = "stochattn-report checkpoints --evaluation evaluation.json"
_EVALUATE = "stochattn-evaluate DATA --path CHECKPOINT --samples 20 --json"


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Write the page."""
    args = build_parser().parse_args(argv)
    if not args.run.is_dir():
        raise InputError(f"{args.run} is not a directory")
    require_positive(args, "samples")
    require_package("matplotlib", "stochattn-report")
    output = args.output or args.run / "report.html"
    with warnings_only(), house_style(), atomic_file(output) as path:
        path.write_text(compose(args), encoding="utf-8")
    print(f"report: {output}")
    return 0


def compose(args: argparse.Namespace) -> str:
    """Return the HTML page; for each missing file, the page says which command writes it."""
    checkpoint = args.checkpoint or find_checkpoint(args.run)
    training = None if checkpoint is None else read_training(checkpoint)
    log, log_files = (read_log(args.log), args.log) if args.log else find_log(args.run, training)
    if args.log and not log:
        raise InputError(f"no training statistics in {', '.join(map(str, args.log))}")
    evaluation_file = args.evaluation or _existing(args.run / "evaluation.json")
    evaluation = None if evaluation_file is None else read_evaluation(evaluation_file)
    heads_file = args.heads or _existing(args.run / "heads.json")
    if not (training or log or evaluation or heads_file):
        raise InputError(f"{args.run} has no checkpoint, no log and no evaluation to report on")
    evaluate = f"{_EVALUATE} {args.run / 'evaluation.json'}"
    uncertain = with_part(evaluation, "least_certain") if evaluation else []
    sections: list[tuple[str, str]] = []

    def add(heading: str, available: Any, make: Callable[[], str], otherwise: str) -> None:
        sections.append((heading, make() if available else otherwise))

    add(
        "Configuration",
        training,
        lambda: report.configuration(training),
        page.hint("No checkpoint here; name one:", "stochattn-report … --checkpoint FILE"),
    )
    add(
        "Training",
        log,
        lambda: report.training_curves(log),
        page.hint("No log here; write one:", "fairseq-train … --log-format json --log-file FILE"),
    )
    add(
        "Metrics",
        evaluation,
        lambda: report_evaluation.metrics(evaluation),
        page.hint("The run has not been evaluated:", evaluate),
    )
    sections.append(("Attention", _attention(args, checkpoint, training, evaluation)))
    if heads_file:
        sections.append(("Heads", report.head_importance(read_reports(heads_file))))
    add(
        "Least certain examples",
        uncertain,
        lambda: "".join(map(report_evaluation.least_certain, uncertain)),
        page.hint("The evaluation finds them:", evaluate),
    )
    sources = [str(x) for x in (checkpoint, *log_files, evaluation_file, heads_file) if x]
    return page.document(_title(args, training), f"Made from {', '.join(sources)}", sections)


def _title(args: argparse.Namespace, training: Training | None) -> str:
    model = {} if training is None else training.config.get("model", {})
    arch = model.get("arch") or model.get("_name")
    name = args.run.resolve().name
    return f"{arch}: {name}" if arch else name


def _attention(
    args: argparse.Namespace,
    checkpoint: Path | None,
    training: Training | None,
    evaluation: dict[str, Any] | None,
) -> str:
    """Return the maps of the least certain example, without an evaluation of the first of valid."""
    if checkpoint is None:
        return page.hint("No checkpoint here, so no attention is drawn.")
    number, subset, sentence_name = 0, "valid", "the first sentence of valid"
    data = args.data or training.get("task", "data")
    if evaluation is not None:
        data, subset = args.data or evaluation.get("data", data), evaluation.get("split", subset)
        models = with_part(evaluation, "least_certain")
        models = [x for x in models if Path(str(x.get("path"))).name == checkpoint.name] or models
        if models:
            number = models[0]["least_certain"][0]["id"]
            name = name_of(models[0])
            sentence_name = f"sentence {number} of {subset}, the least certain of {name}"
    try:
        loaded = Evaluation.load(
            checkpoint, DataSelection(str(data), subset, ids=(number,)), args.cpu
        )
        show_heads(loaded.model)
        (sentence,) = sentences_of(loaded, [number])
        utils.set_torch_seed(loaded.seed)
        maps = attention_maps(loaded, sentence, samples=args.samples)
    except (InputError, UsageError) as error:
        if args.data is not None:
            raise
        cause = str(error).removeprefix("fairseq_stochattn: ")
        return page.hint(f"Not drawn: {cause}. Name the data:", "stochattn-report … --data DIR")
    sampling = f"{args.samples} samples" if maps[0].ratio is not None else "it is not random"
    return report.attention(maps, f"Attention on {sentence_name}; {sampling}.")


def _existing(path: Path) -> Path | None:
    return path if path.is_file() else None


def build_parser() -> OneLineParser:
    parser = OneLineParser(prog="stochattn-report", description=DESCRIPTION, example=EXAMPLE)
    parser.add_argument(
        "run", type=Path, metavar="RUN_DIR", help="folder of checkpoints and logs (--save-dir)"
    )
    add = parser.add_argument_group("files").add_argument
    add("--output", type=Path, metavar="FILE", help="page to write (default: RUN_DIR/report.html)")
    add(
        "--evaluation",
        type=Path,
        metavar="FILE",
        help="file of stochattn-evaluate --json (default: RUN_DIR/evaluation.json)",
    )
    add(
        "--heads",
        type=Path,
        metavar="FILE",
        help="file of stochattn-heads --json (default: RUN_DIR/heads.json)",
    )
    add(
        "--checkpoint",
        type=Path,
        metavar="FILE",
        help="checkpoint (default: the best one in RUN_DIR)",
    )
    add(
        "--log",
        type=Path,
        action="append",
        metavar="FILE",
        help="log of the training; repeatable (default: the logs in RUN_DIR)",
    )
    add = parser.add_argument_group("attention maps").add_argument
    add("--data", metavar="DATA", help="data (default: that of the evaluation or the training)")
    add(
        "--samples",
        type=int,
        default=20,
        metavar="K",
        help="samples of the attention (default: %(default)s)",
    )
    add("--cpu", action="store_true", help=CPU_HELP)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
