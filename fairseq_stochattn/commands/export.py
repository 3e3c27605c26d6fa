"""``stochattn-export CHECKPOINT OUTPUT``: write a checkpoint for plain fairseq or Hugging Face."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from fairseq.models import ARCH_MODEL_REGISTRY

from ..analysis.fairseq_errors import reading
from ..core.errors import InputError
from ..pretrained.export_fairseq import export
from ..pretrained.export_huggingface import export_folder
from .command import OneLineParser, command, log_level

DESCRIPTION = (
    "Write a checkpoint of this package as a plain fairseq checkpoint or a Hugging Face folder."
)
EXAMPLE = "stochattn-export checkpoints/checkpoint_best.pt plain.pt"


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Export the checkpoint and print how the result can be loaded."""
    args = build_parser().parse_args(argv)
    cannot = f"{args.checkpoint} cannot be exported"
    if args.to == "huggingface":
        with log_level(logging.INFO, "fairseq_stochattn"), reading(cannot):
            export_folder(args.checkpoint, args.output, args.like, args.force)
        print(f"{args.output}: load it with from_pretrained of transformers")
        return 0
    if args.like is not None:
        raise InputError("--like goes with --to huggingface")
    with reading(cannot):
        arch = export(args.checkpoint, args.output, args.force)
    if ARCH_MODEL_REGISTRY[arch].__module__.startswith("fairseq."):
        print(f"{args.output}: a plain fairseq checkpoint, no --user-dir needed")
    else:
        print(f"{args.output}: {arch} with plain attention; fairseq lacks it, keep --user-dir")
    return 0


def build_parser() -> OneLineParser:
    parser = OneLineParser(prog="stochattn-export", description=DESCRIPTION, example=EXAMPLE)
    add = parser.add_argument
    add("checkpoint", type=Path, help="checkpoint trained with an arch of this package")
    add("output", type=Path, help="checkpoint file, or Hugging Face folder, to write")
    add(
        "--to",
        choices=("fairseq", "huggingface"),
        default="fairseq",
        help="format of the output (default: %(default)s)",
    )
    add(
        "--like",
        type=Path,
        metavar="FOLDER",
        help="for --to huggingface: the folder that stochattn-import wrote, or a folder with the "
        "tokenizer and config.json of the model (default: the folder of the checkpoint)",
    )
    add("--force", action="store_true", help="overwrite the output if it exists")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
