"""Word vectors from text files: which words get a vector, and which files are refused."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

import runner
import sizes
import zoo
from fairseq_stochattn.compat import UsageError
from fairseq_stochattn.models.word_vectors import load_vectors

CLASSIFIER = (*sizes.CLASSIFICATION, "--arch", "self_attentive", *sizes.SELF_ATTENTIVE)
# Lines with words of the dictionary, other words, a word with spaces, and a word that is a number.
LINES = ["w0 1 -2 3e-1", "other 4 5 6", ". . . 7 8 9", "w3 0.5 0.25 -1", "w4 w5 1 1 1", "12 1 2 3"]


def load(path: Path, dimension: int = 3) -> tuple[int, torch.Tensor, torch.Tensor]:
    symbols = zoo.dictionary()
    embedding = torch.nn.Embedding(len(symbols), dimension, padding_idx=zoo.PAD)
    before = embedding.weight.detach().clone()
    return load_vectors(path, symbols, embedding), embedding.weight, before


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


@pytest.mark.parametrize("header", [[], ["6 3"]], ids=["GloVe", "word2vec"])
def test_words_of_the_file_get_its_vectors_and_others_stay_random(
    header: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "vectors.txt", [*header, *LINES, "<pad> 1 1 1"])
    with caplog.at_level(logging.INFO):
        number, weight, before = load(path)
    symbols = zoo.dictionary()
    given = {"w0": [1.0, -2.0, 0.3], "w3": [0.5, 0.25, -1.0]}
    for word, vector in given.items():
        torch.testing.assert_close(weight[symbols.index(word)], torch.tensor(vector))
    kept = [i for i in range(len(symbols)) if symbols[i] not in given]
    assert torch.equal(weight[kept], before[kept])
    assert number == 2
    assert f"vectors for 2 of the dictionary's {zoo.VOCABULARY - 4} words" in caplog.text


@pytest.mark.parametrize("first", [". . . 7 8 9", "7 1 2 3", "ne\u00adben 1 2 3"])
def test_first_line_may_have_any_word(first: str, tmp_path: Path) -> None:
    assert load(write(tmp_path / "vectors.txt", [first, *LINES]))[0] == 2


def test_invalid_utf8_and_line_ends(tmp_path: Path) -> None:
    """Words that are not UTF-8 are skipped; lines end at \\n, not at Unicode's separators."""
    path = tmp_path / "vectors.txt"
    path.write_bytes(b"\xff\xfe 1 2 3\r\nw1 1 2 3\r\nw\xc2\x85 4 5 6\nw2 1 2 3 \n")
    number, weight, _ = load(path)
    assert number == 2
    assert weight[zoo.dictionary().index("w2")].tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        (["w0 1 2", "w1 1 2"], "have 2 numbers, but --encoder-embed-dim is 3"),
        (["w0 1 2 3 4"], "have 4 numbers, but --encoder-embed-dim is 3"),
        ([". . . 1 2 3 4"], "have 4 numbers, but --encoder-embed-dim is 3"),
        (["2 5", "w0 1 2 3"], "have 5 numbers, but --encoder-embed-dim is 3"),
        ([], "vectors.txt is empty"),
        (["just some text"], "is not a file of word vectors"),
        (["x 1 2 3", "y 1 2 3"], "has none of the dictionary's words; was the data prepared in"),
        (["x 1 2 3", "w0 1 2"], "line 2 of .*vectors.txt is not a word and 3 numbers"),
        (["x 1 2 3", "w0 1 two 3"], "line 2 of .*vectors.txt is not a word and 3 numbers"),
        (["2 3", "w1 1 2 3", "w0 1 nan 3"], "line 3 of .*vectors.txt is not a word and 3 numbers"),
        (["x 1 2 3", "w0"], "line 2 of .*vectors.txt is not a word and 3 numbers"),
    ],
)
def test_bad_files_are_refused(lines: list[str], cause: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"--encoder-embed-path: .*{cause}"):
        load(write(tmp_path / "vectors.txt", lines))


def test_missing_file_and_directory_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere\.txt does not exist"):
        load(tmp_path / "nowhere.txt")
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        load(tmp_path)


def test_training_starts_from_the_vectors_and_can_freeze_them(
    classification_data: Path, tmp_path: Path
) -> None:
    """The checkpoint can be loaded without the file."""
    words = (classification_data / "input0" / "dict.txt").read_text().split()[::2][:5]
    vector = [float(n) for n in range(16)]
    line = " ".join(map(str, vector))
    path = write(tmp_path / "vectors.txt", [f"{word} {line}" for word in words])
    rows = {}
    for freeze in (True, False):
        flags = (*CLASSIFIER, "--encoder-embed-path", path, "--max-update", 2)
        more = ("--encoder-freeze-embed",) if freeze else ()
        output = runner.train(classification_data, tmp_path / str(freeze), *flags, *more)
        assert "vectors for 5 of the dictionary's" in output.text
        state = torch.load(tmp_path / str(freeze) / "checkpoint_last.pt", weights_only=True)
        rows[freeze] = state["model"]["encoder.embed_tokens.weight"][4:9]
    assert rows[True].tolist() == [vector] * 5
    assert not torch.equal(rows[False], rows[True])
    torch.testing.assert_close(rows[False], rows[True], rtol=0, atol=0.05)
    path.unlink()
    checkpoint = tmp_path / "True" / "checkpoint_last.pt"
    with pytest.raises(SystemExit, match="a trained checkpoint does not need it: load it with"):
        runner.validate(classification_data, checkpoint, *sizes.CLASSIFICATION)
    without = ("--model-overrides", "{'encoder_embed_path': None}")
    output = runner.validate(classification_data, checkpoint, *sizes.CLASSIFICATION, *without)
    assert "valid_loss" in output.stats["valid"][-1]
