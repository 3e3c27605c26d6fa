"""stochattn-heads on trained checkpoints: its scores equal those of fairseq's commands."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest
import torch
from matplotlib import image as pictures

import runner
import sizes
from fairseq_stochattn.analysis.evaluation import Evaluation
from fairseq_stochattn.analysis.heads_report import DIVERSITY
from fairseq_stochattn.analysis.loading import DataSelection
from fairseq_stochattn.commands import heads as heads_command
from fairseq_stochattn.compat import UsageError


@pytest.fixture(scope="module")
def trained(translation_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a plain fairseq Transformer and return its checkpoint."""
    folder = tmp_path_factory.mktemp("plain")
    flags = ("--arch", "transformer", *sizes.TRANSFORMER, "--dropout", 0, "--max-epoch", 15)
    runner.train(translation_data, folder, *flags, user_dir=None)
    return folder / "checkpoint_last.pt"


def heads(checkpoint: Path, data: Path, *more: object) -> int:
    return heads_command.main([str(x) for x in (checkpoint, data, "--cpu", *more)])


def measured(checkpoint: Path, data: Path, *more: object) -> dict:
    """Run the command and return the content of its JSON file."""
    out = checkpoint.parent / "heads.json"
    assert heads(checkpoint, data, "--json", out, *more) == 0
    return json.loads(out.read_text())


def generated_bleu(data: Path, checkpoint: Path) -> float:
    flags = ("--gen-subset", "valid", "--beam", 3, "--scoring", "sacrebleu")
    text = runner.generate(data, checkpoint, *flags).text
    return float(re.search(r"BLEU = ([\d.]+)", text).group(1))


def test_importance_is_the_decrease_of_bleu_in_fairseq_generate(
    trained: Path, translation_data: Path, tmp_path: Path
) -> None:
    flags = ("--metric", "bleu", "--beam", 3, "--sites", "cross", "--layers", "last")
    (model,) = measured(trained, translation_data, *flags)["models"]
    assert model["score"] == pytest.approx(generated_bleu(translation_data, trained), abs=0.006)
    assert model["score"] > 1
    assert model["signature"].startswith("nrefs:1|case:mixed")
    (layer,) = model["layers"]
    assert layer["name"] == "decoder.layers.1.encoder_attn"
    state = torch.load(trained, weights_only=True)
    state["model"][f"{layer['name']}.out_proj.weight"][:, 16:] = 0
    torch.save(state, tmp_path / "masked.pt")
    rest = generated_bleu(translation_data, tmp_path / "masked.pt")
    assert layer["importance"][1] == pytest.approx(model["score"] - rest, abs=0.006)
    assert layer["importance"][1] != 0


# The log has the loss per sentence, and per token as nll_loss.
PER_SENTENCE = ("--criterion", "elbo", "--sentence-avg")
# Arch → fixture of the data, flags, logged name of the loss, sites.
MODELS = {
    "transformer_babn": (
        "translation_data",
        (*sizes.TRANSFORMER, *PER_SENTENCE),
        "nll_loss",
        ["encoder", "decoder", "cross"],
    ),
    "transformer_lm": ("lm_data", sizes.TRANSFORMER_LM, "loss", ["decoder"]),
    "roberta": ("lm_data", (*sizes.ROBERTA, *sizes.MASKED_LM), "loss", ["encoder"]),
    "roberta_bam": (
        "classification_data",
        (*sizes.ROBERTA, *sizes.CLASSIFICATION),
        "loss",
        ["encoder"],
    ),
}


@pytest.mark.parametrize("arch", MODELS)
def test_loss_equals_the_validation_loss_of_fairseq(
    arch: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """For every task, with plain archs and ours; the JSON file has the documented content."""
    fixture, flags, logged, sites = MODELS[arch]
    data = request.getfixturevalue(fixture)
    output = runner.train(data, tmp_path, "--arch", arch, *flags, "--max-epoch", 1)
    content = measured(tmp_path / "checkpoint_last.pt", data, "--tolerance", 0.01)
    assert set(content) == {"data", "subset", "tolerance", "models"}
    assert (content["data"], content["subset"]) == (str(data), "valid")
    assert content["tolerance"] == 0.01
    (model,) = content["models"]
    expected = float(output.stats["valid"][-1][f"valid_{logged}"])
    assert model["score"] == pytest.approx(expected, abs=0.0011)  # the log has three decimals
    assert (model["metric"], model["unit"], model["signature"]) == ("loss", "bits per target", None)
    assert model["checkpoint"] == str(tmp_path / "checkpoint_last.pt")
    assert model["sentences"] > 0
    layers = model["layers"]
    assert [(x["site"], x["layer"]) for x in layers] == [(s, i) for s in sites for i in (0, 1)]
    assert all(
        set(x) == {"site", "layer", "name", "dist", "importance", *DIVERSITY} for x in layers
    )
    importances = [value for layer in layers for value in layer["importance"]]
    assert len(importances) == model["heads"] == 4 * len(sites)
    assert any(importances)
    assert model["harmless_heads"] == sum(value <= 0.01 for value in importances)
    by_site = [sum(x["dist"] for x in layers if x["site"] == site) / 2 for site in sites]
    assert list(model["dist_by_site"].values()) == pytest.approx(by_site)
    assert model["dist"] == pytest.approx(sum(by_site) / len(sites))
    assert model["dist"] > 0


def test_limit_takes_the_first_sentences_of_the_corpus(
    trained: Path, translation_data: Path
) -> None:
    """The results do not depend on the batch size."""
    evaluation = Evaluation.load(trained, DataSelection(str(translation_data), limit=5), cpu=True)
    assert sorted(i for x in evaluation.batches for i in x["id"].tolist()) == [0, 1, 2, 3, 4]
    one, other = (
        measured(trained, translation_data, "--limit", 5, *more)["models"][0]
        for more in ((), ("--batch-size", 1))
    )
    assert one["sentences"] == other["sentences"] == 5
    for layer, again in zip(one["layers"], other["layers"], strict=True):
        assert again["dist"] == pytest.approx(layer["dist"], rel=1e-5)
        assert again["importance"] == pytest.approx(layer["importance"], abs=1e-5)


def test_two_models_are_compared(
    trained: Path, translation_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    state = torch.load(trained, weights_only=True)
    weight = state["model"]["encoder.layers.0.self_attn.out_proj.weight"]
    weight[:, :16] = 0
    other = tmp_path / "other.pt"
    torch.save(state, other)
    flags = ("--compare", other, "--sites", "encoder,cross", "--json", tmp_path / "heads.json")
    heads(trained, translation_data, *flags, "--plot", tmp_path / "heads.png")
    first, second = json.loads((tmp_path / "heads.json").read_text())["models"]
    assert second["layers"][0]["importance"][0] == 0.0 != first["layers"][0]["importance"][0]
    table = capsys.readouterr().out
    importance = first["layers"][0]["importance"][1]
    assert re.search(rf"^encoder +0  A +[\d.]+ .*\{importance:+.4f}$", table, re.MULTILINE)
    assert re.search(r"^encoder +0  B +([\d.-]+ +){4}\+0\.0000 ", table, re.MULTILINE)
    assert f"B {other}: loss {second['score']:.4f} bits per target, 40 sentences" in table
    assert "1 of 8 heads (12%) cost nothing when masked alone" in table


def test_the_figure_is_drawn(trained: Path, translation_data: Path, tmp_path: Path) -> None:
    for name in ("heads.png", "heads.svg"):
        heads(trained, translation_data, "--limit", 3, "--plot", tmp_path / name)
    pixels = pictures.imread(tmp_path / "heads.png")[..., :3]
    assert min(pixels.shape[:2]) > 400
    assert 0.05 < (pixels.min(axis=-1) < 0.95).mean() < 0.7
    text = (tmp_path / "heads.svg").read_text()
    for label in ("number of heads", "rise of loss (bits per target)", "layer", "cross attention"):
        assert f"<!-- {label}" in text


def test_bad_input_is_one_line_and_nothing_is_written(
    trained: Path, translation_data: Path, lm_data: Path, tmp_path: Path
) -> None:
    no_file = tmp_path / "no.pt"
    (tmp_path / "weights.pt").write_bytes(b"")
    torch.save({"weight": torch.zeros(2)}, tmp_path / "weights.pt")
    plot, out = tmp_path / "heads.png", tmp_path / "heads.json"
    for checkpoint, data, flags, cause in (
        (no_file, translation_data, (), "no.pt does not exist"),
        (trained, translation_data, ("--compare", no_file), "no.pt does not exist"),
        (tmp_path / "weights.pt", translation_data, (), "weights.pt is not a fairseq checkpoint"),
        (trained, tmp_path / "nowhere", (), "nowhere does not exist"),
        (trained, lm_data, (), "does not fit the data in"),
        (trained, translation_data, ("--subset", "dev"), "no dev set in"),
        (trained, translation_data, ("--sites", "mind"), "--sites: unknown site 'mind'"),
        (
            trained,
            translation_data,
            ("--layers", "7"),
            "--layers 7: out of range, the encoder stack has layers 0 to 1",
        ),
        (trained, translation_data, ("--limit", 0), "--limit must be positive"),
        (trained, translation_data, ("--tolerance", -1), "--tolerance must not be negative"),
        (trained, translation_data, ("--plot", "heads.gif"), "must end in .png, .svg, .pdf"),
        (
            trained,
            translation_data,
            ("--json", tmp_path / "x" / "y"),
            "its parent directory does not exist",
        ),
    ):
        with pytest.raises(UsageError, match=re.escape(cause)) as caught:
            heads(checkpoint, data, "--plot", plot, "--json", out, *flags)
        assert "\n" not in str(caught.value)
    assert not plot.exists()
    assert not out.exists()


def test_models_without_heads_or_without_bleu(
    translation_data: Path, lm_data: Path, tmp_path: Path
) -> None:
    update = ("--max-update", 1)
    runner.train(translation_data, tmp_path / "lstm", "--arch", "lstm", *sizes.LSTM, *update)
    with pytest.raises(UsageError, match="this model has no attention with heads"):
        heads(tmp_path / "lstm" / "checkpoint_last.pt", translation_data)
    arch = ("--arch", "transformer_lm", *sizes.TRANSFORMER_LM)
    runner.train(lm_data, tmp_path / "lm", *arch, *update)
    with pytest.raises(UsageError, match="BLEU is for translation, not for a LanguageModeling"):
        heads(tmp_path / "lm" / "checkpoint_last.pt", lm_data, "--metric", "bleu")


def test_missing_matplotlib_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'fairseq_stochattn\[analysis\]'"):
        heads(tmp_path, tmp_path, "--plot", tmp_path / "heads.png")
