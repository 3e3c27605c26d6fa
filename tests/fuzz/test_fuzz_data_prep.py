"""Every corpus reader of data-prep returns or raises one line, whatever the files contain."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import prepare_age
import prepare_anli
import prepare_clinc150
import prepare_conll2003
import prepare_dream
import prepare_glue
import prepare_hellaswag
import prepare_imdb
import prepare_iwslt14
import prepare_openwebtext
import prepare_paws
import prepare_snli
import prepare_swag
import prepare_tatoeba
import prepare_wikipedia
import prepare_wnut17
import prepare_yelp
from mutations import cases, damaged, edited, json_files, json_text, one_line_or_success
from steps.documents import read_documents
from steps.examples import TaskSpec, check_examples
from steps.lines import Report, TextFile, pair_up, read_pairs, read_segments
from steps.tables import read_conll, read_csv, read_json_lines, read_members, read_tsv

MEMBER = "folder/train.txt"
Read = Callable[[Path], object]


def zipped(content: bytes, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        archive.writestr(zipfile.ZipInfo(MEMBER), content, method)
    return buffer.getvalue()


def tarred(content: bytes, mode: str = "w:gz", name: str = MEMBER) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        entry = tarfile.TarInfo(name)
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def consumed(rows: Iterable[Any]) -> None:
    deque(rows, maxlen=0)


def examples(spec: TaskSpec, convert: Callable, read: Callable) -> Read:
    """A reader of a labelled corpus, with the conversion and the check of every row."""

    def run(path: Path) -> None:
        for example in check_examples(read(TextFile(path), Report()), convert, spec, True):
            # What is neither dropped nor refused can be written as text.
            lines = [example] if isinstance(example, str) else [*example[0], example[1] or ""]
            assert not any(set("\n\0") & set(line) for line in lines)
            "".join(lines).encode()

    return run


RTE, STSB = prepare_glue.TASKS["RTE"], prepare_glue.TASKS["STS-B"]
SNLI_ROW = {"gold_label": "neutral", "sentence1": "A dog.", "sentence2": "An animal."}
ANLI_ROW = {"context": "A dog.", "hypothesis": "An animal.", "label": "n"}
SWAG = b"startphrase,ending0,ending1,ending2,ending3,label\n" + b'a,"b ""q""\nc",d,e,f,2\n' * 2
YELP = b'"5","dr. goldberg ""offers""\\n all"\n"1","bad"\n'
CONLL = b"-DOCSTART- -X- O O\n\nEU NNP I-NP I-ORG\nrejects VBZ I-VP O\n\nPeter\tB-PER\n"
DREAM = [[["M: hi", "W: hello"], [{"question": "q?", "choice": ["a", "b"], "answer": "a"}], "1"]]
CLINC = {
    name: [["what time is it", "time"], ["bye", "goodbye"]]
    for split in ("train", "val", "test")
    for name in (split, f"oos_{split}")
}
HELLASWAG = {"ctx": "A man", "endings": ["sits", "runs", "eats", "is"], "label": 1}
WIKI = b'<doc id="1" url="x" title="A">\nA\n\ntext &lt;b&gt;\n</doc>\n{"text": "B\\n\\ntext"}\n'
SEGMENTS = b'<refset>\n<seg id="1"> Hello. </seg>\n<seg id="2">Bye</seg>\n</refset>\n'
TALK = b"<url>x</url>\n<title>A</title>\nHello there.\n"
PAGE = tarred(b"A page.\n\nMore.\n", "w:xz", "page.txt")
TWEETS = b'<author lang="en"><documents><document><![CDATA[hi <a>x</a>]]></document>'
TWEETS += b"<document>a &amp; b</document></documents></author>"


def in_archive(read: Callable) -> Read:
    return lambda path: consumed(read(TextFile(path, MEMBER), Report()))


def both_sides(read: Callable) -> Read:
    """A reader of parallel text: the damaged file is compared with itself."""
    return lambda path: consumed(read(TextFile(path), TextFile(path), Report()))


def read_talks(source: TextFile, target: TextFile, report: Report) -> Iterable[tuple[str, str]]:
    return pair_up(source, target, prepare_iwslt14.read_speech, report)


def jsonl(row: dict[str, Any]) -> st.SearchStrategy[bytes]:
    """Files of JSON lines: one edited row between two valid ones, or damaged bytes."""
    valid = json_text(row) + b"\n"
    lines = edited(row).map(lambda changed: valid + json_text(changed) + b"\n" + valid)
    return st.one_of(lines, lines, damaged(valid * 2))


def tsv(task: prepare_glue.Task) -> Callable:
    names, extra = task.names, task.extra_columns
    return partial(read_tsv, key=task.texts[0], names=names, extra_columns=extra)


def read_age(path: Path) -> None:
    """Read the tweets of an author from the damaged file ``path``."""
    truth = path.with_name("truth.txt")
    truth.write_text(f"{path.stem}:::MALE:::25-34\nnobody:::MALE:::65-xx\n")
    consumed(prepare_age.convert(row) for row in prepare_age.read_tweets(truth, Report()))


def read_truth(path: Path) -> None:
    consumed(prepare_age.read_tweets(path, Report()))


def read_msr(path: Path) -> None:
    files = {remote.name: path for remote in prepare_glue.MSR}
    for split in prepare_glue.SPLITS:
        consumed(prepare_glue.read_msr(split, files, Report()))


GLUE_TSV = b'index\tsentence1\tsentence2\tlabel\n0\tNo "x\tYes\tentailment\n1\ta\tb\t0\n'
MSR = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\tA b\tB a\n".encode()
STSB_TSV = b"news\tx\t2012\t0001\t3.5\tA b\tB a\tsource\n" * 2
PAWS = b"id\tsentence1\tsentence2\tlabel\n1\ta b\tb a\t0\n"
swag = examples(prepare_swag.SPEC, prepare_swag.convert, read_csv)
stars = partial(read_csv, names=("stars", "text"))
TATOEBA = b"Go.\tGeh.\tCC-BY\nHi.\tHallo!\tCC-BY\nRun!\tLauf!\n"
tatoeba = in_archive(lambda file, report: prepare_tatoeba.read_split(file, "train", report))
conll2003 = examples(prepare_conll2003.SPEC, prepare_conll2003.convert, read_conll)

# Name of the file → its damaged contents, and the function that reads it.
READERS: dict[str, tuple[st.SearchStrategy[bytes], Read]] = {
    "rte.tsv": (damaged(GLUE_TSV), examples(RTE.spec, RTE.convert, tsv(RTE))),
    "stsb.tsv": (damaged(STSB_TSV), examples(STSB.spec, STSB.convert, tsv(STSB))),
    "msr.txt": (damaged(MSR), read_msr),
    "paws.tar.gz": (
        damaged(tarred(PAWS), tarred(PAWS, "w:xz"), zipped(PAWS)),
        in_archive(partial(read_tsv, key="sentence1")),
    ),
    "paws.tsv": (
        damaged(PAWS),
        examples(prepare_paws.SPEC, prepare_paws.convert, partial(read_tsv, key="sentence1")),
    ),
    "swag.csv": (damaged(SWAG), swag),
    "yelp.csv": (damaged(YELP), examples(prepare_yelp.SPECS["full"], prepare_yelp.convert, stars)),
    "snli.jsonl": (
        jsonl(SNLI_ROW),
        examples(prepare_snli.SPEC, prepare_snli.convert, read_json_lines),
    ),
    "anli.jsonl": (
        jsonl(ANLI_ROW),
        examples(prepare_anli.SPEC, prepare_anli.convert, read_json_lines),
    ),
    "hellaswag.jsonl": (
        jsonl(HELLASWAG),
        examples(prepare_hellaswag.SPEC, prepare_hellaswag.convert, read_json_lines),
    ),
    "dream.json": (
        json_files(DREAM),
        examples(prepare_dream.SPEC, prepare_dream.convert, prepare_dream.read_questions),
    ),
    "data_full.json": (json_files(CLINC), prepare_clinc150.read_corpus),
    "eng.train": (damaged(CONLL), conll2003),
    "wnut.conll": (damaged(CONLL), examples(prepare_wnut17.SPEC, lambda row: row, read_conll)),
    "imdb.tar.gz": (
        damaged(tarred(b"Good.<br />\n"), tarred(b"Good.", "w"), tarred(b"", "w:bz2")),
        lambda path: consumed(
            map(prepare_imdb.convert, read_members(path, Report(), lambda name: "/" in name))
        ),
    ),
    "deu-eng.zip": (
        damaged(zipped(TATOEBA), *(zipped(TATOEBA, x) for x in (0, zipfile.ZIP_LZMA, 12))),
        tatoeba,
    ),
    "text.gz": (damaged(gzip.compress(TALK, mtime=0)), both_sides(read_pairs)),
    "text.bz2": (damaged(bz2.compress(TALK)), both_sides(read_pairs)),
    "text.xz": (damaged(lzma.compress(TALK)), both_sides(read_pairs)),
    "text.de": (
        damaged(TALK),
        both_sides(lambda *x: pair_up(*x[:2], prepare_iwslt14.read_speech, x[2])),
    ),
    "test.xml": (damaged(SEGMENTS), both_sides(read_segments)),
    "author.xml": (damaged(TWEETS), read_age),
    "truth": (damaged(b"author:::MALE:::25-34\n"), read_truth),
    "books.txt": (damaged(TALK * 2), lambda path: consumed(read_documents([path], Report()))),
    "wiki_00": (
        st.one_of(damaged(WIKI), jsonl({"text": "A\n\ntext", "id": "1"})),
        lambda path: consumed(prepare_wikipedia.read_articles([path], Report(), True)),
    ),
    "urlsf_data.xz": (
        damaged(PAGE),
        lambda path: consumed(prepare_openwebtext.read_pages([path], Report())),
    ),
    "openwebtext.tar.xz": (
        damaged(tarred(PAGE, "w:xz", "a_data.xz")),
        lambda path: consumed(prepare_openwebtext.read_pages([path], Report())),
    ),
}


@pytest.mark.parametrize("name", READERS)
def test_corpus_file(name: str, folder: Path) -> None:
    contents, read = READERS[name]

    @cases(1 / len(READERS))
    @given(content=contents)
    def check(content: bytes) -> None:
        (folder / name).write_bytes(content)
        with one_line_or_success():
            read(folder / name)

    check()
