"""PAWS-QQP is made from the numbers of questions and words, and from Quora's questions."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import labelled
import prepare_paws_qqp

QQP = (
    "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    '0\t1\t2\tCan a "bad" man do good?\t"Is ""it"" one\nor two?"\t0\n'
    "1\t7\t8\tWhere do cannot-swim people go?\tother\t1\n"
    "2\t1\t9\tanother text under a known number\tDogs bite men.\t1\n"
)
HEADER = "id\tqid1\tsentence1\tqid2\tsentence2\tlabel\n"
# Question 1: Can a " bad " man do good ? — question 7: Where do cannot - swim people go ?
TRAIN = (
    f"{HEADER}"
    "1\t1\t0/1/3/5/6/7/8\t1\t0/1/7/5/6/3/8\t0\n"
    "2\t9\t0/1/2/3\t7\t0/1/(7,2):(9,2)/6/7\t1\n"
    "3\t2\t0/1/2/3/4/5/6\t9\t2/1/0/3\t0\n"
    "4\t1\t0/99\t9\t0\t1\n"
    "5\t55\t0\t9\t0\t1\n"
    "6\t1\tCan a man\t9\t0\t1\n"
    "7\t1\t0/(9;1)\t9\t0\t1\n"
)
VALID = f"{HEADER}1\t9\t0/1/2/3\t9\t2/1/0/3\t0\n"


@pytest.fixture(autouse=True)
def nltk(monkeypatch: pytest.MonkeyPatch) -> None:
    """NLTK's place is taken by a rule with the same words for these texts."""
    found = SimpleNamespace(word_tokenize=lambda text: re.findall(r"\w+|[^\w\s]", text))
    monkeypatch.setitem(sys.modules, "nltk", found)


@pytest.mark.parametrize("packed", [False, True])
def test_sentences_are_made_from_the_numbers_of_their_words(packed: bool, tmp_path: Path) -> None:
    index = {"train.tsv": TRAIN, "dev_and_test.tsv": VALID}
    if packed:
        index = {"paws_qqp.tar.gz": {f"folder/{name}": text for name, text in index.items()}}
    origin = labelled.write(tmp_path / "from", {"quora_duplicate_questions.tsv": QQP, **index})
    out = tmp_path / "out"
    assert labelled.run(prepare_paws_qqp, origin, out, "--subwords", "none") == 0
    assert labelled.rows(out, "train") == [
        ("Can a bad man do good ?", "Can a good man do bad ?", "0"),
        ("Dogs bite men .", "Where do cannotmen go ?", "1"),
        ('Is " it " one or two', "men bite Dogs .", "0"),
    ]
    assert labelled.rows(out, "valid") == [("Dogs bite men .", "men bite Dogs .", "0")]
    statistics = json.loads((out / "manifest.json").read_text())["splits"]
    assert list(statistics) == ["train", "valid"]
    assert statistics["train"]["dropped"] == {
        "row that is not an index of words": 2,
        "word that its question lacks": 1,
        "question that QQP lacks": 1,
    }


def test_missing_files_and_columns_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def error(files: dict) -> str:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        labelled.write(folder, files)
        assert labelled.run(prepare_paws_qqp, folder, tmp_path / "out") == 1
        (line,) = capsys.readouterr().err.splitlines()
        return line

    questions = {"quora_duplicate_questions.tsv": QQP}
    index = {"train.tsv": TRAIN, "dev_and_test.tsv": VALID}
    assert "has neither train.tsv and dev_and_test.tsv nor paws_qqp.tar.gz" in error(questions)
    assert "quora_duplicate_questions.tsv does not exist" in error(index)
    packed = {"paws_qqp.tar.gz": {"train.tsv": TRAIN}}
    assert "contains no file dev_and_test.tsv" in error({**questions, **packed})
    other = {"quora_duplicate_questions.tsv": QQP.replace("qid1", "first")}
    assert "has no column 'qid1'" in error({**index, **other})
    wrong = {"train.tsv": TRAIN.replace("qid2", "second"), "dev_and_test.tsv": VALID}
    assert "has no column 'qid2'" in error({**questions, **wrong})


def test_nltk_is_named_if_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nltk", None)
    with pytest.raises(Exception, match="pip install nltk"):
        prepare_paws_qqp.tokenizer()

    def fails(text: str) -> list[str]:
        raise LookupError("punkt_tab not found")

    monkeypatch.setitem(sys.modules, "nltk", SimpleNamespace(word_tokenize=fails))
    with pytest.raises(Exception, match="downloader punkt"):
        prepare_paws_qqp.tokenizer()
