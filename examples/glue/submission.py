"""Write predictions of test sets in the format that GLUE's server accepts.

    python examples/glue/submission.py DATA TASK PREDICTIONS OUT [--split test1]

DATA was made by data-prep/prepare_glue.py, PREDICTIONS by ``stochattn-predict --output``. Writes
OUT/TASK.tsv (MNLI-m.tsv and MNLI-mm.tsv for test and test1) with the columns index and prediction.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "data-prep")]

from fairseq_stochattn.commands.command import OneLineParser, command  # noqa: E402
from fairseq_stochattn.core.errors import InputError  # noqa: E402
from fairseq_stochattn.core.files import atomic_file  # noqa: E402
from steps.manifest import read_manifest  # noqa: E402

TASKS = ("CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI", "QNLI", "RTE", "WNLI")
HIGHEST = 5.0  # of STS-B's scores, which data-prep divides by it


def file_name(task: str, split: str) -> str:
    """The file of a task in a submission."""
    if task != "MNLI":
        return f"{task}.tsv"
    return "MNLI-mm.tsv" if split.endswith("1") else "MNLI-m.tsv"


def rows_of(task: str, lines: list[str]) -> list[str]:
    """The predictions as GLUE writes them, in the order of the test set."""
    rows = [json.loads(line) for line in lines]
    if [row["id"] for row in rows] != list(range(len(rows))):
        raise InputError("the predictions are not those of a whole set, in its order")
    if task == "STS-B":
        return [f"{min(HIGHEST, max(0.0, HIGHEST * row['prediction'])):.3f}" for row in rows]
    return [str(row["prediction"]) for row in rows]


def build_parser() -> argparse.ArgumentParser:
    parser = OneLineParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="data of data-prep/prepare_glue.py")
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("predictions", type=Path, help="file of stochattn-predict --output")
    parser.add_argument("out", type=Path, help="folder of the submission")
    parser.add_argument("--split", default="test", help="test, or test1 for MNLI-mm")
    return parser


@command
def main(argv: list[str] | None = None) -> int:
    """Write one file of a submission."""
    args = build_parser().parse_args(argv)
    splits = (read_manifest(args.data) or {}).get("splits", {})
    if args.split not in splits:
        raise InputError(f"{args.data} has no split {args.split}")
    if sum(splits[args.split]["dropped"].values()):
        raise InputError(
            f"{args.data}: rows of {args.split} were dropped: their numbers are unknown"
        )
    rows = rows_of(args.task, args.predictions.read_text(encoding="utf-8").splitlines())
    if len(rows) != splits[args.split]["kept"]:
        raise InputError(f"{len(rows)} predictions for {splits[args.split]['kept']} examples")
    args.out.mkdir(parents=True, exist_ok=True)
    with atomic_file(args.out / file_name(args.task, args.split)) as file:
        lines = ("index\tprediction", *(f"{n}\t{row}" for n, row in enumerate(rows)))
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
