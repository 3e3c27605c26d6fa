"""The table of the README from the figures of speed.py.

python examples/benchmarks/table.py speed.json                    # print it
python examples/benchmarks/table.py speed.json --into README.md   # write it between the markers
python examples/benchmarks/table.py monday.json tuesday.json      # of several runs
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
KEY = ("part", "method", "backbone", "length", "threads", "what")


def merged(runs: list[list[Row]]) -> list[Row]:
    """A row for every comparison; where several runs have it the median of their figures, between
    the least and the greatest."""
    alike: dict[tuple, list[Row]] = {}
    for row in (row for rows in runs for row in rows):
        alike.setdefault(tuple(row.get(name) for name in KEY), []).append(row)
    return [rows[0] if len(rows) == 1 else _middle(rows) for rows in alike.values()]


def _middle(rows: list[Row]) -> Row:
    found = [row["median"] for row in rows]
    spread = {"low": min(found), "high": max(found)} if "low" in rows[0] else {}
    return {**rows[0], "median": statistics.median(found), **spread}


def find(rows: list[Row], **wanted: object) -> Row | None:
    for row in rows:
        if all(row.get(name) == value for name, value in wanted.items()):
            return row
    return None


def shown(row: Row | None) -> str:
    """A ratio with its spread; one that misses its aim says so in words."""
    if row is None:
        return "–"
    text = f"{row['median']:.2f}"
    if "low" in row:
        text += f" ({row['low']:.2f}–{row['high']:.2f})"
    if row["aim"] is None:
        return text
    found = round(row["median"], 2)
    met = found >= row["aim"] if row["at_least"] else found <= row["aim"]
    return f"**{text}**" if met else f"{text}, aim missed"


def training_table(rows: list[Row]) -> list[str]:
    cores = max((row.get("threads", 1) for row in rows), default=1)
    lines = [
        "| method | model, tokens | step ÷ plain | aim | all cores | paper | released code |",
        "|---|---|---|---|---|---|---|",
    ]
    for aim in AIMS:
        wanted = {"part": "train", "method": aim.method, "backbone": aim.backbone}
        alone, together = (find(rows, **wanted, length=aim.length, threads=n) for n in (1, cores))
        together = f"{together['median']:.2f}" if together and cores > 1 else "–"
        most = "–" if aim.train is None else f"{aim.train:.2f}"
        cells = f"{aim.backbone}, {aim.length}", shown(alone), most, together
        lines.append(f"| `{aim.method}` | {' | '.join((*cells, aim.paper, aim.released))} |")
    return lines


def other_table(rows: list[Row]) -> list[str]:
    """Beam search, memory and parameters, a line a method."""
    lines = ["| method | beam search ÷ plain | peak memory ÷ plain | parameters ÷ plain |"]
    lines.append("|---|---|---|---|")
    for method in dict.fromkeys(row["method"] for row in rows if row["part"] == "train"):
        search = shown(find(rows, part="generate", method=method))
        search = PLAIN_AT_TEST.get(method, search)
        memory = find(rows, part="memory", method=method, backbone="transformer")
        size = find(rows, part="train", method=method, backbone="transformer")
        parameters = f"{size['parameters']:.3f}" if size else "–"
        lines.append(f"| `{method}` | {search} | {shown(memory)} | {parameters} |")
    return lines


def growth_table(rows: list[Row]) -> list[str]:
    grown = [row for row in rows if row["part"] == "train" and row["backbone"] == "shallow"]
    lines = [
        f"| step ÷ plain at | {' | '.join(f'{n} tokens' for n in LENGTHS)} | peak memory there |",
        "|---" * (2 + len(LENGTHS)) + "|",
    ]
    for method in dict.fromkeys(row["method"] for row in grown):
        found = (find(grown, method=method, length=length) for length in LENGTHS)
        cells = " | ".join(f"{row['median']:.2f}" if row else "–" for row in found)
        memory = find(rows, part="memory", method=method, backbone="shallow")
        lines.append(f"| `{method}` | {cells} | {shown(memory)} |")
    return lines


def parts_table(rows: list[Row]) -> list[str]:
    lines = ["| | ratio | aim |", "|---|---|---|"]
    for row in (row for row in rows if "what" in row):
        sign = "≥" if row["at_least"] else "≤"
        lines.append(f"| {row['what']} | {shown(row)} | {sign} {row['aim']:.2f} |")
    return lines


def tables(rows: list[Row]) -> str:
    parts = (training_table(rows), other_table(rows), growth_table(rows), parts_table(rows))
    # Parts that were not run have a head and nothing else.
    return "\n\n".join("\n".join(lines) for lines in parts if len(lines) > 2)


def write_between_markers(path: Path, text: str) -> None:
    page = path.read_text()
    if BEGIN not in page or END not in page:
        sys.exit(f"{path} has no {BEGIN} … {END} to write the tables between")
    before, rest = page.split(BEGIN, 1)
    path.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.split(END, 1)[1]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("figures", type=Path, nargs="+", help="what speed.py --output wrote")
    parser.add_argument("--into", type=Path, help="a page with the markers")
    args = parser.parse_args()
    text = tables(merged([json.loads(path.read_text())["rows"] for path in args.figures]))
    if args.into:
        write_between_markers(args.into, text)
    else:
        print(text)


if __name__ == "__main__":
    main()
