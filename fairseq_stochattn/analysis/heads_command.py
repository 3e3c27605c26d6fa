"""``stochattn-heads CHECKPOINT DATA``: how different and how important the heads of a model are.

For plain fairseq checkpoints and for ours. Prints a table; ``--json`` and ``--plot`` write files.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tqdm import tqdm

from fairseq_stochattn.analysis.drawing import require_drawable
from fairseq_stochattn.analysis.evaluation import Evaluation
from fairseq_stochattn.analysis.heads import head_distances, head_importances, show_heads
from fairseq_stochattn.analysis.heads_plot import draw
from fairseq_stochattn.analysis.heads_report import HeadReport, LayerReport, as_json, as_table
from fairseq_stochattn.errors import UsageError, require_not_negative, require_positive
from fairseq_stochattn.heads import find_heads, select_heads
from fairseq_stochattn.loading import DataSelection, warnings_only


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
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
        found = as_json(reports, args.tolerance, data=args.data, subset=args.subset)
        args.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 0


def measure(checkpoint: Path, selection: DataSelection, args: argparse.Namespace) -> HeadReport:
    """Dist of every layer and the importance of every head of one checkpoint."""
    evaluation = Evaluation.load(checkpoint, selection, args.cpu)
    groups = find_heads(show_heads(evaluation.model))
    groups = select_heads(groups, args.sites, args.layers, flag="-")
    unit, signature = evaluation.loss_unit, None
    if args.metric == "bleu":
        search = partial(evaluation.bleu, args.beam, args.remove_bpe)
        unit, (whole, signature) = "points", search()

        def score() -> float:
            return search().score
    else:

        def score() -> float:
            return -evaluation.loss()

        whole = score()
    distances = head_distances(groups, evaluation.loss)
    progress = partial(tqdm, desc=f"masking heads of {checkpoint.name}", unit="head", mininterval=1)
    importances = head_importances(groups, score, whole, progress)
    return HeadReport(
        checkpoint=str(checkpoint),
        sentences=evaluation.sentences,
        metric=args.metric,
        unit=unit,
        score=whole if args.metric == "bleu" else -whole,
        signature=signature,
        layers=[
            LayerReport(group.site, group.layer, group.name, distance, importance)
            for group, distance, importance in zip(groups, distances, importances, strict=True)
        ],
    )


def _check(args: argparse.Namespace) -> None:
    """What would fail after hours fails now."""
    given = [x for x in ("limit", "max_tokens", "batch_size") if getattr(args, x) is not None]
    require_positive(args, *given, "beam")
    require_not_negative(args, "tolerance")
    for flag in ("json", "plot"):
        path = getattr(args, flag)
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            raise UsageError(f"--{flag} {path}: not a file in an existing directory")
    if args.plot is not None:
        require_drawable(args.plot, "--plot")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="stochattn-heads",
        description="How different (Dist) and how important the heads of a model are.",
    )
    add = parser.add_argument
    add("checkpoint", type=Path, help="a checkpoint of plain fairseq or of ours")
    add("data", help="the directory of the data, as fairseq-train takes it")
    add("--compare", type=Path, metavar="CHECKPOINT", help="a second model, on the same data")
    add(
        "--metric",
        choices=["loss", "bleu"],
        default="loss",
        help="what a masked head costs: rise of the loss (default), drop of BLEU (translation)",
    )
    add("--sites", default="all", help="all, or some of encoder,decoder,cross")
    add("--layers", default="all", help="all, first, last, or e.g. 0,2 (from 0)")
    add("--subset", "--gen-subset", default="valid", help="split of the data (default: valid)")
    add("--limit", type=int, metavar="N", help="only the first N sentences of it")
    add("--max-tokens", type=int, default=4000, help="tokens a batch (default: 4000)")
    add("--batch-size", type=int, help="most sentences a batch")
    add("--beam", type=int, default=5, help="for BLEU (default: 5)")
    add(
        "--remove-bpe",
        nargs="?",
        const="subword_nmt",
        help="for BLEU: join subwords, as fairseq-generate does (e.g. sentencepiece)",
    )
    add(
        "--tolerance",
        type=float,
        default=0.0,
        help="a head that costs at most this counts as harmless (default: 0)",
    )
    add("--seed", type=int, help="default: the one of training")
    add("--cpu", action="store_true", help="do not use the GPU")
    add("--json", type=Path, metavar="FILE", help="write everything measured")
    add("--plot", type=Path, metavar="FILE", help="draw it: .png, .svg or .pdf")
    return parser


if __name__ == "__main__":
    sys.exit(main())
