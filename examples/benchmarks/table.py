"""Make the tables of docs/costs.md from the output of speed.py.

python examples/benchmarks/table.py speed.json                       # print the tables
python examples/benchmarks/table.py speed.json --into docs/costs.md  # replace those in the page
python examples/benchmarks/table.py monday.json tuesday.json         # combine several runs
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from cases import AIMS, LENGTHS, PLAIN_AT_TEST

BEGIN, END = "<!-- speed: begin -->", "<!-- speed: end -->"
Row = dict[str, Any]
KEY = ("part", "method", "backbone", "length", "threads", "what")  # identify a comparison


def merged(runs: list[list[Row]]) -> list[Row]:
    """Return one row per comparison: the median over the runs, with minimum and maximum."""
    by_comparison: dict[tuple, list[Row]] = {}
    for row in (row for rows in runs for row in rows):
        by_comparison.setdefault(tuple(row.get(name) for name in KEY), []).append(row)
    return [rows[0] if len(rows) == 1 else _combine(rows) for rows in by_comparison.values()]


def _combine(rows: list[Row]) -> Row:
    medians = [row["median"] for row in rows]
    spread = {"low": min(medians), "high": max(medians)} if "low" in rows[0] else {}
    return {**rows[0], "median": statistics.median(medians), **spread}


def find(rows: list[Row], **wanted: object) -> Row | None:
    """Return the first row with these values, None if there is none."""
    for row in rows:
        if all(row.get(name) == value for name, value in wanted.items()):
            return row
    return None


def format_ratio(row: Row | None) -> str:
    """Return a ratio with its spread; bold if it reaches its aim, with a remark if it does not."""
    if row is None:
        return "–"
    text = f"{row['median']:.2f}"
    if "low" in row:
        text += f" ({row['low']:.2f}–{row['high']:.2f})"
    if row["aim"] is None:
        return text
    ratio = round(row["median"], 2)
    met = ratio >= row["aim"] if row["at_least"] else ratio <= row["aim"]
    return f"**{text}**" if met else f"{text}, aim missed"


def training_table(rows: list[Row]) -> list[str]:
    """Return the table of training steps, one line per aim."""
    cores = max((row.get("threads", 1) for row in rows), default=1)
    lines = [
        "| method | model, tokens | step ÷ plain | aim | all cores | paper | released code |",
        "|---|---|---|---|---|---|---|",
    ]
    for aim in AIMS:
        wanted = {"part": "train", "method": aim.method, "backbone": aim.backbone}
        single, multi = (find(rows, **wanted, length=aim.length, threads=n) for n in (1, cores))
        all_cores = f"{multi['median']:.2f}" if multi and cores > 1 else "–"
        limit = "–" if aim.train is None else f"{aim.train:.2f}"
        cells = f"{aim.backbone}, {aim.length}", format_ratio(single), limit, all_cores
        lines.append(f"| `{aim.method}` | {' | '.join((*cells, aim.paper, aim.released))} |")
    return lines


def other_table(rows: list[Row]) -> list[str]:
    """Return the table of beam search, memory and parameters, one line per method."""
    lines = ["| method | beam search ÷ plain | peak memory ÷ plain | parameters ÷ plain |"]
    lines.append("|---|---|---|---|")
    for method in dict.fromkeys(row["method"] for row in rows if row["part"] == "train"):
        search = format_ratio(find(rows, part="generate", method=method))
        search = PLAIN_AT_TEST.get(method, search)
        memory = find(rows, part="memory", method=method, backbone="transformer")
        size = find(rows, part="train", method=method, backbone="transformer")
        parameters = f"{size['parameters']:.3f}" if size else "–"
        lines.append(f"| `{method}` | {search} | {format_ratio(memory)} | {parameters} |")
    return lines


def growth_table(rows: list[Row]) -> list[str]:
    """Return the table of training steps by sentence length, one line per method."""
    grown = [row for row in rows if row["part"] == "train" and row["backbone"] == "shallow"]
    lengths = " | ".join(f"{n} tokens" for n in LENGTHS)
    lines = [
        f"| step ÷ plain at | {lengths} | peak memory ÷ plain at {LENGTHS[-1]} tokens |",
        "|---" * (2 + len(LENGTHS)) + "|",
    ]
    for method in dict.fromkeys(row["method"] for row in grown):
        found = (find(grown, method=method, length=length) for length in LENGTHS)
        cells = " | ".join(f"{row['median']:.2f}" if row else "–" for row in found)
        memory = find(rows, part="memory", method=method, backbone="shallow")
        lines.append(f"| `{method}` | {cells} | {format_ratio(memory)} |")
    return lines


def parts_table(rows: list[Row]) -> list[str]:
    """Return the table of all comparisons that have a description."""
    lines = ["| | ratio | aim |", "|---|---|---|"]
    for row in (row for row in rows if "what" in row):
        sign = "≥" if row["at_least"] else "≤"
        lines.append(f"| {row['what']} | {format_ratio(row)} | {sign} {row['aim']:.2f} |")
    return lines


def tables(rows: list[Row]) -> str:
    """Return all tables as Markdown, without those that have no rows."""
    parts = (training_table(rows), other_table(rows), growth_table(rows), parts_table(rows))
    # The first two lines of a table are its header.
    return "\n\n".join("\n".join(lines) for lines in parts if len(lines) > 2)


def write_between_markers(path: Path, text: str) -> None:
    """Replace the text between the markers of a page."""
    page = path.read_text()
    if BEGIN not in page or END not in page:
        sys.exit(f"{path} has no {BEGIN} … {END} to write the tables between")
    before, rest = page.split(BEGIN, 1)
    path.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.split(END, 1)[1]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "figures", type=Path, nargs="+", help="one or more files of speed.py --output"
    )
    parser.add_argument(
        "--into", type=Path, metavar="PAGE", help="write the tables into PAGE, between its markers"
    )
    args = parser.parse_args()
    text = tables(merged([json.loads(path.read_text())["rows"] for path in args.figures]))
    if args.into:
        write_between_markers(args.into, text)
    else:
        print(text)


if __name__ == "__main__":
    main()
