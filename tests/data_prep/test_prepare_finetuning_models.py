"""Fine-tuning data: ready-made subword models, special symbols in the text, repeated calls."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

import labelled
import prepare_glue
import prepare_text
import prepare_wnut17
from steps import binary
from steps.subwords import applier

WORDS = ("--subwords", "none")
RTE = "index\tsentence1\tsentence2\tlabel\n"


def rte(folder: Path) -> Path:
    row = "0\tA man\tNo man\tnot_entailment\n"
    return labelled.write(folder, {f"RTE/{name}.tsv": RTE + row for name in ("train", "dev")})


def learn_model(tmp_path: Path, kind: str) -> Path:
    """Prepare data with its own subword model, for --model-from."""
    origin = rte(tmp_path / "first")
    lines = "".join(f"{i}\tA man and a woman {i}\tThey go home\tentailment\n" for i in range(40))
    (origin / "RTE" / "train.tsv").write_text(RTE + lines)
    out = tmp_path / "model"
    more = ("--task", "RTE", "--subwords", kind, "--size", 300 if kind == "gpt2" else 30)
    assert labelled.run(prepare_glue, origin, out, *more) == 0
    return out


@pytest.mark.parametrize("kind", ["spm-unigram", "gpt2", "gpt2 without folder"])
def test_model_from_uses_the_model_and_dictionary_of_the_folder(kind: str, tmp_path: Path) -> None:
    model = learn_model(tmp_path, kind.split()[0])
    if kind == "gpt2 without folder":
        for file in (model / "gpt2").iterdir():
            file.rename(model / file.name)
    files = {
        "wnut17train.conll": "A\tO\nwoman\tB-person\nzzz\tI-person\n",
        "emerging.dev.conll": "home\tO\n",
        "emerging.test.annotated": "home\tO\n",
    }
    origin, out = labelled.write(tmp_path / "from", files), tmp_path / "out"
    assert labelled.run(prepare_wnut17, origin, out, "--model-from", model) == 0
    dictionary = (model / "input0" / "dict.txt").read_bytes()
    assert (out / "input0" / "dict.txt").read_bytes() == dictionary
    found = json.loads((out / "manifest.json").read_text())["sources"]
    assert found["dict.txt"] == hashlib.sha256(dictionary).hexdigest()
    assert ("encoder.json" if "gpt2" in kind else "spm.model") in found
    pieces, tags = labelled.rows(out, "train")[0]
    assert len(pieces.split()) == len(tags.split()) > 3
    assert [tag for tag in tags.split() if tag != "<ignore>"] == ["O", "B-person", "I-person"]
    if "gpt2" in kind:
        # The numbers equal those of the whole sentence: all words but the first begin with a space.
        assert applier("gpt2", out / "gpt2")(["A woman zzz"]) == [pieces]


@pytest.mark.parametrize("kind", ["spm-unigram", "none"])
def test_model_from_accepts_pretraining_data_in_shards(kind: str, tmp_path: Path) -> None:
    """The dictionary is taken from a shard, and the text is lower-cased as in pretraining."""
    books = "".join(f"The Man and the Woman go home {i} .\n\n" for i in range(40))
    text = labelled.write(tmp_path, {"books.txt": books}) / "books.txt"
    flags = ("--lowercase", "--shards", 2, "--subwords", kind, "--size", 32, "--no-split-sentences")
    given = ("--train", text, "--valid-share", 0.2, "--out", tmp_path / "model", "--workers", 1)
    assert prepare_text.main([str(argument) for argument in (*given, *flags)]) == 0
    files = {f"SST-2/{name}.tsv": "sentence\tlabel\nThe MAN\t1\n" for name in ("train", "dev")}
    origin, out = labelled.write(tmp_path / "from", files), tmp_path / "out"
    more = ("--task", "SST-2", "--model-from", tmp_path / "model")
    assert labelled.run(prepare_glue, origin, out, *more) == 0
    joined = labelled.rows(out, "train")[0][0]
    assert (joined if kind == "none" else joined.replace(" ", "").replace("▁", " ").strip()) == (
        "the man"
    )
    shard = tmp_path / "model" / "shard0" / "dict.txt"
    assert (out / "input0" / "dict.txt").read_bytes() == shard.read_bytes()


def test_special_symbols_in_the_text_and_texts_without_subwords_become_unknown(
    tmp_path: Path,
) -> None:
    rows = "sentence\tlabel\ngo </s> <s> on\t1\n\u200b\t0\n"
    files = {f"SST-2/{name}.tsv": rows for name in ("train", "dev")}
    origin, task = labelled.write(tmp_path / "from", files), ("--task", "SST-2")
    assert labelled.run(prepare_glue, origin, tmp_path / "words", *task, *WORDS) == 0
    assert labelled.rows(tmp_path / "words", "train")[0] == ("go <unk> <unk> on", "1")
    vocabulary = "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "go", "on"])
    bert = {
        "tokenizer/vocab.txt": vocabulary,
        "dict.txt": "go 2\non 1\n[SEP] 1\n< 1\n> 1\ns 1\n/ 1\n",
    }
    model = labelled.write(tmp_path / "model", bert)
    out = tmp_path / "out"
    assert labelled.run(prepare_glue, origin, out, *task, "--model-from", model) == 1
    (origin / "SST-2" / "train.tsv").write_text(
        "sentence\tlabel\ngo on go [SEP] on\t1\n\u200b\t0\n"
    )
    assert labelled.run(prepare_glue, origin, out, *task, "--model-from", model) == 0
    assert labelled.rows(out, "train") == [("go on go <unk> on", "1"), ("<unk>", "0")]
    assert json.loads((out / "manifest.json").read_text())["splits"]["train"]["unwritable"] == 1


def test_a_word_without_subwords_becomes_unknown_and_keeps_its_tag(tmp_path: Path) -> None:
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


def test_a_dictionary_of_another_model_gives_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    model = learn_model(tmp_path, "spm-unigram")
    (model / "dict.txt").write_text("104 1\n108 1\n115 1\n")
    more = ("--task", "RTE", "--model-from", model)
    assert labelled.run(prepare_glue, tmp_path / "first", tmp_path / "out", *more) == 1
    assert "dict.txt does not belong to the subword model: it lacks 100%" in capsys.readouterr().err


def test_a_second_call_does_nothing_and_other_arguments_give_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    origin, out = rte(tmp_path / "from"), tmp_path / "out"
    call = ("--task", "RTE", *WORDS)
    assert labelled.run(prepare_glue, origin, out, *call) == 0
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    assert labelled.run(prepare_glue, origin, out, *call) == 0
    assert "is already complete, nothing to do" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before
    assert labelled.run(prepare_glue, origin, out, *call, "--max-tokens", 9) == 1
    assert "made with other arguments" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["spm-unigram", "gpt2"])
def test_two_workers_write_the_same_bytes_as_one(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = learn_model(tmp_path, kind)
    monkeypatch.setattr(binary, "PARALLEL_BYTES", 0)
    more = ("--task", "RTE", "--model-from", one, "--workers", 2)
    assert labelled.run(prepare_glue, tmp_path / "first", tmp_path / "two", *more) == 0
    files = sorted(path.relative_to(one) for path in one.rglob("*.bin"))
    assert len(files) == 6
    for name in files:
        assert (one / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
