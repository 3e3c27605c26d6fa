"""Prepare OpenWebText: web pages linked from Reddit, 8,013,769 English documents, 40 GB.

Example: stochattn-prepare openwebtext --out data-bin/openwebtext
In a clone, python data-prep/prepare_openwebtext.py takes the same flags.

The download is one archive of 12.9 GB that contains thousands of inner archives of documents. All
archives are read as streams and never unpacked. --from FOLDER reads this archive, or the inner
archives, from FOLDER instead of downloading. The download is verified with the SHA-256 that Hugging
Face's datasets library lists for it.
"""

from __future__ import annotations

import lzma
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from steps.command import main_of
from steps.documents import Document, parse_document
from steps.errors import PrepError
from steps.fetch import Remote, fetch
from steps.lines import Report, convert_read_errors
from steps.pretraining_command import Corpus, parser_for, prepare_documents

REMOTE = Remote(
    "https://zenodo.org/record/3834942/files/openwebtext.tar.xz",
    "9fe39d154c5bc67da8c359415372b79510eb1e2edb0d035fe4f7fc3a732b9336",
)
INNER_SUFFIX = "_data.xz"


def find_archives(folder: Path) -> list[Path]:
    """Return the path of the whole archive, or the paths of the inner archives."""
    archive = folder / REMOTE.name
    archives = [archive] if archive.is_file() else sorted(folder.rglob(f"*{INNER_SUFFIX}"))
    if not archives:
        raise PrepError(f"{folder} has neither {REMOTE.name} nor files urlsf_subset*{INNER_SUFFIX}")
    return archives


def members(stream: IO[bytes] | Path, name: object) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield name and content of every file in an xz-compressed tar archive, in one pass.

    The archive is decompressed by lzma, because tarfile does not notice a truncated file.
    """
    with (
        convert_read_errors(name),
        lzma.open(stream) as plain,
        tarfile.open(fileobj=plain, mode="r|") as archive,
    ):
        for member in archive:
            if member.isfile():
                yield member.name, archive.extractfile(member)


def read_pages(files: Sequence[Path], report: Report) -> Iterator[Document]:
    """Yield the documents of the whole archive or of the inner archives."""
    for file in files:
        if file.name != REMOTE.name:
            yield from _pages(file, file, report)
            continue
        inner_archives = 0
        for name, stream in members(file, file):
            if name.endswith(INNER_SUFFIX):
                inner_archives += 1
                yield from _pages(stream, f"{file}:{name}", report)
        if not inner_archives:
            raise PrepError(f"{file} contains no archives *{INNER_SUFFIX}")


def _pages(stream: IO[bytes] | Path, name: object, report: Report) -> Iterator[Document]:
    for page, content in members(stream, name):
        if page.endswith(".txt"):
            yield parse_document(content.read(), report)


def run(argv: Sequence[str] | None) -> None:
    parser = parser_for(__doc__, downloads=True)
    args = parser.parse_args(argv)
    files = [fetch(REMOTE, args.downloads)] if args.origin is None else find_archives(args.origin)

    def read() -> Corpus:
        report = Report()
        return {"train": (read_pages(files, report), report)}

    prepare_documents(args, {"train": files}, read)


main = main_of(run)

if __name__ == "__main__":
    sys.exit(main())
