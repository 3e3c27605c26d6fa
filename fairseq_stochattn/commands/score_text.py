"""``stochattn-score-text DATA --generated FILE``: measures the texts of fairseq-generate.

DATA is a folder that ``stochattn-prepare webnlg`` or ``agenda`` wrote. FILE is the output of
fairseq-generate, with ``--task graph_to_text``, or with ``--task translation`` on graphs as text.
Entity symbols are replaced by the names of the entities of the same graph.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..analysis.data_files import require_split_name
from ..analysis.text_metrics import Generated, text_metrics
from ..core.errors import InputError
from ..core.files import atomic_file
from ..core.graph_text_file import GraphText, read_graph_texts
from ..core.optional import require_package
from .command import SUBSET_HELP, OneLineParser, command, require_output

DESCRIPTION = (
    "Measure generated texts about graphs: BLEU-1 to 4, METEOR, ROUGE and entity coverage."
)
EXAMPLE = "stochattn-score-text data-bin/webnlg --generated generated.txt"


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Read the texts, print the measures, and write the files that were asked for."""
    args = build_parser().parse_args(argv)
    for flag in ("json", "output"):
        if getattr(args, flag) is not None:
            require_output(getattr(args, flag), f"--{flag}")
    require_split_name(args.gen_subset)
    graphs = list(read_graph_texts(args.data / f"{args.gen_subset}.jsonl"))
    texts = read_hypotheses(args.generated)
    rows = [
        Generated(graphs[number].fill(texts[number]), graph.references, graph.entities)
        for number, graph in checked(graphs, texts, args)
    ]
    if args.output is not None:
        with atomic_file(args.output) as partial:
            partial.write_text("".join(f"{row.text}\n" for row in rows), encoding="utf-8")
    metrics = text_metrics(rows)
    if args.json is not None:
        with atomic_file(args.json) as partial:
            partial.write_text(json.dumps(metrics, indent=1) + "\n", encoding="utf-8")
    if "meteor" not in metrics:
        try:
            require_package("nltk", "METEOR", "text")
        except InputError as error:
            print(f"without METEOR: {error}", file=sys.stderr)
    print(f"texts\t{len(rows)}")
    print("\n".join(f"{name}\t{value:.2f}" for name, value in metrics.items()))
    return 0


def checked(
    graphs: Sequence[GraphText], texts: dict[int, str], args: argparse.Namespace
) -> Iterator[tuple[int, GraphText]]:
    """Yield the graphs with their numbers; raises unless all have a text and references."""
    for number in texts:
        if number >= len(graphs):
            raise InputError(f"{args.generated} has a text {number}: it is of another split")
    for number, graph in enumerate(graphs):
        if number not in texts:
            raise InputError(f"{args.generated} has no text for graph {number}")
        if not graph.references:
            raise InputError(f"graph {number} of the {args.gen_subset} set has no references")
        yield number, graph
    if not graphs:
        raise InputError(f"the {args.gen_subset} set in {args.data} is empty")


def read_hypotheses(path: Path) -> dict[int, str]:
    """The best hypothesis of every example in the output of fairseq-generate."""
    found: dict[int, str] = {}
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError:
        raise InputError(f"{path} cannot be read: it is not UTF-8") from None
    for line in lines:
        columns = line.split("\t")
        if not line.startswith("H-") or len(columns) < 3 or not columns[0][2:].isdecimal():
            continue
        found.setdefault(int(columns[0][2:]), columns[2])
    if not found:
        raise InputError(f"{path} has no hypotheses: it is not the output of fairseq-generate")
    return found


def build_parser() -> OneLineParser:
    parser = OneLineParser(prog="stochattn-score-text", description=DESCRIPTION, example=EXAMPLE)
    parser.add_argument("data", type=Path, help="folder that stochattn-prepare wrote")
    add = parser.add_argument
    add(
        "--generated",
        type=Path,
        required=True,
        metavar="FILE",
        help="the output of fairseq-generate",
    )
    add("--gen-subset", default="test", metavar="NAME", help=SUBSET_HELP)
    add("--output", type=Path, metavar="FILE", help="write the texts with the names of entities")
    add("--json", type=Path, metavar="FILE", help="write the measures to a JSON file")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
