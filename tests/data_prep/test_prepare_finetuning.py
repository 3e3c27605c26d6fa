"""Fine-tuning data: a tiny version of every corpus in its own format, compared row by row."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import labelled
import prepare_age
import prepare_anli
import prepare_clinc150
import prepare_conll2003
import prepare_dream
import prepare_hellaswag
import prepare_imdb
import prepare_paws
import prepare_snli
import prepare_swag
import prepare_wnut17
import prepare_yelp

WORDS = ("--subwords", "none")


def jsonl(*rows: dict) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def snli(*rows: tuple[str, str, str]) -> str:
    keys = ("sentence1", "sentence2", "gold_label")
    return jsonl(*({**dict(zip(keys, row, strict=True)), "pairID": "1"} for row in rows))


def anli(*rows: tuple[str, str, str]) -> str:
    return jsonl(*(dict(zip(("context", "hypothesis", "label"), row, strict=True)) for row in rows))


def clinc(**rows: list[list[str]]) -> str:
    names = [f"{x}{split}" for split in ("train", "val", "test") for x in ("", "oos_")]
    return json.dumps({name: rows.get(name, [["what now", "oos"]]) for name in names}, indent=4)


def dream(answer: str) -> str:
    question = {"question": "Who ?", "choice": ["Ann", "Bob", "Eve"], "answer": answer}
    return json.dumps([[["M: Hi .", "W: Hello ."], [question], "1-1"]])


SWAG = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3"
HELLA = {"ind": 4, "ctx_a": "A cat", "ctx_b": "it", "ctx": "A cat . it", "endings": list("abcd")}
CONLL = "-DOCSTART- -X- -X- O\n\nEU NNP I-NP I-ORG\nUN NNP I-NP I-ORG\nEU NNP I-NP B-ORG\n"
PAWS = "id\tsentence1\tsentence2\tlabel\n"

# By corpus: script, extra arguments, files, and expected rows by split.
CORPORA = {
    "snli": (
        prepare_snli,
        (),
        {
            "snli_1.0.zip": {
                "snli_1.0/snli_1.0_train.jsonl": snli(
                    ("A man .", "He  sits .", "entailment"),
                    ("A man .", "A dog .", "-"),
                    ("A\u2028man .", "No man .", "contradiction"),
                ),
                "snli_1.0/snli_1.0_dev.jsonl": snli(("A man .", "Tall .", "neutral")),
                "snli_1.0/snli_1.0_test.jsonl": snli(("A man .", "He  sits .", "neutral")),
            }
        },
        {
            "train": [
                ("A man .", "He sits .", "entailment"),
                ("A man .", "No man .", "contradiction"),
            ],
            "valid": [("A man .", "<unk> .", "neutral")],
            "test": [("A man .", "He sits .", "neutral")],
        },
    ),
    "anli": (
        prepare_anli,
        ("--round", "2"),
        {
            "anli_v0.1.zip": {
                f"anli_v0.1/R{number}/{name}.jsonl": anli((f"round {number}", "goes on", label))
                for number in (1, 2, 3)
                for name, label in (("train", "e"), ("dev", "n"), ("test", "c"))
            }
        },
        {
            "train": [("round 2", "goes on", "entailment")],
            "valid": [("round 2", "goes on", "neutral")],
            "test": [("round 2", "goes on", "contradiction")],
        },
    ),
    "paws": (
        prepare_paws,
        (),
        {
            "paws_wiki_labeled_final.tar.gz": {
                "final/train.tsv": f'{PAWS}1\tHe said " yes\tYes\t1\n2\tno quote\tYes "\t0\n',
                "final/dev.tsv": f"{PAWS}1\tYes\tHe said\t0\n",
                "final/test.tsv": f"{PAWS}1\tYes\tHe said\t1\n",
            }
        },
        {
            "train": [('He said " yes', "Yes", "1"), ("no quote", 'Yes "', "0")],
            "valid": [("Yes", "He said", "0")],
            "test": [("Yes", "He said", "1")],
        },
    ),
    "hellaswag": (
        prepare_hellaswag,
        (),
        {
            "hellaswag_train.jsonl": jsonl({**HELLA, "label": 2}),
            "hellaswag_val.jsonl": jsonl({**HELLA, "label": 0}),
            "hellaswag_test.jsonl": jsonl(HELLA),
        },
        {
            "train": [("A cat . it", "a", "b", "c", "d", "2")],
            "valid": [("A cat . it", "a", "b", "c", "d", "0")],
            "test": [("A cat . it", "a", "b", "c", "d", None)],
        },
    ),
    "swag": (
        prepare_swag,
        (),
        {
            "train.csv": f'{SWAG},label\n0,v,1,She is,She,is,gold,"a, b","say ""c""\nd",e,f,1\n',
            "val.csv": f"{SWAG},label\n0,v,1,She is,She,is,gen,e,f,e,f,3\n",
            "test.csv": f"{SWAG}\n0,v,1,She is,She,is,gen,e,f,e,f\n",
        },
        {
            "train": [("She is", "a, b", 'say "c" d', "e", "f", "1")],
            "valid": [("She is", "e", "f", "e", "f", "3")],
            "test": [("She is", "e", "f", "e", "f", None)],
        },
    ),
    "dream": (
        prepare_dream,
        (),
        {"train.json": dream("Eve"), "dev.json": dream("Ann"), "test.json": dream("Bob")},
        {
            split: [("M: Hi . W: Hello . Who ?", "Ann", "Bob", "Eve", number)]
            for split, number in (("train", "2"), ("valid", "0"), ("test", "1"))
        },
    ),
    "clinc150": (
        prepare_clinc150,
        (),
        {
            "data_full.json": clinc(
                train=[["go on", "next"], ["now", "alarm"]],
                val=[["go", "alarm"]],
                test=[["now go", "next"]],
                oos_test=[["on on", "oos"], ["now", "oos"]],
            )
        },
        {
            "train": [("go on", "next"), ("now", "alarm")],
            "valid": [("go", "alarm")],
            "valid_oos": [("<unk> now", None)],
            "test": [("now go", "next")],
            "test_oos": [("on on", None), ("now", None)],
        },
    ),
    "wnut17": (
        prepare_wnut17,
        (),
        {
            "wnut17train.conll": "In\tO\nNew\tB-location\nYork\tI-location\n\t\n@a\tB-person\n",
            "emerging.dev.conll": "In\tO\n\nNew\tB-group\n\n",
            "emerging.test.annotated": "York\tB-product\n",
        },
        {
            "train": [("In New York", "O B-location I-location"), ("@a", "B-person")],
            "valid": [("In", "O"), ("New", "B-group")],
            "test": [("York", "B-product")],
        },
    ),
    "conll2003": (
        prepare_conll2003,
        (),
        {"eng.train": CONLL, "eng.testa": "EU X X B-ORG\nUN X X I-ORG\n", "test.txt": "UN X X O\n"},
        {
            "train": [("EU UN EU", "B-ORG I-ORG B-ORG")],
            "valid": [("EU UN", "B-ORG I-ORG")],
            "test": [("UN", "O")],
        },
    ),
}
CLASS_ORDER = {
    "snli": ["contradiction", "neutral", "entailment"],
    "anli": ["contradiction", "neutral", "entailment"],
    "paws": ["0", "1"],
    "clinc150": ["alarm", "next"],
    "conll2003": [
        *("O", "B-LOC", "B-MISC", "B-ORG", "B-PER", "I-LOC", "I-MISC", "I-ORG", "I-PER"),
        "<ignore>",
    ],
}


@pytest.mark.parametrize("name", CORPORA)
def test_tiny_corpus(name: str, tmp_path: Path) -> None:
    script, more, files, expected = CORPORA[name]
    origin, out = labelled.write(tmp_path / "from", files), tmp_path / "out"
    assert labelled.run(script, origin, out, *WORDS, *more) == 0
    for split, wanted in expected.items():
        assert labelled.rows(out, split) == wanted
    if name in CLASS_ORDER:
        assert labelled.classes_of(out) == CLASS_ORDER[name]
    manifest = json.loads((out / "manifest.json").read_text())
    assert list(manifest["splits"]) == list(expected)
    dropped = {split: stats["dropped"] for split, stats in manifest["splits"].items()}
    assert dropped.pop("train") == ({"without an agreed label": 1} if name == "snli" else {})
    assert not any(dropped.values())
    if name == "snli":
        assert manifest["splits"]["test"]["seen_in_train"] == 1
        assert manifest["splits"]["valid"]["seen_in_train"] == 0


def test_anli_with_all_rounds_and_clinc150_with_the_oos_class(tmp_path: Path) -> None:
    for name, more in (("anli", ()), ("clinc150", ("--oos-class",))):
        script, _, files, _ = CORPORA[name]
        origin = labelled.write(tmp_path / name, files)
        assert labelled.run(script, origin, tmp_path / f"{name}-out", *WORDS, *more) == 0
    found = labelled.rows(tmp_path / "anli-out", "train")
    assert found == [(f"round {number}", "goes on", "entailment") for number in (1, 2, 3)]
    out = tmp_path / "clinc150-out"
    assert labelled.classes_of(out) == ["alarm", "next", "oos"]
    assert labelled.rows(out, "test")[1:] == [("on on", "oos"), ("now", "oos")]
    assert labelled.rows(out, "train")[2:] == [("what now", "oos")]
    assert not (out / "input0" / "test_oos.bin").exists()


def imdb(count: int) -> dict[str, str]:
    members = {"aclImdb/README": "not a review", "aclImdb/train/unsup/0_0.txt": "no label"}
    for split in ("train", "test"):
        for i in range(count):
            kind = ("neg", "pos")[i % 2]
            members[f"aclImdb/{split}/{kind}/{i}_7.txt"] = f"A film<br /><br />number {split}{i}\n"
    return {"aclImdb_v1.tar.gz": members}


def yelp(count: int) -> dict[str, dict[str, str]]:
    members = {
        f"yelp_review_polarity_csv/{split}.csv": "".join(
            f'"{1 + i % 2}","So ""good\\""\\n{split}{i}"\n' for i in range(count)
        )
        for split in ("train", "test")
    }
    return {"yelp_review_polarity_csv.tgz": members}


def age(count: int) -> dict[str, str]:
    tweet = "<document id='1'><![CDATA[I &lt;3 <a href='x'>it</a> {}]]></document>"
    files = {"truth.txt": "a1:::MALE:::25-34\na2:::FEMALE:::65-XX\na3:::MALE:::18-24\n"}
    for author in ("a1", "a2"):
        tweets = "".join(tweet.format(f"{author}{i}") for i in range(count))
        files[f"{author}.xml"] = f"<author><documents>{tweets}</documents></author>"
    return files


SPLIT_BY_HASH = {
    "imdb": (prepare_imdb, imdb, ("--valid-share", 200), r"A film number (train|test)\d+", 400),
    "yelp": (
        prepare_yelp,
        yelp,
        ("--task", "polarity", "--valid-share", 200),
        r'So "good" (train|test)\d+',
        400,
    ),
    "age": (prepare_age, age, (), r"I <3 it a[12]\d+", 800),
}


@pytest.mark.parametrize("name", SPLIT_BY_HASH)
def test_splits_by_hash_are_disjoint_and_complete(name: str, tmp_path: Path) -> None:
    script, files, more, pattern, total = SPLIT_BY_HASH[name]
    origin, out = labelled.write(tmp_path / "from", files(total // 2)), tmp_path / "out"
    keep = (*more, "--subwords", "none", "--keep-text")
    assert labelled.run(script, origin, out, *keep) == 0
    texts = {s: (out / "text" / f"{s}.input0").read_text().splitlines() for s in ("train", "valid")}
    texts["test"] = (out / "text" / "test.input0").read_text().splitlines()
    together = [text for split in texts.values() for text in split]
    assert len(together) == len(set(together)) == total
    assert all(re.fullmatch(pattern, text) for text in together)
    assert 0 < len(texts["valid"]) < 0.5 * len(texts["train"])
    for split, found in texts.items():
        assert len(labelled.labels(out, split)) == len(found)
    manifest = json.loads((out / "manifest.json").read_text())
    if name == "age":
        assert manifest["splits"]["train"]["dropped"] == {"author without a file": 1}
        assert manifest["splits"]["test"]["dropped"] == {}
        by_text = dict(zip(texts["train"], labelled.labels(out, "train"), strict=True))
        for text, label in by_text.items():
            assert label == ("25-34" if " a1" in text else "65-xx")
    else:
        assert all(text.split()[-1].startswith("test") for text in texts["test"])


def test_age_split_by_author(tmp_path: Path) -> None:
    """No author has tweets in two splits."""
    files = age(4)
    files["truth.txt"] = "".join(f"b{i}:::MALE:::25-34\n" for i in range(60))
    for i in range(60):
        files[f"b{i}.xml"] = files["a1.xml"].replace("a1", f"b{i}x")
    origin, out = labelled.write(tmp_path / "from", files), tmp_path / "out"
    more = ("--split-by", "author", "--subwords", "none", "--keep-text")
    assert labelled.run(prepare_age, origin, out, *more) == 0
    authors = []
    for split in ("train", "valid", "test"):
        lines = (out / "text" / f"{split}.input0").read_text().splitlines()
        authors.append({re.search(r"(b\d+)x", line)[1] for line in lines})
    assert all(authors)
    assert sum(map(len, authors)) == len(set.union(*authors)) == 60
