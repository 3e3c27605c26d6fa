"""The figures of stochattn-plot show the measured numbers; bad input gives a one-line error."""

from __future__ import annotations

import importlib.util
import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib import image as pictures

import evaluated
import runner
import sizes
from fairseq_stochattn.analysis import calibration_plot, curves
from fairseq_stochattn.analysis.attention_plot import attention_figure, attention_maps
from fairseq_stochattn.analysis.drawing import house_style, label_ends, line_style, panels
from fairseq_stochattn.analysis.evaluation import Evaluation
from fairseq_stochattn.analysis.heads_report import HeadReport, LayerReport, as_json, read_reports
from fairseq_stochattn.analysis.keys_queries import collect, project_tsne
from fairseq_stochattn.analysis.loading import DataSelection
from fairseq_stochattn.analysis.sentences import sentence_from, sentences_of
from fairseq_stochattn.analysis.training_log import TrainingLog, read_log
from fairseq_stochattn.analysis.weights import find_attention
from fairseq_stochattn.commands import plot as plot_command
from fairseq_stochattn.compat import UsageError
from fairseq_stochattn.methods.alignment.transport import squared_mmd


@pytest.fixture(scope="module")
def run(translation_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with a log and a checkpoint."""
    folder = tmp_path_factory.mktemp("run")
    flags = ("--arch", "transformer_babn", *sizes.TRANSFORMER, "--criterion", "elbo")
    log = ("--log-file", folder / "train.log")
    runner.train(translation_data, folder, *flags, "--max-epoch", 1, *log)
    return folder


@pytest.fixture(scope="module")
def third(run: Path, translation_data: Path) -> Evaluation:
    """The model, loaded with sentence 3 of the validation set."""
    selection = DataSelection(str(translation_data), ids=(3,))
    return Evaluation.load(run / "checkpoint_last.pt", selection, cpu=True)


def plot(*args: object) -> None:
    assert plot_command.main([str(x) for x in args]) == 0


def lines_of(ax: object) -> list[list[float]]:
    """The y values of every line in a panel."""
    return [list(line.get_ydata()) for line in ax.get_lines()]


def test_heat_map_shows_the_statistics_with_tokens_on_its_axes(
    third: Evaluation, text: Path
) -> None:
    (sentence,) = sentences_of(third, [3])
    source = (text / "valid.src").read_text().splitlines()[3].split()
    target = (text / "valid.tgt").read_text().splitlines()[3].split()
    assert sentence.source == [*source, "</s>"]
    assert sentence.read == ["</s>", *target]
    (one,) = attention_maps(third, sentence, "cross", "0", "1", samples=4)
    with house_style():
        mean, ratio, *_ = attention_figure([one], "title").axes
    for ax, grid in ((mean, one.mean), (ratio, one.ratio)):
        assert np.array_equal(np.asarray(ax.get_images()[0].get_array()), grid, equal_nan=True)
        assert [x.get_text() for x in ax.get_xticklabels()] == [*source, "</s>"]
        assert [x.get_text() for x in ax.get_yticklabels()] == [*target, "</s>"]
        assert "cross attention\nlayer 0, head 1" in ax.get_title()
    assert one.mean.sum(axis=1) == pytest.approx(1, abs=1e-5)


def test_text_gives_the_same_sentence_as_the_data_and_text_without_a_target_is_translated(
    third: Evaluation, run: Path, translation_data: Path
) -> None:
    (sentence,) = sentences_of(third, [3])
    source, target = (" ".join(x[:-1]) for x in (sentence.source, sentence.written))
    again = sentence_from(third, source, target)
    for name, value in sentence.net_input.items():
        assert torch.equal(again.net_input[name], value)
    assert again.tokens("cross") == sentence.tokens("cross")
    found = runner.generate(
        *(translation_data, run / "checkpoint_last.pt", "--gen-subset", "valid", "--beam", 5)
    )
    hypothesis = re.search(r"^H-3\t\S+\t(.*)$", found.text, re.MULTILINE).group(1)
    searched = sentence_from(third, source)
    assert searched.written == [*hypothesis.split(), "</s>"]
    # This works after beam search, because the beam size in the model was reset.
    maps = attention_maps(third, searched, "cross", samples=3)
    assert maps[0].mean.shape == (len(searched.written), len(searched.source))


@pytest.mark.parametrize(
    ("arch", "fixture", "flags", "site"),
    [
        ("transformer_lm_bam", "lm_data", sizes.TRANSFORMER_LM, "decoder"),
        ("roberta_babn", "lm_data", (*sizes.ROBERTA, *sizes.MASKED_LM), "encoder"),
        ("roberta", "classification_data", (*sizes.ROBERTA, *sizes.CLASSIFICATION), "encoder"),
        ("lstm_babn", "translation_data", sizes.LSTM, "cross"),
    ],
)
def test_attention_of_all_kinds_of_models_is_drawn(
    arch: str,
    fixture: str,
    flags: tuple,
    site: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    data = request.getfixturevalue(fixture)
    runner.train(data, tmp_path, "--arch", arch, *flags, "--max-update", 1)
    where = (tmp_path / "checkpoint_last.pt", data, "--cpu", "--samples", 3)
    plot("attention", *where, "--id", 1, "--text", "kaba lodo", "--output", tmp_path / "a.svg")
    drawn = (tmp_path / "a.svg").read_text()
    assert f"{site} attention" in drawn
    assert ("std/mean" in drawn) == (arch != "roberta")
    assert ("not random" in drawn) == (arch == "roberta")
    assert "lodo" in drawn


def test_keys_and_queries_and_their_mmd_equal_those_of_single_sentences(
    run: Path, translation_data: Path
) -> None:
    selection = DataSelection(str(translation_data), limit=6)
    evaluation = Evaluation.load(run / "checkpoint_last.pt", selection, cpu=True)
    (group,) = [x for x in find_attention(evaluation.model) if (x.site, x.layer) == ("encoder", 0)]
    found = collect(evaluation, group)
    module, distances, tokens = group.module, [], 0
    for sample in evaluation.batches:
        for row in sample["net_input"]["src_tokens"]:
            row = row[row != evaluation.task.source_dictionary.pad()][None]
            with torch.no_grad():
                x, _ = evaluation.model.encoder.forward_embedding(row)
                q, k = (
                    w(x).view(1, -1, 2, 16).transpose(1, 2) for w in (module.q_proj, module.k_proj)
                )
            tokens += row.numel()
            mass = torch.full((1, 1, row.numel()), 1 / row.numel())
            if row.numel() > 1:
                distances.append(squared_mmd(q, k, mass, mass)[0])
    assert len(found.keys) == len(found.queries) == tokens
    assert found.mmd.tolist() == pytest.approx(
        torch.stack(distances).mean(dim=0).tolist(), rel=1e-4
    )
    few = found.some(12, seed=1)
    queries, keys = project_tsne(few, head=1, seed=1)
    assert queries.shape == keys.shape == (12, 2)
    assert np.isfinite(queries).all()


def test_curves_show_every_named_loss_with_the_numbers_of_the_log(run: Path) -> None:
    log = read_log([run / "train.log"])
    names = curves.choose_curves(log)
    assert {"loss", "nll_loss", "kl", "kl_weight", "elbo", "objective", "noise"} <= set(names)
    assert not {"lr", "gnorm", "wps", "num_updates"} & set(names)
    with house_style():
        axes = curves.curves_figure(log, names, "run").axes
    assert [ax.get_title() for ax in axes] == names
    for ax, name in zip(axes, names, strict=True):
        logged = {"train": log.trained(name), "valid": log.series("valid", name)}
        if name == "nll_sampled":  # only validation has it
            assert logged.pop("train") is None
        assert lines_of(ax) == [series.values for series in logged.values()]
        assert {x.get_text() for x in ax.texts} == set(logged)
    assert curves.choose_curves(log, ["lr"]) == ["lr"]


def test_each_layer_has_a_line_that_differs_in_more_than_colour() -> None:
    log = TrainingLog()
    for update in (10, 20, 30):
        shares = {f"masked_share_encoder_{i}": 0.1 * i + update / 100 for i in range(12)}
        log.add("train_inner", update, {"loss": 1.0, **shares, "drop_decoder_0": 0.3})
    chosen = curves.choose_layers(log)
    assert chosen == [("masked_share", "encoder"), ("drop", "decoder")]
    with house_style():
        first, second = curves.layers_figure(log, chosen, "run").axes
    assert lines_of(first)[3] == [pytest.approx(0.3 + u / 100) for u in (10, 20, 30)]
    assert {x.get_text() for x in first.texts} == {f"layer {i}" for i in range(12)}
    assert "dropout probability, decoder attention" in second.get_title()
    styles = {(x.get_linestyle(), x.get_marker()) for x in first.get_lines()}
    assert len(styles) == 12
    assert len({str(line_style(i, 1)) for i in range(140)}) == 140
    assert curves.choose_curves(log) == ["loss"]


def test_line_labels_keep_their_order_and_do_not_overlap() -> None:
    with house_style():
        _, (ax,) = panels(1)
        ax.set_ylim(0, 1)
        label_ends(ax, [(0.5, "b", "k"), (0.49, "a", "k"), (0.98, "d", "k"), (0.97, "c", "k")])
    places = {x.get_text(): x.xy[1] for x in ax.texts}
    heights = [places[name] for name in "abcd"]
    assert all(high - low > 0.05 for low, high in itertools.pairwise(heights))
    assert heights[-1] <= 1


def test_figures_of_calibration_show_the_numbers_of_the_evaluation() -> None:
    found = evaluated.evaluation()
    entry = found["checkpoints"][1]
    with house_style():
        reliability = calibration_plot.reliability_figure(found).axes[1]
        (risk,) = calibration_plot.risk_coverage_figure(found).axes
        domain = calibration_plot.out_of_domain_figure(found).axes[0]
    bars, gaps = reliability.containers
    bins = [x for x in entry["reliability"] if x["count"]]
    assert [bar.get_height() for bar in bars] == [x["accuracy"] for x in bins]
    tops = [bar.get_y() + bar.get_height() for bar in gaps]
    assert tops == pytest.approx([x["confidence"] for x in bins])
    assert all(bar.get_hatch() for bar in gaps)
    assert "ECE 0.14" in reliability.get_title()
    assert lines_of(risk) == [x["risk_coverage"]["risk"] for x in found["checkpoints"]]
    assert lines_of(domain)[1] == entry["out_of_domain"]["entropy_cdf"]["out_of_domain"]
    assert "AUROC by entropy 0.91" in domain.get_title()


def test_figure_of_heads_is_drawn_from_the_file_of_stochattn_heads(tmp_path: Path) -> None:
    layers = [LayerReport("encoder", i, f"encoder.{i}", 0.5, [0.1, -0.2]) for i in (0, 1)]
    reports = [HeadReport("model.pt", 9, "loss", "bits per target", 2.5, None, layers)]
    path = tmp_path / "heads.json"
    path.write_text(json.dumps(as_json(reports, 0.0, data="data", subset="valid")))
    assert read_reports(path) == reports
    plot("heads", path, "--output", tmp_path / "heads.svg")
    assert "number of heads" in (tmp_path / "heads.svg").read_text()


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_suffix_of_the_output_determines_the_format(ending: str, run: Path, tmp_path: Path) -> None:
    path = tmp_path / f"curves.{ending}"
    plot("curves", run / "train.log", "--names", "loss,kl", "--output", path)
    start = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[ending]
    assert path.read_bytes().startswith(start)
    if ending == "png":
        pixels = pictures.imread(path)[..., :3]
        assert 0.005 < (pixels.min(axis=-1) < 0.95).mean() < 0.5


def test_bad_input_gives_one_line_and_writes_no_file(
    run: Path, translation_data: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty.log").write_text("nothing\n")
    (tmp_path / "no.json").write_text("{")
    (tmp_path / "other.json").write_text('{"models": 3}')
    model = (run / "checkpoint_last.pt", translation_data, "--cpu")
    out = tmp_path / "out.png"
    for args, cause in (
        (("attention", *model), "give --id NUMBER, or --text with a sentence in subwords"),
        (("attention", *model, "--id", 4000), "has no sentence 4000"),
        (
            ("attention", *model, "--id", 1, "--layers", 7),
            "--layers 7: out of range, the cross stack",
        ),
        (
            ("attention", *model, "--id", 1, "--heads", 2),
            "--heads 2: out of range, the heads are 0 to 1",
        ),
        (
            ("attention", *model, "--id", 1, "--heads", "x"),
            "--heads: expected all, or indices such as 0,2, not 'x'",
        ),
        (("attention", *model, "--id", 1, "--sites", "mind"), "--sites: unknown site 'mind'"),
        (("attention", *model, "--id", 1, "--samples", 0), "--samples must be positive"),
        (("attention", *model, "--id", 1, "--unnormalised"), "--unnormalised needs single heads"),
        (("attention", *model, "--text", "strange words"), "subwords of the data"),
        (("attention", *model, "--text", " "), "the text is empty"),
        (("attention", *model, "--id", 1, "--target", "x"), "--target needs exactly one --text"),
        (("keys-queries", *model, "--sites", "cross"), "both a key and a query"),
        (("keys-queries", *model, "--layers", "all"), "draws one layer"),
        (("curves", tmp_path / "empty.log"), "no training statistics"),
        (("curves", run / "train.log", "--names", "joy"), "the log has no joy"),
        (("layers", run / "train.log"), "no quantities per layer"),
        (("reliability", tmp_path / "no.json"), "it is not JSON"),
        (("reliability", tmp_path / "other.json"), "it has no checkpoints"),
        (("risk-coverage", tmp_path / "nowhere.json"), "does not exist"),
        (("heads", tmp_path / "other.json"), "not what stochattn-heads --json writes"),
    ):
        with pytest.raises(UsageError, match=re.escape(cause)) as caught:
            plot(*args, "--output", out)
        assert "\n" not in str(caught.value)
    with pytest.raises(UsageError, match=re.escape("must end in .png, .svg, .pdf")):
        plot("curves", run / "train.log", "--output", tmp_path / "out.gif")
    with pytest.raises(UsageError, match="its parent directory does not exist"):
        plot("curves", run / "train.log", "--output", tmp_path / "no" / "out.png")
    assert sorted(x.name for x in tmp_path.iterdir()) == ["empty.log", "no.json", "other.json"]


@pytest.mark.parametrize(
    ("kind", "library"), [("curves", "matplotlib"), ("keys-queries", "scikit-learn")]
)
def test_error_names_the_extra_that_installs_a_missing_library(
    kind: str, library: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    absent = {"matplotlib": "matplotlib", "scikit-learn": "sklearn"}[library]
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == absent else found(name)
    )
    args = [tmp_path] if kind == "curves" else [tmp_path, tmp_path]
    with pytest.raises(UsageError, match=rf"needs {library}: pip install 'fairseq_stochattn\[an"):
        plot(kind, *args, "--output", tmp_path / "out.png")
