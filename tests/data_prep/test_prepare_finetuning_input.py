"""Fine-tuning data: unusable rows, damaged files, one-line errors."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path

import pytest

import labelled
import prepare_anli
import prepare_clinc150
import prepare_glue
import prepare_hellaswag
import prepare_imdb
import prepare_paws
import prepare_snli
import prepare_swag
import prepare_yelp
from steps.lines import Report, TextFile
from steps.tables import read_conll, read_csv, read_json_lines, read_tsv

WORDS = ("--subwords", "none")
RTE = "index\tsentence1\tsentence2\tlabel\n"
SCORES = "index\tsentence1\tsentence2\tscore\n"


def test_long_texts_and_pairs_are_truncated(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    origin = tmp_path / "from"
    for name in ("train", "dev"):
        labelled.write(origin, {f"SST-2/{name}.tsv": "sentence\tlabel\na b c d e\t1\na\t0\n"})
        labelled.write(origin, {f"RTE/{name}.tsv": RTE + "0\ta b\tc d\tentailment\n"})
    more = ("--task", "all", "--max-tokens", 3, *WORDS)
    assert labelled.run(prepare_glue, origin, tmp_path / "out", *more) == 0
    assert labelled.rows(tmp_path / "out" / "SST-2", "train") == [("a b c", "1"), ("a", "0")]
    assert labelled.rows(tmp_path / "out" / "RTE", "train") == [("a", "c", "entailment")]
    printed = capsys.readouterr().out
    assert "1 texts truncated to --max-length" in printed
    assert "1 pairs truncated to --max-length, the longer text first" in printed
    assert "--num-classes 2 --arch roberta_base --init-token 0 --separator-token 2" in printed


def test_unusable_rows_are_counted_with_their_reason(tmp_path: Path) -> None:
    rows = [
        b"0\tgood one\tyes\tentailment",
        b"1\ttoo few\tentailment",
        b"1\ttoo many\tof\tthem\tentailment",
        b"2\tno\tsuch\tlabel",
        b"3\t \tempty\tentailment",
        b"4\t\xff\xfe\tbytes\tentailment",
        b"5\tgo\rod\x00\tyes\tentailment\r",
    ]
    whole = b"\xef\xbb\xbf" + RTE.encode() + b"\n".join(rows)
    origin = labelled.write(tmp_path / "from", {"RTE/train.tsv": whole, "RTE/dev.tsv": whole})
    out = tmp_path / "out"
    assert labelled.run(prepare_glue, origin, out, "--task", "RTE", *WORDS) == 0
    assert labelled.rows(out, "train") == [
        ("good one", "yes", "entailment"),
        ("go od", "yes", "entailment"),
    ]
    stats = json.loads((out / "manifest.json").read_text())["splits"]["valid"]
    reasons = ("wrong number of columns", "unknown label", "empty text", "not UTF-8")
    assert stats["dropped"] == {**dict.fromkeys(reasons, 1), reasons[0]: 2}
    assert stats["mended"] == {
        "byte order mark": 1,
        "NUL": 1,
        "CR at the line end": 1,
        "other line ends inside a line": 1,
    }
    assert stats["read"] + 2 == 6


def test_bad_json_rows_and_bad_scores_are_dropped(tmp_path: Path) -> None:
    good = {"ctx": "A", "endings": list("abcd"), "label": 1}
    bad = [{**good, "endings": list("abc")}, {**good, "ctx": 5}, {"ctx": "A"}, {**good, "label": 4}]
    bad += [{**good, "ctx": "\ud800"}, [1], {**good, "endings": ["a", "b", "c", ""]}]
    text = "".join(json.dumps(row) + "\n" for row in (good, *bad)) + "{broken\n"
    names = [f"hellaswag_{x}.jsonl" for x in ("train", "val", "test")]
    origin = labelled.write(tmp_path / "from", dict.fromkeys(names, text))
    out = tmp_path / "out"
    assert labelled.run(prepare_hellaswag, origin, out, *WORDS) == 0
    assert labelled.rows(out, "train") == [("A", "a", "b", "c", "d", "1")]
    assert json.loads((out / "manifest.json").read_text())["splits"]["train"]["dropped"] == {
        "wrong number of texts": 1,
        "row without the fields of an example": 3,
        "unknown label": 1,
        "half a character": 1,
        "empty text": 1,
        "not JSON": 1,
    }
    table = SCORES + "".join(f"0\tA\tB\t{x}\n" for x in ("1", "5.1", "-1", "nan", "x", "2\t3"))
    origin = labelled.write(tmp_path / "sts", {f"STS-B/{x}.tsv": table for x in ("train", "dev")})
    assert labelled.run(prepare_glue, origin, tmp_path / "out2", "--task", "STS-B", *WORDS) == 0
    assert labelled.rows(tmp_path / "out2", "train") == [("A", "B", "0.2")]


def test_a_sentence_with_a_bad_line_is_dropped(tmp_path: Path) -> None:
    text = b"a\tO\nb\nx\tO\n\nc\tO\n\xff\tO\n\nd\tO\n\ne\tB-group\n"
    report = Report()
    path = labelled.write(tmp_path, {"x.conll": text}) / "x.conll"
    assert list(read_conll(TextFile(path), report)) == [(["d"], ["O"]), (["e"], ["B-group"])]
    assert report.dropped["sentence with a line that is not word and tag"] == 2


FAILURES = {
    "no labels": (
        prepare_glue,
        {"RTE/train.tsv": "index\tsentence1\tsentence2\n0\tA\tB\n", "RTE/dev.tsv": RTE},
        ("--task", "RTE"),
        "1 of the 1 examples of the train set have no label",
    ),
    "no dev": (
        prepare_glue,
        {"RTE/train.tsv": RTE + "0\tA\tB\tentailment\n"},
        ("--task", "RTE"),
        "RTE/dev.tsv does not exist",
    ),
    "other table": (
        prepare_glue,
        {"RTE/train.tsv": "a\tb\n", "RTE/dev.tsv": "a\tb\n"},
        ("--task", "RTE"),
        "RTE/train.tsv has no column 'sentence1' in its first line",
    ),
    "nothing left": (
        prepare_glue,
        {f"RTE/{x}.tsv": RTE + "0\tA\tB\tperhaps\n" for x in ("train", "dev")},
        ("--task", "RTE"),
        "the train set has no usable example: 1 unknown label",
    ),
    "too few pieces": (
        prepare_glue,
        {f"RTE/{x}.tsv": RTE + "0\tA\tB\tentailment\n" for x in ("train", "dev")},
        ("--task", "RTE", "--subwords", "spm-unigram"),
        "sentencepiece cannot learn --size 8000 pieces",
    ),
    "missing": (prepare_swag, {"train.csv": "x\n"}, (), "val.csv does not exist"),
    "open quote": (
        prepare_swag,
        {x: 'startphrase,label\na,"b\nc,d\n' for x in ("train.csv", "val.csv", "test.csv")},
        (),
        "train.csv: the quote opened in line 2 is never closed",
    ),
    "no JSON": (
        prepare_clinc150,
        {"data_full.json": '{"train": ['},
        (),
        "data_full.json is not JSON",
    ),
    "other JSON": (
        prepare_clinc150,
        {"data_full.json": "[]"},
        (),
        "data_full.json has no list 'train'",
    ),
    "no member": (
        prepare_snli,
        {"snli_1.0.zip": {"x": "y"}},
        (),
        "has no file snli_1.0/snli_1.0_train",
    ),
    "no model": (
        prepare_snli,
        {"snli_1.0.zip": {}},
        ("--model-from", "nowhere"),
        "nowhere/dict.txt does not exist",
    ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_failures_are_reported_and_leave_no_output(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    script, files, more, cause = FAILURES[name]
    origin = labelled.write(tmp_path / "from", files)
    assert labelled.run(script, origin, tmp_path / "out", *WORDS, *more) == 1
    message = capsys.readouterr().err.strip().splitlines()[-1]
    assert cause in message
    assert [path.name for path in tmp_path.iterdir()] == ["from"]


@pytest.mark.parametrize(
    ("script", "name"),
    [
        (prepare_imdb, "aclImdb_v1.tar.gz"),
        (prepare_paws, "paws_wiki_labeled_final.tar.gz"),
        (prepare_yelp, "yelp_review_full_csv.tgz"),
        (prepare_anli, "anli_v0.1.zip"),
    ],
)
def test_truncated_archives_give_an_error(
    script, name: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    noise = "".join(f"{hashlib.sha256(str(i).encode()).hexdigest()}\n" for i in range(4000))
    members = {"aclImdb/train/pos/1_1.txt": noise, "final/train.tsv": noise}
    members |= {"yelp_review_full_csv/train.csv": noise, "anli_v0.1/R1/train.jsonl": noise}
    origin = labelled.write(tmp_path / "from", {name: members})
    whole = (origin / name).read_bytes()
    (origin / name).write_bytes(whole[: len(whole) // 3])
    assert labelled.run(script, origin, tmp_path / "out", *WORDS) == 1
    message = capsys.readouterr().err.strip().splitlines()[-1]
    assert name in message
    assert "damaged" in message or "cannot be read" in message
    assert not (tmp_path / "out").exists()


def test_readers_are_streams(tmp_path: Path) -> None:
    """The first row is available although the file is damaged at its end."""
    noise = "".join(f"{hashlib.sha256(str(i).encode()).hexdigest()}\tx\n" for i in range(20_000))
    for read, first in (
        (lambda f, r: read_tsv(f, r, key="a"), "a\tb\n"),
        (lambda f, r: read_csv(f, r, names=("a",)), ""),
        (read_json_lines, "{}\n"),
        (read_conll, "a\tO\n\n"),
    ):
        whole = gzip.compress((first + noise).encode())
        path = labelled.write(tmp_path, {"x.gz": whole[: len(whole) // 2]}) / "x.gz"
        assert next(iter(read(TextFile(path), Report()))) is not None


def test_all_downloads_have_checksums_and_distinct_names() -> None:
    remotes = [r for name in prepare_glue.TASKS for r in prepare_glue.remotes_of(name)]
    remotes += [*prepare_swag.REMOTES.values(), *prepare_hellaswag.REMOTES.values()]
    assert all(len(remote.checksum) == 64 for remote in remotes)
    assert len({remote.name for remote in remotes}) == len(remotes)
