"""Subwords of pretraining data: equal to fairseq's encoders, sentencepiece, ready-made models."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
from fairseq.data import Dictionary
from fairseq.data.encoders.gpt2_bpe_utils import get_encoder

import prepare_text
from running_text import WORDS, manifest, prepare, rows
from steps import subwords

TRICKY = [
    "Two  spaces, a tab\tand the end.",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "Emoji 🙂👩‍👩‍👧 and a flag 🇩🇪, don't they'll I'd IT'S.",
    "1234 3.14 100%!!! ... e-mail@example.org https://example.org/?a=b&c=d",
    "日本語のテキスト, Ελληνικά, עברית, a\u00a0b",
    "(brackets) [more] {even more} <less> \\ / | ~ `code`",
]


@pytest.fixture(scope="module")
def tricky(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("tricky") / "tricky.txt"
    file.write_text("\n".join(TRICKY) + "\n", encoding="utf-8")
    return file


def prepare_tricky(tricky: Path, out: Path, *more: object, status: int = 0) -> Path:
    given = ("--train", tricky, "--valid", tricky, "--no-split-sentences", *more)
    return prepare(prepare_text.main, out, *given, status=status)


def test_gpt2_subwords_equal_those_of_fairseq(
    tricky: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out = prepare_tricky(tricky, tmp_path / "out", "--subwords", "gpt2", "--size", 300)
    files = [out / "gpt2" / name for name in subwords.GPT2_FILES]
    encoder = get_encoder(*map(str, files))
    assert rows(out) == [" ".join(map(str, encoder.encode(line))) for line in TRICKY]
    assert [encoder.decode(map(int, row.split())) for row in rows(out)] == TRICKY
    flags = f"--bpe gpt2 --gpt2-encoder-json {files[0]} --gpt2-vocab-bpe {files[1]}"
    assert f"fairseq's flags to split raw text in the same way: {flags}" in capsys.readouterr().out
    # The same model as ready-made files, with a dictionary in another order.
    given = tmp_path / "given"
    given.mkdir()
    for file in files:
        (given / file.name).write_bytes(file.read_bytes())
    order = (out / "dict.txt").read_text().splitlines()[::-1]
    (given / "dict.txt").write_text("\n".join(order) + "\n")
    again = prepare_tricky(tricky, tmp_path / "again", "--subwords", "gpt2", "--gpt2-files", given)
    assert rows(again) == rows(out)
    assert (again / "dict.txt").read_text().splitlines() == order
    assert (again / "gpt2/vocab.bpe").read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize("kind", ["spm-unigram", "spm-bpe"])
def test_sentencepiece_decodes_the_data_to_the_text(
    kind: str, tricky: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    import sentencepiece

    out = prepare_tricky(tricky, tmp_path / "out", "--subwords", kind, "--size", 115)
    model = sentencepiece.SentencePieceProcessor(model_file=str(out / "spm.model"))
    # sentencepiece normalises with NFKC and collapses spaces.
    normal = [" ".join(unicodedata.normalize("NFKC", line).split()) for line in TRICKY]
    assert [model.decode(row.split()) for row in rows(out)] == normal
    assert manifest(out)["splits"]["train"]["unknown_rate"] == 0
    assert f"--bpe sentencepiece --sentencepiece-model {out}/spm.model" in capsys.readouterr().out
    pieces = [line.split()[0] for line in (out / "dict.txt").read_text("utf-8").splitlines()]
    assert pieces == [model.id_to_piece(i) for i in range(3, len(model))]


def test_the_sentencepiece_model_does_not_depend_on_the_output_folder(
    tricky: Path, tmp_path: Path
) -> None:
    one, two = (prepare_tricky(tricky, tmp_path / name, "--size", 115) for name in ("a", "b"))
    assert (one / "spm.model").read_bytes() == (two / "spm.model").read_bytes()
    pieces = [line.split("\t")[0] for line in (one / "spm.vocab").read_text("utf-8").splitlines()]
    assert len(pieces) == 115
    assert pieces[:3] == ["<unk>", "<s>", "</s>"]


def test_sentencepiece_learns_from_long_lines(tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("a line of many many words " * 400 + "\n", encoding="utf-8")
    flags = ("--train", file, "--valid", file, "--size", 20, "--format", "block")
    out = prepare(prepare_text.main, tmp_path / "out", *flags)
    found = rows(out)
    assert {len(row.split()) for row in found[:-1]} == {510}
    assert " ".join(found).replace(" ", "").replace("▁", " ").split() == file.read_text().split()


def bert(folder: Path) -> Path:
    folder.mkdir()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = ["un", "##believ", "##able", "the", "story", ".", "[", "]", "mask"]
    (folder / "vocab.txt").write_text("\n".join([*special, *pieces]) + "\n")
    (folder / "pytorch_model.bin").write_bytes(b"weights")
    return folder


def test_the_vocabulary_of_bert(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    file = tmp_path / "text.txt"
    file.write_text("Unbelievable. The story\nthe unknowable [MASK] story\n")
    folder = bert(tmp_path / "bert")
    out = prepare_tricky(file, tmp_path / "out", "--subwords", "tokenizer", "--tokenizer", folder)
    assert rows(out) == ["un ##believ ##able . the story", "the <unk> <unk> story"]
    assert sorted(p.name for p in (out / "tokenizer").iterdir()) == ["vocab.txt"]
    assert f"--bpe bert --bpe-vocab-file {out}/tokenizer/vocab.txt" in capsys.readouterr().out
    dictionary = Dictionary.load(str(out / "dict.txt"))
    assert dictionary.symbols[4:] == (folder / "vocab.txt").read_text().split()[5:]


def test_tokenizer_json_with_and_without_a_dictionary(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    file = tmp_path / "text.txt"
    file.write_text("the cat sat\nthe <mask> dog sat\n")
    folder = tmp_path / "model"
    folder.mkdir()
    known = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "the": 4, "cat": 5, "sat": 6, "<mask>": 7}
    tokenizer = Tokenizer(models.WordLevel(known, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<mask>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    flags = ("--subwords", "tokenizer", "--tokenizer", folder)
    out = prepare_tricky(file, tmp_path / "out", *flags)
    assert rows(out) == ["the cat sat", "the <unk> <unk> sat"]
    assert Dictionary.load(str(out / "dict.txt")).symbols[4:] == ["the", "cat", "sat"]
    no_flags = "fairseq's flags to split raw text in the same way: none, because fairseq's --bpe"
    printed = capsys.readouterr().out
    assert no_flags in printed
    assert f"split the text with the tokenizer in {out}/tokenizer" in printed
    (folder / "dict.txt").write_text("sat 3\nthe 2\ncat 1\n")
    assert rows(prepare_tricky(file, tmp_path / "second", *flags)) == rows(out)
    assert (tmp_path / "second/dict.txt").read_text() == "sat 3\nthe 2\ncat 1\n"
    (folder / "dict.txt").write_text("12 3\n13 2\n")
    prepare_tricky(file, tmp_path / "third", *flags, status=1)
    assert (
        "its dict.txt does not belong to its tokenizer: 100% of the subwords are unknown"
        in capsys.readouterr().err
    )
    assert not (tmp_path / "third").exists()


def test_special_symbols_in_the_text_become_unknown(tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("a <s> b </s> c <pad> d\n")
    assert rows(prepare_tricky(file, tmp_path / "out", *WORDS)) == ["a <unk> b <unk> c <unk> d"]
