"""``stochattn-import FOLDER OUTPUT``: turn a Hugging Face folder into a fairseq checkpoint."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Sequence
from pathlib import Path

from ..pretrained.import_huggingface import MODEL, import_folder
from .command import OneLineParser, command, log_level

DESCRIPTION = (
    "Write a pretrained BERT, RoBERTa, ELECTRA or ALBERT in Hugging Face's format as a fairseq "
    "checkpoint."
)
EXAMPLE = "stochattn-import bert-base-uncased imported --arch roberta_babn"


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Import the model and print the commands that prepare data for it and train it."""
    args = build_parser().parse_args(argv)
    with log_level(logging.INFO, "fairseq_stochattn"):  # it says what the checkpoint lacks
        flags = import_folder(args.source, args.output, args.arch, args.force)
    print(f"data:  stochattn-prepare CORPUS … --model-from {shlex.quote(str(args.output))}")
    model = ["--finetune-from-model", str(args.output / MODEL)]
    print(f"train: fairseq-train DATA {shlex.join([*flags, *model])}")
    return 0


def build_parser() -> OneLineParser:
    parser = OneLineParser(prog="stochattn-import", description=DESCRIPTION, example=EXAMPLE)
    add = parser.add_argument
    add("source", type=Path, help="folder with config.json, the weights and the tokenizer")
    add("output", type=Path, help="folder to write, with model.pt, dict.txt and the tokenizer")
    add("--arch", required=True, help="arch of the model, such as roberta_babn or electra_babn")
    add("--force", action="store_true", help="overwrite the result of an earlier import")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
