"""``stochattn-report RUN_DIR``: one HTML page on a run, to open in any browser, without network.

Configuration, training curves, metrics, pictures and the least certain examples, from what lies in
the folder: checkpoints, logs, evaluation.json (stochattn-evaluate), heads.json (stochattn-heads).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fairseq import utils

from fairseq_stochattn.analysis import page, report, report_evaluation
from fairseq_stochattn.analysis.attention_plot import attention_maps
from fairseq_stochattn.analysis.drawing import house_style, require_library
from fairseq_stochattn.analysis.evaluation import Evaluation
from fairseq_stochattn.analysis.evaluation_file import name_of, read_evaluation, with_part
from fairseq_stochattn.analysis.heads import show_heads
from fairseq_stochattn.analysis.heads_report import read_reports
from fairseq_stochattn.analysis.run_folder import (
    Training,
    find_checkpoint,
    find_log,
    read_training,
)
from fairseq_stochattn.analysis.sentences import sentences_of
from fairseq_stochattn.analysis.training_log import read_log
from fairseq_stochattn.errors import UsageError, require_positive
from fairseq_stochattn.files import whole_file
from fairseq_stochattn.loading import DataSelection, warnings_only

_EVALUATE = "stochattn-evaluate DATA --path CHECKPOINT --samples 20 --json"


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    if not args.run.is_dir():
        raise UsageError(f"{args.run} is no directory")
    require_positive(args, "samples")
    require_library("matplotlib", "stochattn-report")
    output = args.output or args.run / "report.html"
    with warnings_only(), house_style(), whole_file(output) as path:
        path.write_text(compose(args), encoding="utf-8")
    print(f"report: {output}")
    return 0


def compose(args: argparse.Namespace) -> str:
    """The whole page; what is missing is told in one line each."""
    checkpoint = args.checkpoint or find_checkpoint(args.run)
    training = None if checkpoint is None else read_training(checkpoint)
    log, told_by = (read_log(args.log), args.log) if args.log else find_log(args.run, training)
    evaluated = args.evaluation or _existing(args.run / "evaluation.json")
    evaluation = None if evaluated is None else read_evaluation(evaluated)
    measured = args.heads or _existing(args.run / "heads.json")
    if not (training or log or evaluation or measured):
        raise UsageError(f"{args.run} has no checkpoint, no log and no evaluation to report on")
    target = str(args.run / "evaluation.json")
    sections: list[tuple[str, str]] = []

    def add(heading: str, found: Any, make: Callable[[], str], otherwise: str) -> None:
        sections.append((heading, make() if found else otherwise))

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
        page.hint("No log here; keep one:", "fairseq-train … --log-format json --log-file FILE"),
    )
    add(
        "Metrics",
        evaluation,
        lambda: report_evaluation.metrics(evaluation),
        page.hint("Not evaluated yet:", f"{_EVALUATE} {target}"),
    )
    sections.append(("Attention", _attention(args, checkpoint, training, evaluation)))
    if measured:
        reports = read_reports(measured)
        sections.append(("Heads", report.head_importance(reports)))
    add(
        "Least certain examples",
        evaluation and with_part(evaluation, "least_certain"),
        lambda: "".join(
            map(report_evaluation.least_certain, with_part(evaluation, "least_certain"))
        ),
        page.hint("The evaluation finds them:", f"{_EVALUATE} {target}"),
    )
    sources = [str(x) for x in (checkpoint, *told_by, evaluated, measured) if x]
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
    """On the least certain example of an evaluation, else on the first sentence of valid."""
    if checkpoint is None:
        return page.hint("Drawn where there is a checkpoint.")
    number, subset, which = 0, "valid", "the first sentence of valid"
    data = args.data or training.get("task", "data")
    if evaluation is not None:
        data, subset = args.data or evaluation.get("data", data), evaluation.get("split", subset)
        found = with_part(evaluation, "least_certain")
        same = [x for x in found if Path(str(x.get("path"))).name == checkpoint.name] or found
        if same:
            number = same[0]["least_certain"][0]["id"]
            which = f"sentence {number} of {subset}, the least certain of {name_of(same[0])}"
    try:
        loaded = Evaluation.load(
            checkpoint, DataSelection(str(data), subset, ids=(number,)), args.cpu
        )
        show_heads(loaded.model)
        (sentence,) = sentences_of(loaded, [number])
        utils.set_torch_seed(loaded.seed)
        maps = attention_maps(loaded, sentence, samples=args.samples)
    except UsageError as error:
        if args.data is not None:
            raise
        cause = str(error).removeprefix("fairseq_stochattn: ")
        return page.hint(f"Not drawn: {cause}. Name the data:", "stochattn-report … --data DIR")
    drawn = f"{args.samples} samples" if maps[0].ratio is not None else "it is not random"
    return report.attention(maps, f"Attention on {which}; {drawn}.")


def _existing(path: Path) -> Path | None:
    return path if path.is_file() else None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="stochattn-report", description="One self-contained HTML page on a training run."
    )
    add = parser.add_argument
    add("run", type=Path, metavar="RUN_DIR", help="folder of checkpoints and logs (--save-dir)")
    add("--output", type=Path, metavar="FILE", help="default: RUN_DIR/report.html")
    add("--evaluation", type=Path, metavar="FILE", help="default: RUN_DIR/evaluation.json")
    add("--heads", type=Path, metavar="FILE", help="default: RUN_DIR/heads.json")
    add("--checkpoint", type=Path, metavar="FILE", help="default: the best in RUN_DIR")
    add("--log", type=Path, action="append", metavar="FILE", help="default: those in RUN_DIR")
    add("--data", help="for the attention; default: where the evaluation or the training was")
    add("--samples", type=int, default=20, help="of the attention, default: %(default)s")
    add("--cpu", action="store_true", help="do not use the GPU")
    return parser


if __name__ == "__main__":
    sys.exit(main())
