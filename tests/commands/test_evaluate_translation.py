"""BLEU and chrF of stochattn-evaluate: of detokenised text, by the recipe of the prepared data."""

from __future__ import annotations

import gzip
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
from fairseq.data import Dictionary, data_utils
from sacrebleu.metrics import BLEU, CHRF

import prepare_pairs
import runner
import sizes
from evaluating import evaluate
from fairseq_stochattn.analysis.detokenize import TextFormat, read_text_format
from fairseq_stochattn.analysis.translations import Search, Translation, bleu, compare

MULTI30K = runner.ROOT.parent / "shared" / "data" / "multi30k"
SENTENCES = {
    "de": ("Zwei Männer gehen, lachen und reden.", 'Er sagt: "Nein!"', "Es kostet 3,50 Euro."),
    "en": ("Two men walk, laugh and talk.", 'He doesn\'t say "No!"', "It costs 3.50 euros."),
}
WARNING = "forgot to detokenize"


def write_text(folder: Path, count: int = 60) -> Path:
    """Write {train,valid,test}.{de,en}: the sentences in turn, each with a number."""
    folder.mkdir()
    for split in ("train", "valid", "test"):
        for lang, texts in SENTENCES.items():
            rows = (f"{i}: {texts[i % 3]}\n" for i in range(count))
            (folder / f"{split}.{lang}").write_text("".join(rows))
    return folder


def prepare(text: Path, out: Path, *more: object) -> Path:
    splits = [x for s in ("train", "valid", "test") for x in (f"--{s}", text / s)]
    given = ("--out", out, "--source-lang", "de", "--target-lang", "en", *splits, "--workers", 1)
    assert prepare_pairs.main([str(x) for x in (*given, *more)]) == 0
    return out


def references(data: Path, text_format: TextFormat, split: str = "valid") -> list[str]:
    """The target side of a split, joined to text."""
    symbols = Dictionary.load(str(data / "dict.en.txt"))
    rows = data_utils.load_indexed_dataset(str(data / f"{split}.de-en.en"), symbols)
    search = Search(remove_bpe=text_format.subwords, detokenize=text_format.detokenizer("en"))
    return [search.text(symbols, row) for row in rows]


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The warnings that were logged."""
    return [x.getMessage() for x in caplog.records if x.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    "flags",
    [
        ("--size", 60),
        ("--subwords", "spm-unigram", "--size", 70),
        ("--subwords", "none"),
        ("--subwords", "spm-bpe", "--size", 70, "--raw"),
        ("--size", 60, "--shards", 2),
    ],
    ids=["moses-bpe", "moses-spm", "moses", "spm", "shards"],
)
def test_prepared_text_is_joined_to_the_text_before(
    flags: tuple, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = write_text(tmp_path / "text")
    out = prepare(text, tmp_path / "out", *flags)
    data = out / "shard0" if "--shards" in flags else out
    found = read_text_format(f"{data}:{data}")
    assert not warned(caplog)
    assert references(data, found) == (text / "valid.en").read_text().lower().splitlines()
    assert found.moses == ("--raw" not in flags)


def test_data_without_a_readable_recipe_is_warned_about_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The subword model next to the data still says how to join subwords."""
    for number, (model, content) in enumerate(
        (
            ("codes", None),
            ("spm.model", "{"),
            ("codes", "[]"),
            ("codes", '{"recipe": {"subwords": ["bpe"], "moses": true}}'),
            ("codes", '{"recipe": {"subwords": "gpt2", "moses": true}}'),
            ("none", '{"recipe": {"subwords": "bpe", "moses": "yes"}}'),
        )
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / model).write_text("")
        if content is not None:
            (folder / "manifest.json").write_text(content)
        caplog.clear()
        found = read_text_format(str(folder))
        kinds = {"codes": "subword_nmt", "spm.model": "sentencepiece", "none": None}
        assert found == TextFormat(kinds[model], moses=False)
        (message,) = warned(caplog)
        assert "not detokenised" in message
        assert "\n" not in message


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared")
    return prepare(write_text(folder / "text"), folder / "out", "--size", 60)


@pytest.fixture(scope="module")
def translators(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two models that learnt for different times."""
    folder = tmp_path_factory.mktemp("translators")
    flags = (*sizes.TRANSFORMER, "--dropout", 0, "--disable-validation", "--max-update")
    for updates in (25, 60):
        runner.train(prepared, folder / str(updates), "--arch", "transformer", *flags, updates)
    return [folder / str(updates) / "checkpoint_last.pt" for updates in (25, 60)]


def test_scores_are_of_detokenised_text_and_flags_override(
    prepared: Path, translators: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    kept = ("--keep-translations", "--beam", 2)
    (model,) = evaluate(prepared, translators[1], more=kept)["checkpoints"]
    assert not warned(caplog)
    texts = model["per_example"]
    raw = (prepared.parent / "text" / "valid.en").read_text().lower().splitlines()
    # Unknown tokens in a reference are escaped; here all are known.
    assert texts["reference"] == raw
    assert not any(" ." in x or "@@" in x for x in texts["hypothesis"])
    metrics = model["metrics"]
    score = BLEU().corpus_score(texts["hypothesis"], [raw])
    assert metrics["bleu"] == pytest.approx(score.score)
    assert 5 < score.score < 100
    chrf = CHRF()
    assert metrics["chrf"] == pytest.approx(chrf.corpus_score(texts["hypothesis"], [raw]).score)
    assert model["chrf_signature"] == str(chrf.get_signature())
    statistics = np.array(model["bleu_statistics"])
    assert statistics.shape == (60, 10)
    sums = statistics.sum(axis=0).tolist()
    assert BLEU.compute_bleu(sums[:4], sums[4:8], *sums[8:]).score == pytest.approx(score.score)
    tokens = ("--tokenized-bleu", *kept)
    old = evaluate(prepared, translators[1], more=tokens)["checkpoints"][0]["per_example"]
    assert any(x.endswith(" .") and "@@" in x for x in old["reference"])
    joined = evaluate(prepared, translators[1], more=("--remove-bpe", *tokens))
    joined = joined["checkpoints"][0]["per_example"]["reference"]
    assert any(x.endswith(" .") for x in joined)
    assert not any("@@" in x for x in joined)
    # Explicit flags take the place of one part of the recipe each.
    flags = ("--tokenizer", "space", "--remove-bpe", "none")
    found = evaluate(prepared, translators[1], more=(*flags, *kept))["checkpoints"][0]
    assert found["per_example"]["reference"] == old["reference"]
    found = evaluate(prepared, translators[1], more=("--remove-bpe", *kept))["checkpoints"][0]
    assert found["per_example"]["reference"] == raw


def test_two_files_can_be_compared_like_two_checkpoints(
    prepared: Path, translators: list[Path]
) -> None:
    """The kept translations and measures suffice for the paired test, and for all means."""
    both = evaluate(prepared, *translators, more=("--beam", 2))
    assert [set(x) & {"per_example"} for x in both["checkpoints"]] == [set(), set()]
    systems = []
    for path in translators:
        (model,) = evaluate(prepared, path, more=("--keep-examples", "--beam", 2))["checkpoints"]
        rows = model["per_example"]
        columns = (rows["id"], rows["hypothesis"], rows["reference"])
        systems.append([Translation(*x) for x in zip(*columns, strict=True)])
        assert rows["id"] == list(range(60))
        assert sum(rows["predictions"]) == model["predictions"]
        assert 100 * sum(rows["correct"]) / model["predictions"] == pytest.approx(
            model["metrics"]["accuracy"]
        )
        for name, metric in (("bits", "nll"), ("entropy", "predictive_entropy")):
            mean = sum(rows[name]) / model["predictions"]
            assert mean == pytest.approx(model["metrics"][metric])
    (difference,) = compare(systems)
    (expected,) = both["comparisons"]
    assert difference.bleu == pytest.approx(expected["bleu_difference"])
    assert difference.p_value == expected["p_value"]


def test_data_that_was_not_prepared_here_is_evaluated_as_before(
    prepared: Path, translators: list[Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without the manifest, BPE is joined but words stay tokens, and one line says so."""
    data = tmp_path / "data"
    shutil.copytree(prepared, data)
    (data / "manifest.json").unlink()
    found = evaluate(data, *translators, more=("--keep-examples", "--beam", 1))["checkpoints"]
    assert len([x for x in warned(caplog) if "not detokenised" in x]) == 1
    assert any(x.endswith(" .") for x in found[0]["per_example"]["reference"])


def test_sacrebleu_does_not_warn_about_multi30k(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It warns if 100 hypotheses end in a tokenised period: here the references are used."""
    if not MULTI30K.is_dir():
        pytest.skip(f"no Multi30k at {MULTI30K}")
    text = tmp_path / "text"
    text.mkdir()
    for split, name, count in (("train", "train", 800), ("valid", "val", 150), ("test", "val", 9)):
        for lang in ("de", "en"):
            with gzip.open(MULTI30K / f"{name}.{lang}.gz", "rt", encoding="utf-8") as lines:
                rows = [line for line, _ in zip(lines, range(count), strict=False)]
            (text / f"{split}.{lang}").write_text("".join(rows), encoding="utf-8")
    data = prepare(text, tmp_path / "data", "--size", 500)
    raw = (text / "valid.en").read_text(encoding="utf-8").lower().splitlines()

    def score(text_format: TextFormat) -> float:
        caplog.clear()
        texts = references(data, text_format)
        return bleu([Translation(i, *x) for i, x in enumerate(zip(texts, raw, strict=True))]).score

    assert score(read_text_format(str(data))) > 99
    assert not warned(caplog)
    assert score(TextFormat("subword_nmt")) < 99.99
    assert any(WARNING in message for message in warned(caplog))
    # The command itself, with a model that has hardly learnt anything.
    flags = (*sizes.TRANSFORMER, "--max-update", 1, "--disable-validation")
    runner.train(data, tmp_path / "run", "--arch", "transformer", *flags)
    caplog.clear()
    checkpoint = tmp_path / "run" / "checkpoint_last.pt"
    found = evaluate(data, checkpoint, more=("--limit", 20, "--beam", 1, "--keep-examples"))
    assert not warned(caplog)
    texts = found["checkpoints"][0]["per_example"]["reference"]
    assert BLEU().corpus_score(texts, [raw[:20]]).score > 95
