"""Prepare Tatoeba German-English: 170,000 short pairs; no English sentence is in two splits.

Example: stochattn-prepare tatoeba --out data-bin/tatoeba
In a clone, python data-prep/prepare_tatoeba.py takes the same flags.

The archive on the web grows with time. The download is checked with the checksum of the version of
May 2018. To use another version, give its folder with --from.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Sequence

from steps.command import main_of, parser_for, prepare_translation, recipe_of, source_files
from steps.errors import PrepError
from steps.fetch import Remote
from steps.lines import Report, TextFile, read_lines
from steps.translation import Recipe

REMOTE = Remote(
    "http://www.manythings.org/anki/deu-eng.zip",
    "b7688f84f99fa33c17397c14d8bd9cef1fdeb2ee0bf50074767023aee8926e28",
)
MEMBER = "deu.txt"


def split_of(english: str) -> str:
    """Return the split of an English sentence and all its translations: 1 % valid, 1 % test."""
    bucket = int.from_bytes(hashlib.sha256(english.encode()).digest()[:4], "big") % 100
    return {0: "test", 1: "valid"}.get(bucket, "train")


def read_split(file: TextFile, split: str, report: Report) -> Iterator[tuple[str, str]]:
    """Yield the (German, English) pairs of one split.

    Each line of the file has English, German and, in newer versions, a licence.
    """
    for line in read_lines(file, report):
        if line is None:
            continue
        columns = line.split("\t")
        if len(columns) < 2:
            raise PrepError(f"{file}: line {report.lines} has no tab between English and German")
        english, german = columns[:2]
        if split_of(english) == split:
            yield german, english


def run(argv: Sequence[str] | None) -> None:
    parser = parser_for(__doc__, Recipe(size=8_000, ratio=0), downloads=True)
    args = parser.parse_args(argv)
    recipe = recipe_of(args, "de", "en")
    archive = source_files([REMOTE], args)[REMOTE.name]
    file = TextFile(archive, MEMBER)

    def read() -> dict:
        reports = {split: Report() for split in ("train", "valid", "test")}
        return {split: (read_split(file, split, r), r) for split, r in reports.items()}

    prepare_translation(args, recipe, [archive], read)


main = main_of(run)

if __name__ == "__main__":
    sys.exit(main())
