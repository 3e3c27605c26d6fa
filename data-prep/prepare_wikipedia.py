"""Prepare Wikipedia articles from WikiExtractor's output: AA/wiki_00, AB/wiki_17.bz2, …

Example: stochattn-prepare wikipedia --out data-bin/wikipedia --from FOLDER
In a clone, python data-prep/prepare_wikipedia.py takes the same flags.

Such extracts have no official download, so --from is required. Download a dump such as
enwiki-latest-pages-articles.xml.bz2 from https://dumps.wikimedia.org and run WikiExtractor on it
(pip install wikiextractor). Its text and --json formats and its --compress flag are supported.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from fairseq_stochattn.core.json_input import parse_json
from steps.command import main_of
from steps.documents import Document, parse_document
from steps.errors import PrepError
from steps.lines import Report, TextFile, read_lines
from steps.pretraining_command import Corpus, parser_for, prepare_documents

# WikiExtractor escapes these characters by default. It escapes "&" first, so "&amp;" is unescaped
# last.
ENTITIES = (("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&"))


def find_files(folder: Path) -> list[Path]:
    """Return all files that WikiExtractor wrote to a folder."""
    files = sorted(path for path in folder.rglob("wiki_*") if path.is_file())
    if not files:
        raise PrepError(f"{folder} has no files of WikiExtractor, such as AA/wiki_00")
    return files


def read_articles(files: Sequence[Path], report: Report, unescape: bool) -> Iterator[Document]:
    """Yield the articles of all files."""
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
    """Yield the articles of one file, each in <doc> … </doc> or as a JSON object in one line."""
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
        raise PrepError(f"{file} is truncated: its last <doc> has no </doc>")


def _json_article(line: str, report: Report) -> Iterator[Document]:
    try:
        text = parse_json(line).get("text")
    except ValueError:
        report.dropped["not JSON"] += 1
        return
    if isinstance(text, str):
        # JSON can contain lone surrogates. As bytes they are invalid UTF-8 and are dropped later.
        yield parse_document(text.encode("utf-8", "surrogatepass"), report)
    else:
        report.dropped["without text"] += 1


def run(argv: Sequence[str] | None) -> None:
    parser = parser_for(__doc__, downloads=False)
    parser.add_argument(
        "--from",
        dest="origin",
        type=Path,
        help="folder with the output of WikiExtractor (required)",
    )
    parser.add_argument(
        "--keep-entities", action="store_true", help="do not unescape &lt; &gt; &amp;"
    )
    args = parser.parse_args(argv)
    if args.origin is None:
        raise PrepError(
            "WikiExtractor's output has no official download: give its folder with --from FOLDER"
        )
    files = find_files(args.origin)

    def read() -> Corpus:
        report = Report()
        return {"train": (read_articles(files, report, not args.keep_entities), report)}

    prepare_documents(args, {"train": files}, read, keep_entities=args.keep_entities)


main = main_of(run)

if __name__ == "__main__":
    sys.exit(main())
