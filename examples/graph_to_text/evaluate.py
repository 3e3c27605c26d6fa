"""Generate the texts of one checkpoint and measure them; the experiments of evidence use it.

python examples/graph_to_text/evaluate.py DATA --path CHECKPOINT --gen-subset test --json FILE
The checkpoint may be of --task graph_to_text, or of --task translation on the graphs as text.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from fairseq_stochattn.commands import score_text
from fairseq_stochattn.commands.command import OneLineParser, command
from fairseq_stochattn.compat import load_checkpoint
from fairseq_stochattn.core.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
LANGUAGES = ("--source-lang", "graph", "--target-lang", "text")


def task_flags(checkpoint: Path) -> list[str]:
    """The flags of the task that a checkpoint was trained with."""
    task = load_checkpoint(str(checkpoint))["cfg"]["task"]["_name"]
    if task not in ("graph_to_text", "translation"):
        raise InputError(f"{checkpoint} is a model of task {task}, which writes no texts")
    return ["--task", task, *(LANGUAGES if task == "translation" else ())]


def generate(args: argparse.Namespace, output: Path) -> None:
    """Run fairseq-generate and write its output to a file."""
    words = [
        str(Path(sys.executable).with_name("fairseq-generate")), str(args.data),
        "--user-dir", str(ROOT / "fairseq_stochattn"), *task_flags(args.path),
        "--path", str(args.path), "--gen-subset", args.gen_subset, "--batch-size", "64",
        "--beam", str(args.beam), "--max-len-a", "0", "--max-len-b", str(args.max_len),
        *(["--cpu"] if args.cpu else []),
    ]  # fmt: skip
    with output.open("wb") as file:
        done = subprocess.run(words, stdout=file, stderr=subprocess.PIPE, check=False)
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        raise InputError(f"fairseq-generate failed: {lines[-1]}")


@command
def main(argv: list[str] | None = None) -> int:
    """Generate and score."""
    parser = OneLineParser(description=__doc__)
    parser.add_argument("data", type=Path, help="folder that stochattn-prepare wrote")
    parser.add_argument("--path", type=Path, required=True, help="checkpoint")
    parser.add_argument("--gen-subset", default="test", help="split, default: %(default)s")
    parser.add_argument("--json", type=Path, required=True, help="file for the measures")
    parser.add_argument("--beam", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--max-len", type=int, default=100, help="longest text in tokens")
    parser.add_argument("--cpu", action="store_true", help="do not use a GPU")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "generated.txt"
        generate(args, output)
        flags = ["--generated", output, "--gen-subset", args.gen_subset, "--json", args.json]
        return score_text.main([str(x) for x in (args.data, *flags)])


if __name__ == "__main__":
    sys.exit(main())
