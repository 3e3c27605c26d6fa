"""Pretraining data: documents, sentences, blocks, shards, and training with both tasks."""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterable
from pathlib import Path

import pytest
from fairseq.data import Dictionary, TokenBlockDataset, data_utils

import prepare_text
import runner
import sizes
from running_text import WORDS, as_text, manifest, prepare, rows, story
from steps import documents
from steps.documents import SeenHashes, read_documents, sentence_splitter
from steps.lines import Report
from steps.manifest import describe_sources
from steps.packing import BlockPacker, SentencePacker

SHARED = runner.ROOT.parent / "shared" / "data"


@pytest.fixture
def books(tmp_path: Path) -> Path:
    folder = tmp_path / "books"
    folder.mkdir()
    (folder / "one.txt").write_text(as_text([story(i) for i in range(5)]), encoding="utf-8")
    rest = as_text([story(i) for i in range(5, 9)]).encode()
    (folder / "two.txt.gz").write_bytes(gzip.compress(rest))
    (folder / "valid.txt").write_text(as_text([story(100), story(101)]), encoding="utf-8")
    return folder


def text(books: Path, out: Path, *more: object, status: int = 0) -> Path:
    train = ("--train", books / "one.txt", books / "two.txt.gz", "--valid", books / "valid.txt")
    return prepare(prepare_text.main, out, *train, *more, status=status)


SENTENCES = [
    "Dr. Smith has {0} cats.",
    "They sleep!",
    "Nobody knows why.",
    "Cat {0} is the oldest.",
]


def expected(numbers: Iterable[object]) -> list[str]:
    """Return one sentence per row and an empty row between documents."""
    found: list[str] = []
    for number in numbers:
        found += [*([""] if found else []), *(line.format(number) for line in SENTENCES)]
    return found


def test_sentences_with_blank_rows_between_documents(books: Path, tmp_path: Path) -> None:
    out = text(books, tmp_path / "out", *WORDS, "--keep-text")
    assert rows(out) == expected(range(9))
    assert rows(out, "valid") == expected(["<unk>", "<unk>"])
    assert (
        (out / "text" / "train").read_text(encoding="utf-8").startswith("Dr. Smith has 0 cats.\n")
    )
    # fairseq takes the empty rows as document boundaries.
    dictionary = Dictionary.load(str(out / "dict.txt"))
    data = data_utils.load_indexed_dataset(str(out / "train"), dictionary)
    arguments = (data, data.sizes, 1000, dictionary.pad(), dictionary.eos(), "complete_doc")
    assert len(TokenBlockDataset(*arguments)) == 9
    stats = manifest(out)["splits"]
    assert (stats["train"]["kept"], stats["train"]["rows"]) == (9, 36)
    assert stats["train"]["unknown_rate"] == 0 < stats["valid"]["unknown_rate"]


def test_without_splitting_every_line_is_a_sentence(books: Path, tmp_path: Path) -> None:
    out = text(books, tmp_path / "out", *WORDS, "--no-split-sentences", "--lowercase")
    assert rows(out)[:4] == [*(line.lower() for line in story(0)), "", story(1)[0].lower()]


def test_blocks_are_full_and_span_documents(books: Path, tmp_path: Path) -> None:
    out = text(books, tmp_path / "out", *WORDS, "--format", "block", "--block-tokens", 16)
    words: list[str] = []
    for number in range(9):
        # A document that starts a block has no separator: fairseq ends the previous row with one.
        words += [*(["</s>"] if len(words) % 16 else []), *" ".join(story(number)).split()]
    assert rows(out) == [" ".join(words[i : i + 16]) for i in range(0, len(words), 16)]
    assert {len(row.split()) for row in rows(out)[:-1]} == {16}
    dictionary = Dictionary.load(str(out / "dict.txt"))
    data = data_utils.load_indexed_dataset(str(out / "train"), dictionary)
    assert (data[1] == dictionary.eos()).sum() == 2


def test_packers_at_document_boundaries() -> None:
    file = io.StringIO()
    blocks = BlockPacker(file, 3)
    for document in (["a b", "c"], ["d e f g"], ["h"], ["i j"]):
        for line in document:
            blocks.line(line)
        blocks.end_document()
    blocks.close()
    assert file.getvalue().splitlines() == ["a b c", "d e f", "g </s> h", "i j"]
    assert blocks.rows == 4
    file = io.StringIO()
    sentences = SentencePacker(file)
    sentences.end_document()  # an empty document
    sentences.line("a")
    sentences.end_document()
    sentences.line("b")
    assert file.getvalue() == "a\n\nb\n"


def test_documents_alternate_between_shards_that_share_a_dictionary(
    books: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out = text(books, tmp_path / "out", *WORDS, "--shards", 2, "--test", books / "valid.txt")
    assert rows(out / "shard0") == expected([0, 2, 4, 6, 8])
    assert rows(out / "shard1") == expected([1, 3, 5, 7])
    assert (out / "shard0/dict.txt").read_text() == (out / "shard1/dict.txt").read_text()
    assert rows(out / "shard0", "valid") == rows(out / "shard0", "test")
    assert rows(out / "shard0", "valid") == expected(["<unk>", "<unk>"])
    assert not list((out / "shard1").glob("valid*")) + list(out.glob("*.bin"))
    printed = capsys.readouterr().out
    data = f"{out}/shard0:{out}/shard1"
    assert f"fairseq-train {data} --task masked_lm --criterion masked_lm" in printed
    assert f"fairseq-train {data} --task language_modeling" in printed


def test_duplicates_short_documents_and_bad_lines_are_dropped_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    file, held = tmp_path / "text.txt", tmp_path / "held.txt"
    stories = [story(0), story(1), [f"  {line} " for line in story(0)], ["Hm."], story(2), story(1)]
    file.write_bytes(as_text(stories).encode() + b"\nbroken \xff\r\nCRLF line\r\n")
    held.write_text(as_text([story(1), story(1), story(7)]))
    given = ("--train", file, "--valid", held, *WORDS, "--min-chars", 5)
    out = prepare(prepare_text.main, tmp_path / "out", *given)
    assert rows(out) == [*expected([0, 1, 2]), "", "CRLF line"]
    assert rows(out, "valid") == expected([1, 1, "<unk>"])
    stats = manifest(out)["splits"]
    assert stats["train"]["dropped"] == {"duplicate": 2, "too short": 1}
    assert stats["train"]["lines_dropped"] == {"not UTF-8": 1}
    assert stats["valid"]["seen_in_train"] == 2
    printed = capsys.readouterr().out
    assert "train: 4 documents kept, dropped: 2 duplicate, 1 too short" in printed
    assert "dropped 1 lines (not UTF-8)" in printed
    kept = prepare(prepare_text.main, tmp_path / "kept", *given, "--keep-duplicates")
    assert rows(kept)[:-2] == expected([0, 1, 0, 2, 1])
    assert "2 duplicates (kept)" in capsys.readouterr().out


def test_the_validation_share_does_not_depend_on_the_order_of_documents(tmp_path: Path) -> None:
    stories = [story(i) for i in range(60)]
    found = []
    for name, order in (("forward", stories), ("backward", stories[::-1])):
        file = tmp_path / f"{name}.txt"
        file.write_text(as_text(order))
        flags = (
            "--train",
            file,
            *WORDS,
            "--valid-share",
            0.2,
            "--no-split-sentences",
            "--keep-text",
        )
        out = prepare(prepare_text.main, tmp_path / name, *flags)
        splits = manifest(out)["splits"]
        assert splits["train"]["kept"] + splits["valid"]["kept"] == 60
        assert 3 <= splits["valid"]["kept"] <= 24
        found.append({row for row in (out / "text/valid").read_text().splitlines() if row})
        assert len(found[-1]) == 2 * splits["valid"]["kept"]
        assert not found[-1] & set(rows(out))
    assert found[0] == found[1]


def test_seen_hashes_with_many_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MAX_RECENT", 8)
    seen, top = SeenHashes(), 2**64 - 1
    items = [(i * 0x9E3779B97F4A7C15) % 2**64 for i in range(1000)] + [top, top - 1]
    assert all(seen.add(item) for item in items)
    assert not any(seen.add(item) for item in items)
    assert top - 2 not in seen
    assert len(seen._parts) < 9
    assert sum(part.nbytes for part in seen._parts) <= 8 * len(items)


def test_a_long_text_without_blank_lines_is_split_into_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "MAX_CHARACTERS", 30)
    file = tmp_path / "long.txt"
    file.write_text("".join(f"line number {i}\n" for i in range(6)))
    report = Report()
    found = list(read_documents([file], report))
    assert found == [[f"line number {i}", f"line number {i + 1}"] for i in (0, 2, 4)]
    assert report.repaired == {documents.CUT_NOTE: 2}


def test_the_sentence_splitter_keeps_every_character() -> None:
    line = 'He met Mr. X. J. Doe, i.e.  his boss, on Jan. 5. "Why?" Nobody knew. (Nor did I.) Why'
    ((_, found),) = sentence_splitter(True)([("train", line)])
    assert "".join(found.split()) == "".join(line.split())
    assert found.split("\n") == [
        "He met Mr. X. J. Doe, i.e.  his boss, on Jan. 5.",
        '"Why?"',
        "Nobody knew.",
        "(Nor did I.)",
        "Why",
    ]


def test_sources_with_the_same_name_include_their_folder(tmp_path: Path) -> None:
    files = [tmp_path / name / "wiki_00" for name in ("AA", "AB")]
    for number, file in enumerate(files):
        file.parent.mkdir()
        file.write_text(str(number))
    assert list(describe_sources(files)) == ["AA/wiki_00", "AB/wiki_00"]
    assert list(describe_sources(files[:1])) == ["wiki_00"]


@pytest.mark.parametrize(
    ("flags", "cause"),
    [
        (("--subwords", "tokenizer"), "--subwords tokenizer needs --tokenizer FOLDER"),
        (("--subwords", "gpt2", "--gpt2-files", "."), "encoder.json does not exist"),
        (
            ("--tokenizer", "."),
            "--tokenizer needs --subwords tokenizer, but --subwords is spm-unigram",
        ),
        (("--valid-share", "0.1"), "cannot be used together"),
        ((*WORDS, "--shards", "10"), "the train set has 9 documents left of 9, but 10 shards need"),
        (("--subwords", "spm-unigram", "--size", "9000"), "cannot learn --size 9000 pieces"),
        (("--test", "missing.txt"), "missing.txt does not exist"),
    ],
    ids=["tokenizer", "gpt2", "mismatch", "share", "shards", "pieces", "missing"],
)
def test_errors_are_reported_and_leave_no_output(
    flags: tuple, cause: str, books: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    text(books, tmp_path / "out", *flags, status=1)
    assert cause in capsys.readouterr().err.strip().splitlines()[-1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["books"]


def test_a_second_call_does_nothing_but_exchanged_splits_give_an_error(
    books: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    one, other = books / "one.txt", books / "valid.txt"
    flags = (*WORDS, "--train", one, "--valid", other)
    out = prepare(prepare_text.main, tmp_path / "out", *flags)
    before = {p: p.stat().st_mtime_ns for p in out.rglob("*")}
    prepare(prepare_text.main, out, *flags)
    assert "is already complete, nothing to do" in capsys.readouterr().out
    assert {p: p.stat().st_mtime_ns for p in out.rglob("*")} == before
    prepare(prepare_text.main, out, *WORDS, "--train", other, "--valid", one, status=1)
    assert "made with other arguments" in capsys.readouterr().err


def test_fairseq_trains_both_tasks_on_war_and_peace(tmp_path: Path) -> None:
    """Chapters are documents; the data is in two shards."""
    files = {s: SHARED / "lm" / f"war-and-peace.{s}.txt" for s in ("train", "valid", "test")}
    if not files["train"].exists():
        pytest.skip(f"{files['train']} does not exist")
    given: list[object] = []
    for split, file in files.items():
        lines = file.read_text(encoding="utf-8").splitlines()[1000:1700]
        chapters = ("\n" + line if line.startswith("CHAPTER") else line for line in lines)
        (tmp_path / split).write_text("\n".join(chapters) + "\n", encoding="utf-8")
        given += [f"--{split}", tmp_path / split]
    more = ("--size", 400, "--shards", 2)
    sentences = prepare(prepare_text.main, tmp_path / "sentences", *given, *more)
    blocks = ("--format", "block", "--block-tokens", 30, "--subwords", "gpt2")
    packed = prepare(prepare_text.main, tmp_path / "blocks", *given, *more, *blocks)
    assert {len(row.split()) for row in rows(packed / "shard0")[:-1]} == {30}
    for number, (out, mode) in enumerate(((sentences, "complete"), (packed, "eos"))):
        data = f"{out}/shard0:{out}/shard1"
        common = ("--sample-break-mode", mode, "--tokens-per-sample", 32, "--max-tokens", 256)
        roberta = ("--arch", "roberta_deterministic", *sizes.ROBERTA, *sizes.MASKED_LM)
        language = ("--arch", "transformer_lm_deterministic", *sizes.TRANSFORMER_LM)
        # A whole epoch takes too long, so the second shard has its own test below.
        stop = ("--max-update", 2, "--skip-invalid-size-inputs-valid-test")
        for name, arch in (("masked", roberta), ("causal", language)):
            run = tmp_path / f"{name}{number}"
            output = runner.train(data, run, *arch, *common, *stop)
            assert len(output.losses()) == 2
            assert (run / "checkpoint_best.pt").exists()


def test_the_second_epoch_reads_the_second_shard(books: Path, tmp_path: Path) -> None:
    out = text(books, tmp_path / "out", *WORDS, "--shards", 2)
    roberta = ("--arch", "roberta_deterministic", *sizes.ROBERTA, *sizes.MASKED_LM)
    more = ("--sample-break-mode", "complete", "--max-epoch", 2, "--tokens-per-sample", 32)
    data = f"{out}/shard0:{out}/shard1"
    output = runner.train(data, tmp_path / "run", *roberta, *more)
    for shard in ("shard0/train", "shard1/train", "shard0/valid"):
        assert f"blocks from: {out}/{shard}" in output.text
    assert len(output.stats["train"]) == 2
