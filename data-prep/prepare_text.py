"""Any plain text files for pre-training and language models; blank lines separate documents.

python data-prep/prepare_text.py --out data-bin/mine --train books/*.txt.gz --valid held-out.txt
Without --valid, one document in a hundred (--valid-share) becomes the validation set. A line is
taken for a paragraph: text that is wrapped at some width is best unwrapped before.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from steps.command import main_of
from steps.documents import read_documents
from steps.lines import Report
from steps.pretraining import Corpus, parser_for, prepare_documents

SPLITS = ("train", "valid", "test")


def run(argv: Sequence[str] | None) -> None:
    parser = parser_for(__doc__.splitlines()[0], downloads=False)
    for split in SPLITS:
        needed = split == "train"
        parser.add_argument(f"--{split}", type=Path, nargs="+", required=needed, metavar="FILE")
    args = parser.parse_args(argv)
    files = {split: getattr(args, split) for split in SPLITS if getattr(args, split)}

    def read() -> Corpus:
        reports = {split: Report() for split in files}
        return {s: (read_documents(files[s], report), report) for s, report in reports.items()}

    prepare_documents(args, files, read)


main = main_of(run)

if __name__ == "__main__":
    sys.exit(main())
