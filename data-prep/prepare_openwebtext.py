"""OpenWebText, web pages linked from Reddit: 8,013,769 documents, 40 GB of English text.

python data-prep/prepare_openwebtext.py --out data-bin/openwebtext [--from FOLDER]
The download is one archive of 12.9 GB, which holds thousands of archives of documents. All are
read as streams and never unpacked; a folder with the inner archives does as well. The checksum is
the SHA-256 that Hugging Face's datasets give for this address.
"""

from __future__ import annotations

import lzma
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from steps.command import main_of
from steps.documents import Document, document_of
from steps.errors import PrepError
from steps.fetch import Remote, fetch
from steps.lines import Report, named_damage
from steps.pretraining import Corpus, parser_for, prepare_documents

REMOTE = Remote(
    "https://zenodo.org/record/3834942/files/openwebtext.tar.xz",
    "9fe39d154c5bc67da8c359415372b79510eb1e2edb0d035fe4f7fc3a732b9336",
)
INNER = "_data.xz"


def find(folder: Path) -> list[Path]:
    """The archive, or the inner ones where it was unpacked."""
    archive = folder / REMOTE.name
    found = [archive] if archive.is_file() else sorted(folder.rglob(f"*{INNER}"))
    if not found:
        raise PrepError(f"{folder} has neither {REMOTE.name} nor any urlsf_subset…{INNER}")
    return found


def members(stream: IO[bytes] | Path, name: object) -> Iterator[tuple[str, IO[bytes]]]:
    """Name and content of every file in an xz-compressed tar, in one pass.

    The decompressor is not left to tarfile: that takes the end of a file that was cut off for the
    end of the archive.
    """
    with (
        named_damage(name),
        lzma.open(stream) as plain,
        tarfile.open(fileobj=plain, mode="r|") as archive,
    ):
        for member in archive:
            if member.isfile():
                yield member.name, archive.extractfile(member)


def read_pages(files: Sequence[Path], report: Report) -> Iterator[Document]:
    for file in files:
        if file.name != REMOTE.name:
            yield from _pages(file, file, report)
            continue
        inner = 0
        for name, stream in members(file, file):
            if name.endswith(INNER):
                inner += 1
                yield from _pages(stream, f"{file}:{name}", report)
        if not inner:
            raise PrepError(f"{file} has no archives …{INNER} in it")


def _pages(stream: IO[bytes] | Path, name: object, report: Report) -> Iterator[Document]:
    for page, content in members(stream, name):
        if page.endswith(".txt"):
            yield document_of(content.read(), report)


def run(argv: Sequence[str] | None) -> None:
    parser = parser_for(__doc__.splitlines()[0], downloads=True)
    args = parser.parse_args(argv)
    files = [fetch(REMOTE, args.downloads)] if args.origin is None else find(args.origin)

    def read() -> Corpus:
        report = Report()
        return {"train": (read_pages(files, report), report)}

    prepare_documents(args, {"train": files}, read)


main = main_of(run)

if __name__ == "__main__":
    sys.exit(main())
