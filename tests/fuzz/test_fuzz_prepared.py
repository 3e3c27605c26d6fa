"""Damaged folders of prepared data, subword models and dictionaries are refused with one line."""

from __future__ import annotations

import io
import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

import labelled
import prepare_conll2003
import prepare_pairs
import prepare_text
from mutations import cases, damaged, edited, json_files, json_text, one_line_or_success
from steps import finetuning, models, pretraining, subwords, translation
from steps.command import existing_summary
from steps.finetuning_command import encoding_of
from steps.manifest import existing_output, read_manifest

WORDS = "the dog sees a man and the man sees a dog near the old house\n"
VOCAB = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\ndog\n##s\n"
DICTIONARY = b"the 7\ndog 5\n#fairseq:overwrite 3\n"
IMPORTED = {
    "recipe": {"subwords": "tokenizer", "lowercase": False},
    "model": {"flags": "--arch roberta_base", "two_separators": True},
}
SUMMARIES = {"labelled": finetuning, "pairs": translation, "text": pretraining}
SHARE = 0.1


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Real outputs of the three kinds of scripts."""
    root = tmp_path_factory.mktemp("prepared")
    for name in ("train", "valid", "test"):
        (root / f"{name}.txt").write_text("EU B-ORG\nrejects O\n\nPeter B-PER\n\n" * 3)
        for language in ("de", "en"):
            (root / f"{name}.{language}").write_text(WORDS * 3)
    (root / "books").write_text((WORDS + "\n") * 3)
    kinds = {name: root / name for name in SUMMARIES}
    small = ("--subwords", "none", "--workers", 1)
    run = ("--source-lang", "de", "--target-lang", "en", "--raw")
    pairs = [x for name in ("train", "valid", "test") for x in (f"--{name}", root / name)]
    text = ("--train", root / "books", "--valid", root / "books", "--no-split-sentences")
    assert labelled.run(prepare_conll2003, root, kinds["labelled"], *small[:2]) == 0
    for script, kind, flags in (
        (prepare_pairs, "pairs", (*run, *pairs)),
        (prepare_text, "text", (*text, "--keep-duplicates")),
    ):
        assert script.main([str(x) for x in ("--out", kinds[kind], *small, *flags)]) == 0
    return kinds


@pytest.mark.parametrize("kind", SUMMARIES)
def test_manifest_of_an_existing_output(kind: str, prepared: dict[str, Path]) -> None:
    out = prepared[kind]
    path = out / "manifest.json"
    valid = json.loads(path.read_text(encoding="utf-8"))
    request = {key: valid[key] for key in ("arguments", "sources")}
    # Edits of the request are refused at once, so most cases change the other parts.
    rest = {key: value for key, value in valid.items() if key not in request}
    others = edited(rest).map(lambda x: {**x, **request} if isinstance(x, dict) else x)

    def summarised() -> bool:
        manifest = existing_output(out, request, force=False, verify=True)
        if manifest is None:
            return False
        text = existing_summary(manifest, out, SUMMARIES[kind].summary)
        text.encode()
        return "train with: fairseq-train" in text

    assert summarised()

    @cases(SHARE)
    @given(content=st.one_of(others.map(json_text), json_files(valid)))
    def check(content: bytes) -> None:
        path.write_bytes(content)
        with one_line_or_success():
            summarised()

    check()
    path.write_text(json.dumps(valid), encoding="utf-8")
    assert summarised()


def sentencepiece_model() -> bytes:
    buffer = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([WORDS] * 9), model_writer=buffer, vocab_size=24, minloglevel=2
    )
    return buffer.getvalue()


@cases(SHARE)
@given(content=damaged(sentencepiece_model()))
def test_sentencepiece_model(folder: Path, content: bytes) -> None:
    (folder / "spm.model").write_bytes(content)
    with one_line_or_success():
        subwords.applier("spm-unigram", folder / "spm.model")(["the dog"])
        subwords.vocabulary("spm-unigram", folder / "spm.model")


def files_of_a_model() -> st.SearchStrategy[dict[str, bytes]]:
    """The files of a folder for --model-from, with one of them damaged."""

    def one(name: str, contents: st.SearchStrategy[bytes]) -> st.SearchStrategy[dict[str, bytes]]:
        return contents.map(lambda content: {name: content})

    config: dict[str, Any] = {"do_lower_case": True, "model_max_length": 512}
    return st.one_of(
        one("manifest.json", json_files(IMPORTED)),
        one("tokenizer_config.json", json_files(config)),
        one("vocab.txt", damaged(VOCAB.encode())),
        one("dict.txt", damaged(DICTIONARY)),
    )


def used_model(folder: Path) -> None:
    """Load a model folder in the same way as --model-from, without reading any text."""
    args = Namespace(
        max_length=None,
        **{"model_from": folder, "subwords": "spm-unigram", "size": 9, "max_tokens": 9},
        lowercase=False,
    )
    encoding = encoding_of(args)
    assert isinstance(encoding.model_flags, str)
    if encoding.kind == "tokenizer":
        subwords.load_tokenizer(folder).encode("the dogs")
        models.raw_text_flags("tokenizer", "tokenizer", folder).encode()


VALID = {
    "manifest.json": json_text(IMPORTED),
    "tokenizer_config.json": b'{"do_lower_case": false}',
    "vocab.txt": VOCAB.encode(),
    "dict.txt": DICTIONARY,
}


def test_the_valid_model_is_used(tmp_path: Path) -> None:
    for name, content in VALID.items():
        (tmp_path / name).write_bytes(content)
    used_model(tmp_path)
    assert read_manifest(tmp_path) == IMPORTED


@cases(2 * SHARE)
@given(changed=files_of_a_model())
def test_model_folder(folder: Path, changed: dict[str, bytes]) -> None:
    model = folder / "model"
    model.mkdir(exist_ok=True)
    for name, content in {**VALID, **changed}.items():
        (model / name).write_bytes(content)
    with one_line_or_success():
        used_model(model)
