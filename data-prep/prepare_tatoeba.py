"""Tatoeba, short sentences German–English (170,000 pairs), split so that no English side leaks.

python data-prep/prepare_tatoeba.py --out data-bin/tatoeba [--from FOLDER]
The archive on the web grows with time; the checksum is that of its state of May 2018. Another
state is used with --from.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Sequence

from steps.command import main_of, parser_for, prepare_translation, recipe_of, sources
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
    """1 % valid, 1 % test, decided by the English side: all its translations stay together."""
    bucket = int.from_bytes(hashlib.sha256(english.encode()).digest()[:4], "big") % 100
    return {0: "test", 1: "valid"}.get(bucket, "train")


def read_split(file: TextFile, split: str, report: Report) -> Iterator[tuple[str, str]]:
    """(German, English) of one split; lines are English, German and, in newer states, a licence."""
    for line in read_lines(file, report):
        if line is None:
            continue
        columns = line.split("\t")
        if len(columns) < 2:
            raise PrepError(f"{file}: line {report.lines} has no tab between its languages")
        english, german = columns[:2]
        if split_of(english) == split:
            yield german, english


def run(argv: Sequence[str] | None) -> None:
    parser = parser_for(__doc__.splitlines()[0], Recipe(size=8_000, ratio=0), downloads=True)
    args = parser.parse_args(argv)
    recipe = recipe_of(args, "de", "en")
    archive = sources([REMOTE], args)[REMOTE.name]
    file = TextFile(archive, MEMBER)

    def read() -> dict:
        reports = {split: Report() for split in ("train", "valid", "test")}
        return {split: (read_split(file, split, r), r) for split, r in reports.items()}

    prepare_translation(args, recipe, [archive], read)


main = main_of(run)

if __name__ == "__main__":
    sys.exit(main())
