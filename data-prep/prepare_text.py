"""Prepare your own plain text files for pretraining; blank lines separate documents.

Example: stochattn-prepare text --out data-bin/mine --train books/*.txt.gz --valid held-out.txt
In a clone, python data-prep/prepare_text.py takes the same flags.

Without --valid, one document in a hundred (--valid-share) becomes part of the validation set. Each
line is read as one paragraph, so join wrapped lines before you use this script.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from steps.command import main_of
from steps.documents import read_documents
from steps.lines import Report
from steps.pretraining_command import Corpus, parser_for, prepare_documents

SPLITS = ("train", "valid", "test")


def run(argv: Sequence[str] | None) -> None:
    parser = parser_for(__doc__, downloads=False)
    for split in SPLITS:
        parser.add_argument(
            f"--{split}",
            type=Path,
            nargs="+",
            required=split == "train",
            metavar="FILE",
            help=f"text files of the {split} set, which may be compressed (.gz, .bz2, .xz)",
        )
    args = parser.parse_args(argv)
    files = {split: getattr(args, split) for split in SPLITS if getattr(args, split)}

    def read() -> Corpus:
        reports = {split: Report() for split in files}
        return {s: (read_documents(files[s], report), report) for s, report in reports.items()}

    prepare_documents(args, files, read)


main = main_of(run)

if __name__ == "__main__":
    sys.exit(main())
