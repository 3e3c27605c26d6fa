"""Fine-tuning data: subwords of a given model, rows that cannot be used, damaged files."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
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
import prepare_wnut17
import prepare_yelp
from steps import finetuning
from steps.lines import Report, TextFile
from steps.tables import read_conll, read_csv, read_json_lines, read_tsv

WORDS = ("--subwords", "none")
RTE = "index\tsentence1\tsentence2\tlabel\n"
SCORES = "index\tsentence1\tsentence2\tscore\n"


def rte(folder: Path) -> Path:
    row = "0\tA man\tNo man\tnot_entailment\n"
    return labelled.write(folder, {f"RTE/{name}.tsv": RTE + row for name in ("train", "dev")})


def learnt(tmp_path: Path, kind: str) -> Path:
    """Data with its own subwords, as --model-from finds them: the model and dict.txt."""
    origin = rte(tmp_path / "first")
    lines = "".join(f"{i}\tA man and a woman {i}\tThey go home\tentailment\n" for i in range(40))
    (origin / "RTE" / "train.tsv").write_text(RTE + lines)
    out = tmp_path / "model"
    more = ("--task", "RTE", "--subwords", kind, "--size", 300 if kind == "gpt2" else 30)
    assert labelled.run(prepare_glue, origin, out, *more) == 0
    shutil.copyfile(out / "input0" / "dict.txt", out / "dict.txt")
    return out


@pytest.mark.parametrize("kind", ["spm-unigram", "gpt2", "gpt2 beside"])
def test_model_from_uses_exactly_that_model(kind: str, tmp_path: Path) -> None:
    model = learnt(tmp_path, kind.split()[0])
    if kind == "gpt2 beside":
        for file in (model / "gpt2").iterdir():
            file.rename(model / file.name)
    files = {
        "wnut17train.conll": "A\tO\nwoman\tB-person\nzzz\tI-person\n",
        "emerging.dev.conll": "home\tO\n",
        "emerging.test.annotated": "home\tO\n",
    }
    origin, out = labelled.write(tmp_path / "from", files), tmp_path / "out"
    assert labelled.run(prepare_wnut17, origin, out, "--model-from", model) == 0
    assert (out / "input0" / "dict.txt").read_bytes() == (model / "dict.txt").read_bytes()
    manifest = json.loads((out / "manifest.json").read_text())
    assert (
        manifest["sources"]["dict.txt"]
        == hashlib.sha256((model / "dict.txt").read_bytes()).hexdigest()
    )
    assert ("encoder.json" if "gpt2" in kind else "spm.model") in manifest["sources"]
    pieces, tags = labelled.rows(out, "train")[0]
    assert len(pieces.split()) == len(tags.split()) > 3
    assert [tag for tag in tags.split() if tag != "<ignore>"] == ["O", "B-person", "I-person"]
    if "gpt2" in kind:
        # The same numbers as for the whole sentence: words after the first begin with a space.
        from steps.subwords import applier

        assert applier("gpt2", out / "gpt2")(["A woman zzz"]) == [pieces]


def test_a_word_that_cannot_be_written_keeps_its_tag(tmp_path: Path) -> None:
    vocabulary = "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##b", "c"])
    words = "ab\tB-group\n\u200b\tI-group\nC\tO\n"
    names = ("wnut17train.conll", "emerging.dev.conll", "emerging.test.annotated")
    model = labelled.write(
        tmp_path / "model", {"tokenizer/vocab.txt": vocabulary, "dict.txt": "a 3\n##b 2\nc 1\n"}
    )
    origin = labelled.write(tmp_path / "from", dict.fromkeys(names, words))
    out = tmp_path / "out"
    assert labelled.run(prepare_wnut17, origin, out, "--model-from", model) == 0
    assert labelled.rows(out, "train") == [("a ##b <unk> c", "B-group <ignore> I-group O")]
    assert json.loads((out / "manifest.json").read_text())["splits"]["train"]["unwritable"] == 1


def test_long_texts_are_cut_and_long_pairs_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    origin = tmp_path / "from"
    for name in ("train", "dev"):
        labelled.write(origin, {f"SST-2/{name}.tsv": "sentence\tlabel\na b c d e\t1\na\t0\n"})
        labelled.write(origin, {f"RTE/{name}.tsv": RTE + "0\ta b\tc d\tentailment\n"})
    more = ("--task", "all", "--max-tokens", 3, *WORDS)
    assert labelled.run(prepare_glue, origin, tmp_path / "out", *more) == 0
    assert labelled.rows(tmp_path / "out" / "SST-2", "train") == [("a b c", "1"), ("a", "0")]
    assert labelled.rows(tmp_path / "out" / "RTE", "train") == [("a b", "c d", "entailment")]
    printed = capsys.readouterr().out
    assert "1 texts cut at --max-tokens" in printed
    assert "1 pairs longer than --max-tokens (kept whole)" in printed
    assert "--num-classes 2 --arch roberta_base --init-token 0 --separator-token 2" in printed


def test_unusable_rows_are_counted_with_their_reason(tmp_path: Path) -> None:
    rows = [
        b"0\tgood one\tyes\tentailment",
        b"1\ttoo few\tentailment",
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
    figures = json.loads((out / "manifest.json").read_text())["splits"]["valid"]
    reasons = ("wrong number of columns", "unknown label", "empty text", "not UTF-8")
    assert figures["dropped"] == dict.fromkeys(reasons, 1)
    assert figures["mended"] == {
        "byte order mark": 1,
        "NUL": 1,
        "CR at the line end": 1,
        "other line ends inside a line": 1,
    }
    assert figures["read"] + 2 == 6


def test_rows_of_json_and_scores_that_are_wrong(tmp_path: Path) -> None:
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
    table = SCORES + "".join(f"0\tA\tB\t{x}\n" for x in ("1", "5.1", "nan", "x"))
    origin = labelled.write(tmp_path / "sts", {f"STS-B/{x}.tsv": table for x in ("train", "dev")})
    assert labelled.run(prepare_glue, origin, tmp_path / "out2", "--task", "STS-B", *WORDS) == 0
    assert labelled.rows(tmp_path / "out2", "train") == [("A", "B", "0.2")]


def test_a_sentence_with_a_bad_line_goes_as_a_whole(tmp_path: Path) -> None:
    text = b"a\tO\nb\n\nc\tO\n\xff\tO\n\nd\tO\n\ne\tB-group\n"
    report = Report()
    path = labelled.write(tmp_path, {"x.conll": text}) / "x.conll"
    assert list(read_conll(TextFile(path), report)) == [(["d"], ["O"]), (["e"], ["B-group"])]
    assert report.dropped["sentence with a line that is not word and tag"] == 2


FAILURES = {
    "no labels": (
        prepare_glue,
        {"RTE/train.tsv": "index\tsentence1\tsentence2\n0\tA\tB\n", "RTE/dev.tsv": RTE},
        ("--task", "RTE"),
        "the train set has 1 examples without label among 1",
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
        "the train set has no example left: 1 unknown label",
    ),
    "too few pieces": (
        prepare_glue,
        {f"RTE/{x}.tsv": RTE + "0\tA\tB\tentailment\n" for x in ("train", "dev")},
        ("--task", "RTE", "--subwords", "spm-unigram"),
        "sentencepiece cannot learn 8000 pieces",
    ),
    "missing": (prepare_swag, {"train.csv": "x\n"}, (), "val.csv does not exist"),
    "open quote": (
        prepare_swag,
        {x: 'startphrase,label\na,"b\nc,d\n' for x in ("train.csv", "val.csv", "test.csv")},
        (),
        "train.csv: line 2 opens a quote that is never closed",
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
        "data_full.json has no list train",
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
        "nowhere/dict.txt does",
    ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_failures_are_one_line_and_leave_no_output(
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
def test_archives_that_are_cut_off(
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


def test_a_dictionary_of_another_model_is_noticed(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    model = learnt(tmp_path, "spm-unigram")
    (model / "dict.txt").write_text("104 1\n108 1\n115 1\n")
    more = ("--task", "RTE", "--model-from", model)
    assert labelled.run(prepare_glue, tmp_path / "first", tmp_path / "out", *more) == 1
    assert "dict.txt does not fit the subwords: it lacks 100% of them" in capsys.readouterr().err


def test_a_second_call_does_nothing_and_another_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    origin, out = rte(tmp_path / "from"), tmp_path / "out"
    call = ("--task", "RTE", *WORDS)
    assert labelled.run(prepare_glue, origin, out, *call) == 0
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    assert labelled.run(prepare_glue, origin, out, *call) == 0
    assert "complete already, nothing to do" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before
    assert labelled.run(prepare_glue, origin, out, *call, "--max-tokens", 9) == 1
    assert "made with other arguments" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["spm-unigram", "gpt2"])
def test_more_processes_give_the_same_bytes(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = learnt(tmp_path, kind)
    monkeypatch.setattr(finetuning, "LARGE", 0)
    more = ("--task", "RTE", "--model-from", one, "--workers", 2)
    assert labelled.run(prepare_glue, tmp_path / "first", tmp_path / "two", *more) == 0
    binary = sorted(path.relative_to(one) for path in one.rglob("*.bin"))
    assert len(binary) == 6
    for name in binary:
        assert (one / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_readers_stream(tmp_path: Path) -> None:
    """The first row comes before the damage at the end of the file is met."""
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


def test_addresses_have_checksums() -> None:
    remotes = [r for name in prepare_glue.TASKS for r in prepare_glue.remotes_of(name)]
    remotes += [*prepare_swag.REMOTES.values(), *prepare_hellaswag.REMOTES.values()]
    assert all(len(remote.checksum) == 64 for remote in remotes)
    assert len({remote.name for remote in remotes}) == len(remotes)
