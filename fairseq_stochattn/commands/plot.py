"""``stochattn-plot KIND … --output FILE``: draw attention, uncertainty, heads or training.

| kind                                      | reads                               |
|-------------------------------------------|-------------------------------------|
| attention, image, keys-queries            | a checkpoint and its data           |
| reliability, risk-coverage, out-of-domain | output of stochattn-evaluate --json |
| heads                                     | output of stochattn-heads --json    |
| curves, layers, layer-shares              | the log of fairseq-train            |
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq import utils

from ..analysis import calibration_plot, curves
from ..analysis.attention_plot import attention_figure, attention_maps
from ..analysis.drawing import house_style, require_drawable, save
from ..analysis.evaluation import Evaluation
from ..analysis.evaluation_file import read_evaluation
from ..analysis.heads import show_heads
from ..analysis.heads_plot import heads_figure
from ..analysis.heads_report import read_reports
from ..analysis.image_plot import IMAGE_SITES, POOLING, image_figure, image_maps
from ..analysis.keys_queries import collect, keys_queries_figure
from ..analysis.loading import DataSelection, warnings_only
from ..analysis.sentences import sentence_from, sentences_of
from ..analysis.training_log import read_log
from ..analysis.weights import find_attention
from ..core.errors import InputError, require_positive
from ..core.heads import select_heads
from ..core.optional import require_package
from ..core.selection import parse_heads
from ..tasks.kinds import is_task
from ..uncertainty.sampling import is_random
from .command import (
    CHECKPOINT_HELP,
    CPU_HELP,
    DATA_HELP,
    SUBSET_HELP,
    TRAINING_SEED_HELP,
    OneLineParser,
    command,
    require_output,
    seed,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DESCRIPTION = "Draw attention, uncertainty, heads or training curves."
EXAMPLE = (
    "stochattn-plot attention checkpoint_best.pt data-bin/multi30k --id 3 --heads all \\\n"
    "    --output map.png"
)
# What each kind reads, as in the example at the end of its help.
INPUTS = {
    "attention": "checkpoint_best.pt data-bin/multi30k --id 3 --heads all",
    "image": "checkpoint_best.pt data-bin/easy_vqa --id 3",
    "keys-queries": "checkpoint_best.pt data-bin/multi30k --sites encoder --layers 0",
    **dict.fromkeys(("reliability", "risk-coverage", "out-of-domain"), "evaluation.json"),
    "heads": "heads.json",
    "curves": "train.log",
    "layers": "train.log --names masked_share",
    "layer-shares": "sst2.log mrpc.log",
}
Add = Callable[..., Any]  # add_argument of a parser


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Draw one figure and save it."""
    args = build_parser().parse_args(argv)
    require_drawable(args.output)
    require_output(args.output, "--output")
    with warnings_only(), house_style():
        save(args.draw(args), args.output)
    print(f"{args.kind}: {args.output}")
    return 0


def _attention(args: argparse.Namespace) -> Figure:
    require_positive(args, "samples")
    if args.target is not None and (args.text is None or len(args.text) != 1):
        raise InputError("--target needs exactly one --text")
    if args.text is None and args.id is None:
        raise InputError(
            "no sentence is chosen: give --id NUMBER, or --text with a sentence in subwords"
        )
    numbers = args.id or []
    # With --text alone, sentence 0 is loaded but not drawn: an evaluation needs a batch.
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
        maps += attention_maps(
            evaluation,
            sentence,
            args.sites,
            args.layers,
            args.heads.strip(),
            args.samples,
            args.unnormalised,
        )
    sampling = f"{args.samples} samples" if is_random(evaluation.model) else "not random"
    return attention_figure(maps, f"{args.checkpoint}, {sampling}")


def _image(args: argparse.Namespace) -> Figure:
    require_positive(args, "samples")
    selection = DataSelection(args.data, args.subset, seed=args.seed, ids=(args.id,))
    evaluation = Evaluation.load(args.checkpoint, selection, args.cpu)
    if not is_task(evaluation.task, "vqa"):
        raise InputError("image: the model was not trained with --task vqa, so it reads no images")
    show_heads(evaluation.model)
    (sentence,) = sentences_of(evaluation, [args.id])
    utils.set_torch_seed(evaluation.seed)
    sites = args.sites or POOLING
    maps = image_maps(evaluation, sentence, sites, args.layers, args.samples)
    sampling = f"{args.samples} samples" if is_random(evaluation.model) else "not random"
    words = " ".join(sentence.source[:-1])  # without the end-of-sentence symbol
    return image_figure(maps, f"{args.checkpoint}, {sampling}\n{words} ?")


def _keys_queries(args: argparse.Namespace) -> Figure:
    require_package("sklearn", "keys-queries")
    require_positive(args, "limit", "tokens")
    selection = DataSelection(args.data, args.subset, args.limit, max_tokens=4000, seed=args.seed)
    evaluation = Evaluation.load(args.checkpoint, selection, args.cpu)
    groups = find_attention(show_heads(evaluation.model))
    sites = args.sites or groups[0].site
    groups = select_heads(groups, sites, args.layers, ("--sites", "--layers"))
    if len(groups) > 1:
        raise InputError("keys-queries draws one layer of one site: --sites encoder --layers 0")
    (group,) = groups
    heads = parse_heads(args.heads, group.num_heads, name="--heads")
    vectors = collect(evaluation, group).some(args.tokens, evaluation.seed)
    place = f"{group.site} attention, layer {group.layer}"
    title = f"{args.checkpoint}\n{place}, {len(vectors.keys)} tokens of {args.subset}"
    return keys_queries_figure(vectors, heads, title, evaluation.seed, args.kernel)


def _of_evaluation(draw: Callable[[dict], Figure]) -> Callable[[argparse.Namespace], Figure]:
    """Return ``draw`` as a function of the arguments: it reads the evaluation file."""
    return lambda args: draw(read_evaluation(args.evaluation))


def _heads(args: argparse.Namespace) -> Figure:
    return heads_figure(read_reports(args.measured))


def _curves(args: argparse.Namespace) -> Figure:
    log = read_log(args.log)
    return curves.curves_figure(log, curves.choose_curves(log, _names(args)), _title(args))


def _layers(args: argparse.Namespace) -> Figure:
    log = read_log(args.log)
    return curves.layers_figure(log, curves.choose_layers(log, _names(args)), _title(args))


def _layer_shares(args: argparse.Namespace) -> Figure:
    logs = {path.name.split(".")[0]: read_log([path]) for path in args.log}
    if len(logs) < len(args.log):
        logs = {str(path): read_log([path]) for path in args.log}
    return curves.shares_figure(logs, args.name, args.site)


def _names(args: argparse.Namespace) -> list[str]:
    return args.names.split(",") if args.names else []


def _title(args: argparse.Namespace) -> str:
    return ", ".join(map(str, args.log))


def build_parser() -> OneLineParser:
    """Return the parser; each kind of figure is a subcommand that sets ``args.draw``."""
    parser = OneLineParser(prog="stochattn-plot", description=DESCRIPTION, example=EXAMPLE)
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")

    def add_kind(name: str, draw: Callable[[argparse.Namespace], Figure], about: str) -> Add:
        example = f"stochattn-plot {name} {INPUTS[name]} --output {name}.svg"
        subparser = kinds.add_parser(
            name, help=about, description=f"Draw: {about}.", example=example
        )
        subparser.set_defaults(draw=draw)
        return subparser.add_argument

    _add_attention(
        add_kind("attention", _attention, "mean and std/mean of a sentence's attention weights")
    )
    _add_image(add_kind("image", _image, "attention over the regions of the image of a question"))
    _add_keys_queries(
        add_kind("keys-queries", _keys_queries, "t-SNE of keys and queries, with their squared MMD")
    )
    for name, draw, about in (
        ("reliability", calibration_plot.reliability_figure, "accuracy in bins of confidence"),
        (
            "risk-coverage",
            calibration_plot.risk_coverage_figure,
            "share of errors if only the most confident predictions are used",
        ),
        (
            "out-of-domain",
            calibration_plot.out_of_domain_figure,
            "entropy on the data and on out-of-domain data",
        ),
    ):
        add = add_kind(name, _of_evaluation(draw), about)
        add("evaluation", type=Path, help="file written by stochattn-evaluate --json")
        _add_output(add)
    add = add_kind("heads", _heads, "histogram and map of the importance of heads")
    add("measured", type=Path, help="file written by stochattn-heads --json")
    _add_output(add)
    for name, draw, about in (
        ("curves", _curves, "every named loss over training"),
        ("layers", _layers, "masked share, dropout probability or MMD per layer over training"),
    ):
        add = add_kind(name, draw, about)
        add("log", type=Path, nargs="+", help="log of fairseq-train, or a folder of tensorboard")
        add(
            "--names",
            metavar="A,B",
            help="names of the quantities to draw, separated by commas (default: all)",
        )
        _add_output(add)
    about = "masked share or dropout probability over the layers, one line per log, such as tasks"
    add = add_kind("layer-shares", _layer_shares, about)
    add("log", type=Path, nargs="+", help="logs of fairseq-train, one per run")
    add("--name", default="masked_share", help="the quantity (default: %(default)s)")
    add("--site", default="encoder", help="encoder or decoder (default: %(default)s)")
    _add_output(add)
    return parser


def _add_attention(add: Add) -> None:
    _add_model(add, "cross; the model's first site if it has no cross-attention")
    add(
        "--heads",
        default="mean",
        help="all, mean (over the heads), or indices such as 0,2 (default: %(default)s)",
    )
    add("--id", type=int, action="append", metavar="N", help="sentence N of the data; repeatable")
    add("--text", action="append", help="sentence in the subwords of the data; repeatable")
    add("--target", help="translation of --text (default: the output of the model)")
    _add_samples(add)
    add(
        "--unnormalised",
        action="store_true",
        help="draw std/mean of the weights before normalisation (Fig. 3 of the BABN paper)",
    )
    _add_output(add)


def _add_image(add: Add) -> None:
    _add_model(add, POOLING, ",".join(IMAGE_SITES))
    add("--id", type=int, required=True, metavar="N", help="question N of the data")
    _add_samples(add)
    _add_output(add)


def _add_samples(add: Add) -> None:
    add(
        "--samples",
        type=int,
        default=20,
        metavar="K",
        help="number of samples of the attention (default: %(default)s)",
    )


def _add_keys_queries(add: Add) -> None:
    _add_model(add, "the model's first site")
    add("--heads", default="all", help="all, or indices such as 0,2 (default: %(default)s)")
    add(
        "--limit",
        type=int,
        default=100,
        metavar="N",
        help="use the first N sentences (default: %(default)s)",
    )
    add(
        "--tokens",
        type=int,
        default=300,
        metavar="N",
        help="draw at most N tokens (default: %(default)s)",
    )
    add(
        "--kernel",
        choices=("data", "paper"),
        default="data",
        help="kernel of the MMD: its width from the data, over all drawn tokens (data), or 1, "
        "within each sentence (paper) (default: %(default)s)",
    )
    _add_output(add)


def _add_model(add: Add, default_site: str, sites: str = "encoder,decoder,cross") -> None:
    add("checkpoint", type=Path, help=CHECKPOINT_HELP)
    add("data", help=DATA_HELP)
    add("--sites", help=f"all, or some of {sites} (default: {default_site})")
    add(
        "--layers",
        default="last",
        help="all, first, last, or indices such as 0,2 (default: %(default)s)",
    )
    add("--subset", "--gen-subset", default="valid", metavar="NAME", help=SUBSET_HELP)
    add("--seed", type=seed, help=TRAINING_SEED_HELP)
    add("--cpu", action="store_true", help=CPU_HELP)


def _add_output(add: Add) -> None:
    add(
        "--output",
        type=Path,
        required=True,
        metavar="FILE",
        help="file for the figure; its ending .png, .svg or .pdf chooses the format",
    )


if __name__ == "__main__":
    raise SystemExit(main())
