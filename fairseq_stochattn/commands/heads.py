"""``stochattn-heads CHECKPOINT DATA``: measure how different and how important the heads are.

It reads checkpoints of plain fairseq and of this package, and prints a table; ``--json`` and
``--plot`` write files.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from tqdm import tqdm

from ..analysis.drawing import require_drawable
from ..analysis.evaluation import Evaluation
from ..analysis.heads import head_diversities, head_importances, show_heads
from ..analysis.heads_plot import draw
from ..analysis.heads_report import HeadReport, LayerReport, as_json, as_table
from ..analysis.loading import DataSelection, warnings_only
from ..core.errors import require_not_negative, require_positive
from ..core.files import atomic_file
from ..core.heads import find_heads, select_heads
from .command import (
    CHECKPOINT_HELP,
    CPU_HELP,
    DATA_HELP,
    SUBSET_HELP,
    TRAINING_SEED_HELP,
    OneLineParser,
    command,
    require_output,
    require_subword_kind,
    seed,
)

DESCRIPTION = "Measure how different (Dist) and how important the heads of a model are."
EXAMPLE = (
    "stochattn-heads checkpoint_best.pt data-bin/multi30k --metric bleu --remove-bpe \\\n"
    "    --plot heads.svg"
)


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Measure one or two checkpoints, write the files and print the table."""
    args = build_parser().parse_args(argv)
    _check(args)
    selection = DataSelection(
        args.data, args.subset, args.limit, args.max_tokens, args.batch_size, args.seed
    )
    checkpoints = [args.checkpoint] if args.compare is None else [args.checkpoint, args.compare]
    with warnings_only():
        reports = [measure(checkpoint, selection, args) for checkpoint in checkpoints]
        if args.plot is not None:
            draw(reports, args.plot)
    print(as_table(reports, args.tolerance))
    if args.json is not None:
        content = as_json(reports, args.tolerance, data=args.data, subset=args.subset)
        with atomic_file(args.json) as file:
            file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return 0


def measure(checkpoint: Path, selection: DataSelection, args: argparse.Namespace) -> HeadReport:
    """Return Dist (how different the heads are) per layer and the importance of every head."""
    evaluation = Evaluation.load(checkpoint, selection, args.cpu)
    groups = find_heads(show_heads(evaluation.model))
    groups = select_heads(groups, args.sites, args.layers, names=("--sites", "--layers"))
    score, full_score, signature = _scoring(evaluation, args)
    diversities = head_diversities(groups, evaluation.loss)
    progress = partial(tqdm, desc=f"masking heads of {checkpoint.name}", unit="head", mininterval=1)
    importances = head_importances(groups, score, full_score, progress)
    by_bleu = args.metric == "bleu"
    return HeadReport(
        checkpoint=str(checkpoint),
        sentences=evaluation.sentences,
        metric=args.metric,
        unit="points" if by_bleu else evaluation.loss_unit,
        score=full_score if by_bleu else -full_score,
        signature=signature,
        layers=[
            LayerReport(
                group.site, group.layer, group.name, importance=importance, **asdict(diversity)
            )
            for group, diversity, importance in zip(groups, diversities, importances, strict=True)
        ],
    )


def _scoring(
    evaluation: Evaluation, args: argparse.Namespace
) -> tuple[Callable[[], float], float, str | None]:
    """Return a function that computes the score, the score with all heads, and BLEU's signature.

    Higher scores are better: the score of ``--metric loss`` is the negative loss.
    """
    if args.metric == "bleu":
        bleu = partial(evaluation.bleu, args.beam, args.remove_bpe)
        full_score, signature = bleu()
        return lambda: bleu().score, full_score, signature
    return lambda: -evaluation.loss(), -evaluation.loss(), None


def _check(args: argparse.Namespace) -> None:
    """Raise ``InputError`` for bad flags now, instead of after a long computation."""
    optional = [x for x in ("limit", "max_tokens", "batch_size") if getattr(args, x) is not None]
    require_positive(args, *optional, "beam")
    require_not_negative(args, "tolerance")
    require_subword_kind(args.remove_bpe)
    for flag in ("json", "plot"):
        path = getattr(args, flag)
        if path is not None:
            require_output(path, f"--{flag}")
    if args.plot is not None:
        require_drawable(args.plot, "--plot")


def build_parser() -> OneLineParser:
    parser = OneLineParser(prog="stochattn-heads", description=DESCRIPTION, example=EXAMPLE)
    parser.add_argument("checkpoint", type=Path, help=CHECKPOINT_HELP)
    parser.add_argument("data", help=DATA_HELP)
    add = parser.add_argument_group("what is measured").add_argument
    add("--compare", type=Path, metavar="CHECKPOINT", help="checkpoint of a second model")
    add(
        "--metric",
        choices=["loss", "bleu"],
        default="loss",
        help="importance of a head: increase of the loss, or decrease of BLEU (translation), when "
        "the head is masked (default: %(default)s)",
    )
    add(
        "--sites",
        default="all",
        help="sites: all, or some of encoder,decoder,cross (default: %(default)s)",
    )
    add(
        "--layers",
        default="all",
        help="all, first, last, or indices such as 0,2 (default: %(default)s)",
    )
    add(
        "--tolerance",
        type=float,
        default=0.0,
        metavar="X",
        help="a head counts as harmless if masking it worsens the metric by at most X "
        "(default: %(default)s)",
    )
    add("--beam", type=int, default=5, help="beam size for BLEU (default: %(default)s)")
    add(
        "--remove-bpe",
        nargs="?",
        const="subword_nmt",
        metavar="KIND",
        help="join subwords for BLEU as fairseq-generate does, such as sentencepiece "
        "(without KIND: %(const)s)",
    )
    add = parser.add_argument_group("data and device").add_argument
    add("--subset", "--gen-subset", default="valid", metavar="NAME", help=SUBSET_HELP)
    add("--limit", type=int, metavar="N", help="use the first N sentences (default: all)")
    add(
        "--max-tokens",
        type=int,
        default=4000,
        metavar="N",
        help="tokens per batch (default: %(default)s)",
    )
    add("--batch-size", type=int, metavar="N", help="sentences per batch (default: no limit)")
    add("--seed", type=seed, help=TRAINING_SEED_HELP)
    add("--cpu", action="store_true", help=CPU_HELP)
    add = parser.add_argument_group("output").add_argument
    add("--json", type=Path, metavar="FILE", help="write all measures to FILE")
    add(
        "--plot",
        type=Path,
        metavar="FILE",
        help="draw them into FILE: .png, .svg or .pdf",
    )
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
