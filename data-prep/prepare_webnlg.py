"""Prepare WebNLG (challenge of 2017): texts about sets of 1 to 7 triples of DBpedia.

Example: stochattn-prepare webnlg --out data-bin/webnlg
In a clone, python data-prep/prepare_webnlg.py takes the same flags.

Tokens are lower-cased Moses tokens. The splits are train (one example per text: 18,102), valid
(872 sets of triples), test (971, the ten categories of the training set) and test_unseen (891, five
other categories); outside of train, a set of triples is one example whose text is its first
reference. Entities are the subjects and objects of triples; mentions of them in texts become
symbols (data-prep/steps/delexicalise.py says how). The type of an entity is <agent>, <patient> or
<bridge>: only subject, only object, or both. No checksum is published.
"""

from __future__ import annotations

import re
import sys
import tarfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from fairseq_stochattn.core.graph_text_file import ENTITY, GraphText
from steps.command import build_output, common_parser, main_of, positive_int, source_files
from steps.delexicalise import Mentions, Tokenise, spoken
from steps.errors import PrepError
from steps.fetch import Remote
from steps.graph_text import summary, write_corpus
from steps.lines import convert_read_errors

REMOTE = Remote(
    "https://gitlab.com/shimorina/webnlg-dataset/-/archive/master/webnlg-dataset-master.tar.gz"
    "?path=webnlg_challenge_2017",
    saved_as="webnlg_challenge_2017.tar.gz",
)
MEMBERS = {
    "train": re.compile(r"(?:.*/)?train/\dtriples/[^/]+\.xml"),
    "valid": re.compile(r"(?:.*/)?dev/\dtriples/[^/]+\.xml"),
    "test": re.compile(r"(?:.*/)?test/testdata_with_lex\.xml"),
}
LARGEST = 64 * 2**20  # bytes of a file in the archive; the largest one has two million
_QUOTED = re.compile(r'"(.*)"(?:@\w+|\^\^.*)?', re.DOTALL)
_WHOLE = re.compile(r"(-?\d+)\.0+")


class Entry(NamedTuple):
    """A set of triples with its texts."""

    category: str
    triples: list[tuple[str, str, str]]
    texts: list[str]


def read_archive(path: Path) -> dict[str, list[Entry]]:
    """Read all entries of the archive by split; nothing is unpacked to disk."""
    found: dict[str, list[Entry]] = {split: [] for split in MEMBERS}
    with convert_read_errors(path), tarfile.open(path) as archive:
        members = sorted(archive, key=lambda member: member.name)
        for member in tqdm(members, path.name, leave=False, disable=None):
            split = next((x for x, name in MEMBERS.items() if name.fullmatch(member.name)), None)
            if split is None or not member.isreg():
                continue
            if member.size > LARGEST:
                raise PrepError(f"{path}:{member.name} has {member.size} bytes: too many")
            content = archive.extractfile(member).read()
            found[split] += read_entries(content, f"{path}:{member.name}")
    for split, entries in found.items():
        if not entries:
            raise PrepError(f"{path} has no XML files of the split {split}")
    return found


def read_entries(content: bytes, name: str) -> Iterator[Entry]:
    """Yield the entries of an XML file. Files that declare entities are refused."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise PrepError(f"{name} is not UTF-8") from None
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise PrepError(f"{name} declares a document type, which is refused")
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise PrepError(f"{name} is not XML: {error}") from None
    for entry in root.iter("entry"):
        triples = []
        for element in entry.iterfind("modifiedtripleset[1]/mtriple"):
            parts = [part.strip() for part in (element.text or "").split(" | ")]
            if len(parts) != 3 or not all(parts):
                raise PrepError(f"{name}: {element.text!r} is not a triple")
            triples.append(tuple(parts))
        texts = [" ".join((lex.text or "").split()) for lex in entry.iterfind("lex")]
        yield Entry(entry.get("category", ""), triples, [text for text in texts if text])


def readable(name: str) -> str:
    """A name of DBpedia as text: "Alan_Bean" → Alan Bean, "1783.0" → 1783."""
    quoted = _QUOTED.fullmatch(name)
    name = " ".join((quoted[1] if quoted else name).replace("_", " ").split())
    whole = _WHOLE.fullmatch(name)
    return whole[1] if whole else name or "unknown"


def relation_words(name: str) -> str:
    """A relation as words: birthPlace → birth place."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", readable(name)).lower()


def tokeniser() -> Tokenise:
    """Return a function that splits text into lower-cased tokens."""
    from sacremoses import MosesTokenizer

    moses = MosesTokenizer(lang="en")

    @lru_cache(maxsize=2**16)  # the same names occur in many sets of triples
    def tokenise(text: str) -> tuple[str, ...]:
        return tuple(moses.tokenize(text, escape=False, return_str=True).lower().split())

    return tokenise


def convert(entry: Entry, every_text: bool, tokenise: Tokenise) -> list[GraphText]:
    """The examples of an entry: one per text, or one for all of them."""
    subjects = [readable(subject) for subject, _, _ in entry.triples]
    objects = [readable(value) for _, _, value in entry.triples]
    pairs = zip(subjects, objects, strict=True)
    names = list(dict.fromkeys(name for pair in pairs for name in pair))
    number = {name: i for i, name in enumerate(names)}
    kinds = {(True, False): "<agent>", (False, True): "<patient>", (True, True): "<bridge>"}
    types = [kinds[name in subjects, name in objects] for name in names]
    triples = [
        (number[subject], relation_words(relation), number[value])
        for subject, (_, relation, _), value in zip(subjects, entry.triples, objects, strict=True)
    ]
    mentions = Mentions(names, tokenise)
    entities = [" ".join(tokenise(spoken(name))) for name in names]
    texts = [tokenise(text) for text in entry.texts]
    marked = [" ".join(mentions.mark(text, ENTITY)) for text in texts]
    plain = [" ".join(text) for text in texts]
    if every_text:
        rows = [(text, [reference]) for text, reference in zip(marked, plain, strict=True)]
    else:
        rows = [(marked[0], plain)] if marked else []
    return [GraphText(entities, types, triples, text, refs) for text, refs in rows]


def examples_of(found: dict[str, list[Entry]]) -> dict[str, list[GraphText]]:
    """The examples of all splits; the test set is divided by its categories."""
    seen = {entry.category for entry in found["train"]}
    entries = {
        "train": found["train"],
        "valid": found["valid"],
        "test": [entry for entry in found["test"] if entry.category in seen],
        "test_unseen": [entry for entry in found["test"] if entry.category not in seen],
    }
    tokenise = tokeniser()
    return {
        split: [
            example
            for entry in tqdm(rows, f"{split}: finding entities", leave=False, disable=None)
            for example in convert(entry, split == "train", tokenise)
        ]
        for split, rows in entries.items()
    }


def run(argv: Sequence[str] | None) -> None:
    parser = common_parser(__doc__, downloads=True)
    parser.add_argument(
        "--min-count",
        type=positive_int,
        default=2,
        help="words and relations that are rarer in train become <unk>, default: %(default)s",
    )
    args = parser.parse_args(argv)
    path = source_files([REMOTE], args)[REMOTE.name]

    def build(folder: Path) -> dict[str, Any]:
        splits = examples_of(read_archive(path))
        return write_corpus(splits, args.min_count, folder, args.keep_text)

    build_output(args, {"min_count": args.min_count}, [path], build, summary)


main = main_of(run)

if __name__ == "__main__":
    sys.exit(main())
