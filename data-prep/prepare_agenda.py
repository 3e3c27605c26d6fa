"""Prepare AGENDA: abstracts of 40,720 papers with titles and knowledge graphs.

Example: stochattn-prepare agenda --out data-bin/agenda
In a clone, python data-prep/prepare_agenda.py takes the same flags.

The corpus (Koncel-Kedziorski et al. 2019) is tokenised, lower-cased and divided into 38,720 / 1,000
/ 1,000 papers. Its abstracts already have symbols such as <method_3> for entities. The relations
are those of relations.vocab. The files may be compressed: preprocessed.val.tsv or .tsv.gz. No
checksums are published.
"""

from __future__ import annotations

import re
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from fairseq_stochattn.core.graph_text_file import ENTITY, GraphText
from steps.command import build_output, common_parser, main_of, positive_int, source_files
from steps.errors import PrepError
from steps.fetch import Remote
from steps.graph_text import summary, write_corpus
from steps.lines import Report, TextFile, read_lines

ADDRESS = "https://github.com/rikdz/GraphWriter/raw/master/data"
SPLITS = {"train": "train", "valid": "val", "test": "test"}
REMOTES = {split: Remote(f"{ADDRESS}/preprocessed.{x}.tsv") for split, x in SPLITS.items()}
RELATIONS = (
    *("used-for", "conjunction", "feature-of", "part-of", "compare", "evaluate-for"),
    "hyponym-of",
)
_SYMBOL = re.compile(r"<([a-z]+)_(\d+)>")


def read_examples(file: TextFile, report: Report) -> Iterator[GraphText]:
    """Yield the papers of a file, one per line."""
    lines = tqdm(read_lines(file, report), file.path.name, leave=False, disable=None)
    for number, line in enumerate(lines, start=1):
        if line is None:
            continue  # not UTF-8, counted in the report
        try:
            yield parse(line)
        except PrepError as error:
            raise PrepError(f"{file}, line {number}: {error}") from None


def parse(line: str) -> GraphText:
    """Read a line: title, entities, types, relations, abstract and the order of sentences."""
    columns = line.split("\t")
    if len(columns) not in (5, 6):
        raise PrepError(f"{len(columns)} columns instead of 6")
    title, names, types, relations, abstract = (column.strip() for column in columns[:5])
    entities = [" ".join(name.split()) for name in names.split(" ; ")] if names else []
    kinds = types.split()
    if len(kinds) != len(entities):
        raise PrepError(f"{len(entities)} entities but {len(kinds)} types")
    triples = [_triple(part, len(entities)) for part in relations.split(" ; ") if part.strip()]
    words = []
    for word in abstract.split():
        symbol = _SYMBOL.fullmatch(word)
        if symbol and int(symbol[2]) >= len(entities):
            raise PrepError(f"{word} in the abstract, but only {len(entities)} entities")
        words.append(ENTITY.format(int(symbol[2])) if symbol else word)
    example = GraphText(entities, kinds, triples, " ".join(words), [], " ".join(title.split()))
    example.references.append(example.fill(example.text))
    return example


def _triple(text: str, entities: int) -> tuple[int, str, int]:
    try:
        head, relation, tail = map(int, text.split())
    except ValueError:
        raise PrepError(f"the relation {text!r} is not three numbers") from None
    if not (0 <= head < entities and 0 <= tail < entities):
        raise PrepError(f"the relation {text!r} is of an entity that is missing")
    if not 0 <= relation < len(RELATIONS):
        raise PrepError(f"the relation {text!r} is none of the {len(RELATIONS)} relations")
    return head, RELATIONS[relation], tail


def find_files(args: Namespace) -> dict[str, Path]:
    """The file of every split, which may be compressed if it is in --from."""
    if args.origin is None:
        paths = source_files(list(REMOTES.values()), args)
        return {split: paths[remote.name] for split, remote in REMOTES.items()}
    found = {}
    for split, remote in REMOTES.items():
        choices = [args.origin / f"{remote.name}{ending}" for ending in ("", ".gz")]
        path = next((path for path in choices if path.is_file()), None)
        if path is None:
            raise PrepError(f"{choices[0]} does not exist, nor does {choices[1].name}")
        found[split] = path
    return found


def run(argv: Sequence[str] | None) -> None:
    parser = common_parser(__doc__, downloads=True)
    parser.add_argument(
        "--min-count",
        type=positive_int,
        default=5,
        help="words and relations that are rarer in train become <unk>, default: %(default)s",
    )
    args = parser.parse_args(argv)
    files = find_files(args)

    def build(folder: Path) -> dict[str, Any]:
        reports = {split: Report() for split in files}
        splits = {
            split: list(read_examples(TextFile(path), reports[split]))
            for split, path in files.items()
        }
        counts = write_corpus(splits, args.min_count, folder, args.keep_text)
        for split, report in reports.items():
            counts["splits"][split]["dropped"] = dict(report.dropped)
            counts["splits"][split]["repaired"] = dict(report.repaired)
        return counts

    build_output(args, {"min_count": args.min_count}, list(files.values()), build, summary)


main = main_of(run)

if __name__ == "__main__":
    sys.exit(main())
