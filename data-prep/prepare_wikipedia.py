"""Wikipedia as WikiExtractor writes it: AA/wiki_00, AB/wiki_17.bz2 and so on, text or JSON.

python data-prep/prepare_wikipedia.py --out data-bin/wikipedia --from FOLDER
There is no official download of such extracts, so --from is required: fetch a dump such as
enwiki-latest-pages-articles.xml.bz2 from https://dumps.wikimedia.org and run WikiExtractor on it
(pip install wikiextractor; its --json and --compress are welcome). How much text there is depends
on language and dump: millions of articles in English.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from steps.command import main_of
from steps.documents import Document, document_of
from steps.errors import PrepError
from steps.lines import Report, TextFile, read_lines
from steps.pretraining import Corpus, parser_for, prepare_documents

# WikiExtractor escapes these three unless it is told otherwise; "&" comes last, as it came first.
ENTITIES = (("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&"))


def find(folder: Path) -> list[Path]:
    found = sorted(path for path in folder.rglob("wiki_*") if path.is_file())
    if not found:
        raise PrepError(f"{folder} has no files AA/wiki_00 … as WikiExtractor writes them")
    return found


def read_articles(files: Sequence[Path], report: Report, unescape: bool) -> Iterator[Document]:
    for file in files:
        for article in _articles(file, report):
            if unescape and any("&" in line for line in article):
                article = [_unescape(line) for line in article]
            yield article


def _unescape(line: str) -> str:
    for entity, character in ENTITIES:
        line = line.replace(entity, character)
    return line


def _articles(file: Path, report: Report) -> Iterator[Document]:
    """The articles of one file; its first line tells the format."""
    article: Document | None = None
    for number, line in enumerate(read_lines(TextFile(file), report), 1):
        if line is None:
            continue
        if article is not None:
            if line.strip() == "</doc>":
                yield article
                article = None
            else:
                article.append(line)
        elif line.startswith("<doc "):
            article = []
        elif line.startswith("{"):
            yield from _json_article(line, report)
        elif line.strip():
            raise PrepError(f"{file}: line {number} is neither <doc …> nor JSON")
    if article is not None:
        raise PrepError(f"{file} is cut off: its last <doc> has no end")


def _json_article(line: str, report: Report) -> Iterator[Document]:
    try:
        text = json.loads(line).get("text")
    except ValueError:
        report.dropped["not JSON"] += 1
        return
    if isinstance(text, str):
        # Through bytes: JSON can spell characters that no UTF-8 text holds.
        yield document_of(text.encode("utf-8", "surrogatepass"), report)
    else:
        report.dropped["without text"] += 1


def run(argv: Sequence[str] | None) -> None:
    parser = parser_for(__doc__.splitlines()[0], downloads=False)
    parser.add_argument(
        "--from",
        dest="origin",
        type=Path,
        help="required: folder with WikiExtractor's output; there is no official download of it",
    )
    parser.add_argument(
        "--keep-entities", action="store_true", help="leave &lt; &gt; &amp; as they are"
    )
    args = parser.parse_args(argv)
    if args.origin is None:
        raise PrepError(
            "WikiExtractor's output has no official download: name its folder by --from"
        )
    files = find(args.origin)

    def read() -> Corpus:
        report = Report()
        return {"train": (read_articles(files, report, not args.keep_entities), report)}

    prepare_documents(args, {"train": files}, read, keep_entities=args.keep_entities)


main = main_of(run)

if __name__ == "__main__":
    sys.exit(main())
