"""prepare_webnlg and prepare_agenda: the official formats in miniature, and the real files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fairseq.data import Dictionary

import labelled
import prepare_agenda
import prepare_webnlg
import runner
from fairseq_stochattn.core.graph_text_file import GraphText, read_graph_texts
from steps.delexicalise import Mentions, forms, ordinal
from steps.errors import PrepError
from steps.lines import Report, TextFile

SHARED = runner.ROOT.parent / "shared" / "data"
LEX = "<lex comment='good' lid='Id{}'>{}</lex>"


def entry(category: str, triples: list[str], *texts: str) -> str:
    rows = "".join(f"<mtriple>{x}</mtriple>" for x in triples)
    lex = "".join(LEX.format(i, text) for i, text in enumerate(texts, start=1))
    first = "<originaltripleset><otriple>x | y | z</otriple></originaltripleset>"
    modified = f"<modifiedtripleset>{rows}</modifiedtripleset>"
    return f"<entry category='{category}' eid='Id1' size='1'>{first}{modified}{lex}</entry>"


def document(*entries: str, head: str = "<?xml version='1.0' encoding='UTF-8'?>") -> str:
    return f"{head}<benchmark><entries>{''.join(entries)}</entries></benchmark>"


ACHARYA = entry(
    "University",
    ["Acharya_Institute | city | Bangalore", "Bangalore | foundingDate | 1537-05-04"],
    "The Acharya Institute is in Bangalore, founded on 4th May 1537.",
    "Bangalore has the Acharya Institute &amp; more.",
)
ARCHIVE = {
    "webnlg/train/2triples/a.xml": document(ACHARYA),
    "webnlg/dev/1triples/b.xml": document(
        entry("University", ["A_(town) | population | 4000.0"], "The town of A has 4,000 people.")
    ),
    "webnlg/test/testdata_with_lex.xml": document(
        entry(
            "University",
            ["A | name | &quot;Bee Cee&quot;@en"],
            "A is called Bee Cee.",
            "A is Bee Cee.",
        ),
        entry("Politician", ["D | name | Eve"], "D is Eve."),
        entry("Politician", ["D | name | F"]),
    ),
    "webnlg/test/testdata_no_lex.xml": document(entry("Politician", ["D | name | E"])),
}
NAME = prepare_webnlg.REMOTE.name


def examples(folder: Path, split: str) -> list[GraphText]:
    return list(read_graph_texts(folder / f"{split}.jsonl"))


def test_webnlg_in_miniature(tmp_path: Path) -> None:
    origin = labelled.write(tmp_path / "from", {NAME: ARCHIVE})
    assert labelled.run(prepare_webnlg, origin, tmp_path / "out", "--min-count", 1) == 0
    first, second = examples(tmp_path / "out", "train")
    assert first.entities == ["acharya institute", "bangalore", "may 4 , 1537"]
    assert first.types == ["<agent>", "<bridge>", "<patient>"]
    assert first.triples == [(0, "city", 1), (1, "founding date", 2)]
    assert first.text == "the <entity_0> is in <entity_1> , founded on <entity_2> ."
    assert second.text == "<entity_1> has the <entity_0> & more ."
    assert second.references == ["bangalore has the acharya institute & more ."]
    (valid,) = examples(tmp_path / "out", "valid")
    assert valid.entities == ["a ( town )", "4000"]
    assert valid.text == "the town of <entity_0> has <entity_1> people ."
    (test,) = examples(tmp_path / "out", "test")
    assert (test.entities, test.text) == (["a", "bee cee"], "<entity_0> is called <entity_1> .")
    assert test.references == ["a is called bee cee .", "a is bee cee ."]
    (unseen,) = examples(tmp_path / "out", "test_unseen")  # the entry without a text is left out
    assert unseen.references == ["d is eve ."]
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["splits"]["train"]["mentioned"] == 5
    symbols = Dictionary.load(str(tmp_path / "out" / "dict.text.txt")).symbols
    assert symbols[-6:-3] == ["<agent>", "<bridge>", "<patient>"]
    assert symbols[-3:] == ["<entity_0>", "<entity_1>", "<entity_2>"]
    again = ["--from", str(origin), "--out", str(tmp_path / "out"), "--min-count", "1"]
    assert prepare_webnlg.main(again) == 0  # nothing to do


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (document(ACHARYA, head="<!DOCTYPE x [<!ENTITY y 'z'>]>"), "declares a document type"),
        (document("<entry>"), "is not XML"),
        (document(entry("A", ["a | b"], "c")), "'a | b' is not a triple"),
        (document(ACHARYA).encode("utf-16"), "is not UTF-8"),
    ],
)
def test_webnlg_refuses_bad_xml(
    tmp_path: Path, content: str, message: str, capsys: pytest.CaptureFixture
) -> None:
    archive = {**ARCHIVE, "webnlg/train/2triples/a.xml": content}
    origin = labelled.write(tmp_path / "from", {NAME: archive})
    assert labelled.run(prepare_webnlg, origin, tmp_path / "out") == 1
    complaint = capsys.readouterr().err.strip().splitlines()[-1]
    assert message in complaint
    assert "a.xml" in complaint
    assert not (tmp_path / "out").exists()


def test_a_damaged_archive_and_a_missing_split_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    origin = labelled.write(tmp_path / "from", {NAME: "no archive"})
    assert labelled.run(prepare_webnlg, origin, tmp_path / "out") == 1
    assert "is truncated or damaged" in capsys.readouterr().err
    labelled.write(origin, {NAME: {"webnlg/train/2triples/a.xml": document(ACHARYA)}})
    assert labelled.run(prepare_webnlg, origin, tmp_path / "out") == 1
    assert "has no XML files of the split valid" in capsys.readouterr().err


def test_mentions_are_the_longest_matches() -> None:
    names = ["new york", "new york city", "José Ñu", "1990-05-01", "x – y"]
    mentions = Mentions(names, lambda text: text.lower().split())
    for text, wanted in (
        ("new york city is in new york", "<1> is in <0>"),
        ("jose nu was born on may 1 , 1990", "<2> was born on <3>"),
        ("the 1st of may 1990 : x - y", "<3> : <4>"),
        ("york", "york"),
        ("", ""),
    ):
        assert " ".join(mentions.mark(text.split(), "<{}>")) == wanted
    assert "4,000,000" in forms("4000000")
    assert [ordinal(n) for n in (1, 2, 3, 4, 11, 12, 13, 21, 22, 23, 30)] == [
        *("1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "22nd", "23rd", "30th")
    ]


PAPER = "\t".join(
    [
        "a title .",
        "deep nets ; images",
        "<method> <material>",
        "0 0 1",
        "we use <method_0> for <material_1> and <method_0> .",
        "0 1 -1",
    ]
)


def test_agenda_in_miniature(tmp_path: Path) -> None:
    other = PAPER.replace("0 0 1", "").replace("a title .", "more")
    files = {"preprocessed.train.tsv": f"{PAPER}\n{other}\n"}
    origin = labelled.write(tmp_path / "from", files)
    for name in ("val", "test"):
        (origin / f"preprocessed.{name}.tsv").write_text(f"{PAPER}\n")
    assert labelled.run(prepare_agenda, origin, tmp_path / "out", "--min-count", 2) == 0
    first, second = examples(tmp_path / "out", "train")
    assert first.title == "a title ."
    assert first.triples == [(0, "used-for", 1)]
    assert first.text == "we use <entity_0> for <entity_1> and <entity_0> ."
    assert first.references == ["we use deep nets for images and deep nets ."]
    assert second.triples == []
    assert second.as_text() == "more <entity_0> deep nets <entity_1> images"
    symbols = Dictionary.load(str(tmp_path / "out" / "dict.graph.txt"))
    assert symbols.index("title") == symbols.unk()  # once in train
    assert symbols.index("deep") != symbols.unk()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("0 0 1", "0 0 7"), "is of an entity that is missing"),
        (("0 0 1", "0 9 1"), "is none of the 7 relations"),
        (("0 0 1", "0 1"), "is not three numbers"),
        (("<material>", ""), "2 entities but 1 types"),
        (("<material_1>", "<material_5>"), "but only 2 entities"),
        (("\t0 0 1\t", "\t"), "not three numbers"),
        (("\t", " "), "1 columns instead of 6"),
    ],
)
def test_agenda_names_the_line_that_is_wrong(
    tmp_path: Path, change: tuple[str, str], message: str
) -> None:
    path = tmp_path / "x.tsv"
    path.write_text(f"{PAPER}\n{PAPER.replace(*change)}\n")
    with pytest.raises(PrepError, match=message) as error:
        list(prepare_agenda.read_examples(TextFile(path), Report()))
    assert "line 2" in str(error.value)


def test_the_whole_of_webnlg(tmp_path: Path) -> None:
    if not (SHARED / "webnlg").is_dir():
        pytest.skip(f"{SHARED / 'webnlg'} does not exist")
    out = tmp_path / "out"
    assert labelled.run(prepare_webnlg, SHARED / "webnlg", out) == 0
    manifest = json.loads((out / "manifest.json").read_text())
    kept = {split: x["kept"] for split, x in manifest["splits"].items()}
    assert kept == {"train": 18_102, "valid": 872, "test": 971, "test_unseen": 891}
    for split in kept:
        stats = manifest["splits"][split]
        assert stats["mentioned"] > 0.79 * stats["entities"]
        assert len(examples(out, split)) == stats["kept"]


@pytest.mark.parametrize("split", ["val", "test"])
def test_the_real_files_of_agenda_parse_whole(split: str) -> None:
    path = SHARED / "agenda" / f"preprocessed.{split}.tsv.gz"
    if not path.is_file():
        pytest.skip(f"{path} does not exist")
    report = Report()
    rows = list(prepare_agenda.read_examples(TextFile(path), report))
    assert len(rows) == report.lines == 1_000
    assert not report.dropped
    assert all("<" not in word or not word.startswith("<method_") for row in rows
               for word in row.references[0].split())  # fmt: skip
    assert max(len(row.entities) for row in rows) <= 31
