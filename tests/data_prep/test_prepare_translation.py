"""Translation corpora: equal to the shell pipeline, restartable, and written atomically."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from fairseq.data import Dictionary, data_utils
from fairseq.data.indexed_dataset import MMapIndexedDataset

import prepare_multi30k
import prepare_pairs
import prepare_tatoeba
import runner
from steps.binary import LINES_PER_WRITE, write_index
from steps.errors import PrepError
from steps.lines import Report, TextFile
from steps.parallel import map_chunks

SHARED = runner.ROOT.parent / "shared" / "data"
GERMAN = [
    "Zwei junge Männer sind im Freien, in der Nähe vieler Büsche.",
    'Ein "Mann" & eine Frau: 3,50 Euro!',
    "Der Hund läuft <schnell> über die Straße.",
    "Ein Kind spielt, das andere schläft.",
]
ENGLISH = [
    "Two young men are outside near many bushes.",
    'A "man" & a woman don\'t pay 3.50 euros!',
    "The dog runs <fast> across the street.",
    "One child plays, the other one sleeps.",
]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Plain text files with 40 pairs per split."""
    folder = tmp_path / "text"
    folder.mkdir()
    for split, start in (("train", 0), ("valid", 100), ("test", 200)):
        for lang, sentences in (("de", GERMAN), ("en", ENGLISH)):
            rows = [f"{sentences[i % 4]} {start + i}" for i in range(40)]
            (folder / f"{split}.{lang}").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder


def flags(corpus: Path, out: Path, *more: object) -> list[str]:
    splits = [x for s in ("train", "valid", "test") for x in (f"--{s}", corpus / s)]
    languages = ("--source-lang", "de", "--target-lang", "en")
    given = ("--out", out, *languages, *splits, "--size", 60, "--workers", 2, *more)
    return [str(argument) for argument in given]


def decoded(folder: Path, split: str, lang: str) -> list[str]:
    dictionary = Dictionary.load(str(folder / f"dict.{lang}.txt"))
    data = data_utils.load_indexed_dataset(str(folder / f"{split}.de-en.{lang}"), dictionary)
    return [dictionary.string(row) for row in data]


def reference(corpus: Path, folder: Path, dictionary: str) -> Path:
    """Run the shell pipeline sacremoses | lower | subword-nmt | fairseq-preprocess."""
    folder.mkdir()
    script = """
set -e -o pipefail
for lang in de en; do for split in train valid test; do
  sacremoses -l $lang -q tokenize < $1/$split.$lang 2>/dev/null \\
    | python3 -c 'import sys; [print(x.rstrip("\\n").lower()) for x in sys.stdin]' \\
    > $2/$split.tok.$lang
done; done
cat $2/train.tok.de $2/train.tok.en | subword-nmt learn-bpe -s 60 > $2/codes 2>/dev/null
for lang in de en; do for split in train valid test; do
  subword-nmt apply-bpe -c $2/codes < $2/$split.tok.$lang > $2/$split.$lang
done; done
fairseq-preprocess -s de -t en $3 --trainpref $2/train --validpref $2/valid \\
  --testpref $2/test --destdir $2/bin > /dev/null 2>&1
"""
    environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
    subprocess.run(
        ["bash", "-c", script, "bash", str(corpus), str(folder), dictionary],
        check=True,
        env=environment,
    )
    return folder / "bin"


@pytest.mark.parametrize("separate", [False, True])
def test_output_equals_that_of_the_shell_pipeline(
    separate: bool, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    more = ("--separate-dictionaries",) if separate else ()
    assert prepare_pairs.main(flags(corpus, tmp_path / "ours", "--ratio", 0, *more)) == 0
    theirs = reference(corpus, tmp_path / "theirs", "" if separate else "--joined-dictionary")
    ours = tmp_path / "ours"
    found = [(ours / f"dict.{lang}.txt").read_text() for lang in ("de", "en")]
    assert found == [(theirs / f"dict.{lang}.txt").read_text() for lang in ("de", "en")]
    assert (found[0] == found[1]) == (not separate)
    sizes = [len(text.splitlines()) for text in found]
    shown = f"vocabularies: {sizes[0]} de, {sizes[1]} en entries\n"
    assert (shown in capsys.readouterr().out) == separate
    for split in ("train", "valid", "test"):
        for lang in ("de", "en"):
            assert decoded(ours, split, lang) == decoded(theirs, split, lang)
            for name in (f"{split}.de-en.{lang}.bin", f"{split}.de-en.{lang}.idx"):
                assert (ours / name).read_bytes() == (theirs / name).read_bytes()
    assert "@@" in " ".join(decoded(ours, "train", "de"))
    assert "&quot;" in " ".join(decoded(ours, "train", "en")).replace("@@ ", "")


@pytest.mark.parametrize("lines", [0, 1, LINES_PER_WRITE, 2 * LINES_PER_WRITE + 1])
@pytest.mark.parametrize("dtype", [np.uint16, np.int32])
def test_index_equals_that_of_fairseq(lines: int, dtype: type, tmp_path: Path) -> None:
    """Also if the index is written in several parts and offsets exceed 2³¹ bytes."""
    sizes = np.random.default_rng(lines).integers(1, 1 << 20, lines, dtype=np.int32)
    write_index(tmp_path / "ours.idx", sizes, dtype)
    with MMapIndexedDataset.Index.writer(str(tmp_path / "theirs.idx"), dtype) as index:
        index.write(sizes.tolist())
    assert (tmp_path / "ours.idx").read_bytes() == (tmp_path / "theirs.idx").read_bytes()


@pytest.mark.parametrize("kind", ["spm-unigram", "spm-bpe", "none"])
def test_other_kinds_of_subwords(kind: str, corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    more = ("--subwords", kind, "--size", 90, "--raw", "--keep-case")
    assert prepare_pairs.main(flags(corpus, out, *more)) == 0
    found = decoded(out, "train", "de")[0]
    text = found.replace(" ", "").replace("▁", " ").strip() if kind != "none" else found
    assert text == f"{GERMAN[0]} 0"
    assert (out / "spm.model").exists() == (kind != "none")


def test_a_second_call_does_nothing_unless_arguments_or_sources_changed(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out = tmp_path / "out"
    assert prepare_pairs.main(flags(corpus, out)) == 0
    before = {p: p.stat().st_mtime_ns for p in out.rglob("*")}
    assert prepare_pairs.main(flags(corpus, out)) == 0
    assert "is already complete, nothing to do" in capsys.readouterr().out
    assert {p: p.stat().st_mtime_ns for p in out.rglob("*")} == before
    assert prepare_pairs.main(flags(corpus, out, "--size", 50)) == 1
    assert "made with other arguments" in capsys.readouterr().err
    assert prepare_pairs.main(flags(corpus, out, "--size", 50, "--force")) == 0
    assert json.loads((out / "manifest.json").read_text())["arguments"]["size"] == 50
    with (corpus / "train.de").open("a") as file:
        file.write("Neu.\n")
    assert prepare_pairs.main(flags(corpus, out, "--size", 50)) == 1


def test_summary_and_manifest_count_dropped_and_repaired_lines(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    train = {lang: (corpus / f"train.{lang}").read_text().splitlines() for lang in ("de", "en")}
    extra = [
        ("", "Nothing."),
        ("wort " * 200, "word " * 200),
        ("ein", "a b c d e"),
        (train["de"][0], train["en"][0]),
    ]
    for lang, index in (("de", 0), ("en", 1)):
        rows = [*train[lang], *(pair[index] for pair in extra)]
        (corpus / f"train.{lang}").write_bytes("\r\n".join(rows).encode())
        held = (corpus / f"valid.{lang}").read_text() + train[lang][0] + "\n"
        (corpus / f"valid.{lang}").write_text(held)
    assert prepare_pairs.main(flags(corpus, tmp_path / "out")) == 0
    stats = json.loads((tmp_path / "out" / "manifest.json").read_text())["splits"]
    assert stats["train"]["kept"] == 41
    assert stats["train"]["dropped"] == {
        "empty or too short": 1,
        "too long": 1,
        "lengths too different": 1,
    }
    assert stats["train"]["duplicates"] == 1
    assert stats["train"]["mended"] == {"CR at the line end": 86}
    assert stats["valid"]["seen_in_train"] == 1
    printed = capsys.readouterr().out
    assert "1 duplicates (kept)" in printed
    assert "1 pairs that are also in train" in printed


@pytest.mark.parametrize("damage", ["unequal", "missing", "empty", "truncated", "too many pieces"])
def test_failures_are_reported_and_leave_no_output(
    damage: str, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    more: tuple = ()
    if damage == "unequal":
        with (corpus / "train.de").open("a") as file:
            file.write("Eine Zeile zu viel.\n")
    elif damage == "missing":
        (corpus / "valid.en").unlink()
    elif damage == "empty":
        for lang in ("de", "en"):
            (corpus / f"train.{lang}").write_text("")
    elif damage == "truncated":
        whole = gzip.compress((corpus / "train.de").read_bytes())
        (corpus / "train.de").unlink()
        (corpus / "train.de.gz").write_bytes(whole[:-20])
    else:
        more = ("--subwords", "spm-unigram", "--size", 5000)
    assert prepare_pairs.main(flags(corpus, tmp_path / "out", *more)) == 1
    message = capsys.readouterr().err.strip().splitlines()[-1]
    causes = {
        "unequal": "need the same number of lines",
        "missing": "valid.en does not exist",
        "empty": "the train set is empty: 0 of 0 pairs were kept",
        "truncated": "train.de.gz is truncated or damaged",
        "too many pieces": "sentencepiece cannot learn --size 5000 pieces",
    }
    assert causes[damage] in message
    assert sorted(p.name for p in tmp_path.iterdir()) == ["text"]


def test_foreign_files_in_the_output_are_not_touched(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.tex").write_text("precious")
    for out, cause in ((mine, "already contains other files"), (mine / "thesis.tex", "is a file")):
        assert prepare_pairs.main(flags(corpus, out, "--force")) == 1
        assert cause in capsys.readouterr().err
    assert (mine / "thesis.tex").read_text() == "precious"


def test_a_full_disk_is_reported_and_leaves_no_output(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24k", "tmpfs", str(disk)])
    if mounted.returncode:
        pytest.skip("mounting a small disk is not permitted")
    try:
        assert prepare_pairs.main(flags(corpus, disk / "out")) == 1
        assert "No space left on device" in capsys.readouterr().err
        assert list(disk.iterdir()) == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_fairseq_trains_on_a_tiny_multi30k(tmp_path: Path) -> None:
    """The files have the names of the real corpus and come from --from."""
    folder = tmp_path / "from"
    folder.mkdir()
    for name in prepare_multi30k.SPLITS.values():
        for lang, sentences in (("de", GERMAN), ("en", ENGLISH)):
            rows = [f"{sentences[i % 4]} {i % 7}" for i in range(24)]
            (folder / f"{name}.{lang}.gz").write_bytes(gzip.compress("\n".join(rows).encode()))
    arguments = ["--out", str(tmp_path / "out"), "--from", str(folder), "--size", "60"]
    assert prepare_multi30k.main(arguments) == 0
    small = ("--encoder-embed-dim", 16, "--decoder-embed-dim", 16, "--share-all-embeddings")
    more = ("--arch", "transformer_deterministic_tiny", *small, "--max-update", 2)
    output = runner.train(tmp_path / "out", tmp_path / "run", *more)
    assert len(output.losses()) == 2


def test_no_english_sentence_of_tatoeba_is_in_two_splits(tmp_path: Path) -> None:
    rows = [f"{ENGLISH[i % 4]} {i // 3}\t{GERMAN[i % 4]} {i}\tCC" for i in range(1500)]
    folder = tmp_path / "from"
    folder.mkdir()
    with zipfile.ZipFile(folder / "deu-eng.zip", "w") as archive:
        archive.writestr("deu.txt", "\n".join(rows) + "\n")
    arguments = ["--out", str(tmp_path / "out"), "--from", str(folder), "--size", "60"]
    assert prepare_tatoeba.main(arguments) == 0
    sides = {s: set(decoded(tmp_path / "out", s, "en")) for s in ("train", "valid", "test")}
    assert all(sides.values())
    assert not sides["train"] & (sides["valid"] | sides["test"])
    assert not sides["valid"] & sides["test"]
    total = sum(len(decoded(tmp_path / "out", split, "en")) for split in sides)
    assert total == 1500
    file = TextFile(folder / "deu-eng.zip", "deu.txt")
    first = next(prepare_tatoeba.read_split(file, "train", Report()))
    assert first == (f"{GERMAN[0]} 0", f"{ENGLISH[0]} 0")


def test_map_chunks_does_not_read_far_ahead() -> None:
    """Of two million items, only a few chunks may be read before results are used."""
    read: list[int] = []

    def numbers():
        for number in range(2_000_000):
            read.append(number)
            yield number

    results = map_chunks(_doubler, (), numbers(), workers=2)
    assert [next(results) for _ in range(5)] == [0, 2, 4, 6, 8]
    assert len(read) < 20_000
    results.close()


def test_a_missing_package_gives_a_one_line_error(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    assert prepare_pairs.main(flags(corpus, tmp_path / "out")) == 1
    expected = "sacremoses is not installed: pip install 'fairseq_stochattn[data]'\n"
    assert capsys.readouterr().err.endswith(expected)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["text"]


def test_a_worker_that_dies_raises_an_error() -> None:
    with pytest.raises(PrepError, match="a worker process died"):
        list(map_chunks(_exit_in_worker, (), range(10_000), workers=2))


def _exit_in_worker():
    return lambda chunk: os._exit(1)


def _doubler():
    return lambda chunk: [2 * item for item in chunk]


def test_all_downloads_have_checksums() -> None:
    for remote in (*prepare_multi30k.REMOTES, prepare_tatoeba.REMOTE):
        assert re.fullmatch(r"[0-9a-f]{64}", remote.checksum)
