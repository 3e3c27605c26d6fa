"""``stochattn-plot KIND … --output FILE``: pictures of attention, uncertainty, heads and training.

From a checkpoint and its data (attention, keys-queries), from what stochattn-evaluate --json wrote
(reliability, risk-coverage, out-of-domain), from what stochattn-heads --json wrote (heads), from
the log of fairseq-train (curves, layers).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq import utils

from fairseq_stochattn.analysis import calibration_plot, curves
from fairseq_stochattn.analysis.attention_plot import (
    attention_figure,
    attention_maps,
    choose_heads,
)
from fairseq_stochattn.analysis.drawing import (
    house_style,
    require_drawable,
    require_library,
    save,
)
from fairseq_stochattn.analysis.evaluation import Evaluation
from fairseq_stochattn.analysis.evaluation_file import read_evaluation
from fairseq_stochattn.analysis.heads import show_heads
from fairseq_stochattn.analysis.heads_plot import heads_figure
from fairseq_stochattn.analysis.heads_report import read_reports
from fairseq_stochattn.analysis.keys_queries import collect, keys_queries_figure
from fairseq_stochattn.analysis.sentences import sentence_from, sentences_of
from fairseq_stochattn.analysis.training_log import TrainingLog, read_log
from fairseq_stochattn.analysis.weights import find_attention
from fairseq_stochattn.errors import UsageError, require_positive
from fairseq_stochattn.heads import select_heads
from fairseq_stochattn.loading import DataSelection, warnings_only
from fairseq_stochattn.sampling import is_random

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    require_drawable(args.output)
    if args.output.is_dir() or not args.output.parent.is_dir():
        raise UsageError(f"--output {args.output}: not a file in an existing directory")
    with warnings_only(), house_style():
        save(args.draw(args), args.output)
    print(f"{args.kind}: {args.output}")
    return 0


def _attention(args: argparse.Namespace) -> Figure:
    require_positive(args, "samples")
    if args.target is not None and (args.text is None or len(args.text) != 1):
        raise UsageError("--target goes with one --text")
    if args.text is None and args.id is None:
        raise UsageError("attention of which sentence? --id NUMBER or --text 'in subwords'")
    numbers = args.id or []
    selection = DataSelection(
        args.data, args.subset, seed=args.seed, ids=tuple(numbers) if numbers else (0,)
    )
    evaluation = Evaluation.load(args.checkpoint, selection, args.cpu)
    show_heads(evaluation.model)
    sentences = list(sentences_of(evaluation, numbers)) if numbers else []
    sentences += [sentence_from(evaluation, text, args.target) for text in args.text or []]
    utils.set_torch_seed(evaluation.seed)
    maps = []
    for sentence in sentences:
        found = attention_maps(
            evaluation,
            sentence,
            args.sites,
            args.layers,
            args.heads.strip(),
            args.samples,
            args.unnormalised,
        )
        maps += found
    drawn = f"{args.samples} samples" if is_random(evaluation.model) else "not random"
    return attention_figure(maps, f"{args.checkpoint}, {drawn}")


def _keys_queries(args: argparse.Namespace) -> Figure:
    require_library("sklearn", "keys-queries")
    require_positive(args, "limit", "tokens")
    selection = DataSelection(args.data, args.subset, args.limit, max_tokens=4000, seed=args.seed)
    evaluation = Evaluation.load(args.checkpoint, selection, args.cpu)
    groups = find_attention(show_heads(evaluation.model))
    sites = args.sites or groups[0].site
    groups = select_heads(groups, sites, args.layers, flag="-")
    if len(groups) > 1:
        raise UsageError("keys-queries draws one layer of one site: --sites encoder --layers 0")
    (group,) = groups
    heads = choose_heads(args.heads, group.num_heads)
    found = collect(evaluation, group).some(args.tokens, evaluation.seed)
    place = f"{group.site} attention, layer {group.layer}"
    title = f"{args.checkpoint}\n{place}, {len(found.keys)} tokens of {args.subset}"
    return keys_queries_figure(found, heads, title, evaluation.seed)


def _evaluated(draw: Callable[[dict], Figure]) -> Callable[[argparse.Namespace], Figure]:
    return lambda args: draw(read_evaluation(args.evaluation))


def _heads(args: argparse.Namespace) -> Figure:
    return heads_figure(read_reports(args.measured))


def _curves(args: argparse.Namespace) -> Figure:
    log = _log_of(args)
    return curves.curves_figure(log, curves.choose_curves(log, args.names), _title(args))


def _layers(args: argparse.Namespace) -> Figure:
    log = _log_of(args)
    return curves.layers_figure(log, curves.choose_layers(log, args.names), _title(args))


def _log_of(args: argparse.Namespace) -> TrainingLog:
    args.names = args.names.split(",") if args.names else []
    return read_log(args.log)


def _title(args: argparse.Namespace) -> str:
    return ", ".join(map(str, args.log))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="stochattn-plot", description=__doc__.splitlines()[0])
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")

    def kind(name: str, draw: Callable[[argparse.Namespace], Figure], about: str):
        of_kind = kinds.add_parser(name, help=about, description=about)
        of_kind.set_defaults(draw=draw)
        return of_kind.add_argument

    add = kind("attention", _attention, "mean and std/mean of the attention weights of a sentence")
    _add_model(add, layers="last", heads="mean", known="all, mean (of the heads), or e.g. 0,2")
    add("--id", type=int, action="append", metavar="N", help="sentence N of the data; repeatable")
    add("--text", action="append", help="a sentence in the subwords of the data; repeatable")
    add("--target", help="the translation of --text (default: what the model writes)")
    add("--samples", type=int, default=20, metavar="K", help="default: %(default)s")
    add(
        "--unnormalised",
        action="store_true",
        help="std/mean of the variable that the weights are normalised from (BABN, Fig. 3)",
    )
    _add_output(add)
    add = kind("keys-queries", _keys_queries, "t-SNE of keys and queries, with their squared MMD")
    _add_model(add, layers="last", heads="all", known="all, or e.g. 0,2")
    add("--limit", type=int, default=100, metavar="N", help="first sentences (default: 100)")
    add("--tokens", type=int, default=300, metavar="N", help="at most drawn (default: 300)")
    _add_output(add)
    for name, draw, about in (
        ("reliability", calibration_plot.reliability_figure, "accuracy in bins of confidence"),
        ("risk-coverage", calibration_plot.risk_coverage_figure, "errors if only some is answered"),
        ("out-of-domain", calibration_plot.out_of_domain_figure, "entropy inside and outside"),
    ):
        add = kind(name, _evaluated(draw), about)
        add("evaluation", type=Path, help="what stochattn-evaluate --json wrote")
        _add_output(add)
    add = kind("heads", _heads, "histogram and map of the importance of heads")
    add("measured", type=Path, help="what stochattn-heads --json wrote")
    _add_output(add)
    for name, draw, about in (
        ("curves", _curves, "every named loss over training"),
        ("layers", _layers, "masked share, dropout probability, MMD of every layer over training"),
    ):
        add = kind(name, draw, about)
        add("log", type=Path, nargs="+", help="log of fairseq-train, or folder of tensorboard")
        add("--names", help="only these, with commas between them")
        _add_output(add)
    return parser


def _add_model(add: Callable, layers: str, heads: str, known: str) -> None:
    add("checkpoint", type=Path, help="a checkpoint of plain fairseq or of ours")
    add("data", help="the directory of its data")
    add("--sites", help="all, or some of encoder,decoder,cross (default: the most telling)")
    add("--layers", default=layers, help="all, first, last, e.g. 0,2 (default: %(default)s)")
    add("--heads", default=heads, help=f"{known} (default: %(default)s)")
    add("--subset", "--gen-subset", default="valid", help="split of the data (default: valid)")
    add("--seed", type=int, help="default: the one of training")
    add("--cpu", action="store_true", help="do not use the GPU")


def _add_output(add: Callable) -> None:
    add("--output", type=Path, required=True, metavar="FILE", help="ends in .png, .svg or .pdf")


if __name__ == "__main__":
    sys.exit(main())
