"""stochattn-heads: Dist, the importance of heads, and the command that measures them."""

from __future__ import annotations

import importlib.util
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from matplotlib import image as pictures
from torch import Tensor, nn

import commands
import sizes
import zoo
from fairseq_stochattn.analysis import heads_command
from fairseq_stochattn.analysis.evaluation import DataSelection, Evaluation
from fairseq_stochattn.analysis.heads import (
    head_distances,
    head_importances,
    masked_head,
    show_heads,
)
from fairseq_stochattn.analysis.heads_plot import bin_edges
from fairseq_stochattn.errors import UsageError
from fairseq_stochattn.heads import HeadGroup, by_head, find_heads

SOURCES, TARGETS = zoo.sentences(9, 7, 4, 1), zoo.sentences(8, 5, 3, 1, seed=1)
BACKBONES = ["transformer", "transformer_lm", "roberta"]
every_backbone = pytest.mark.parametrize("backbone", BACKBONES)
plain_and_ours = pytest.mark.parametrize("suffix", ["", "_deterministic"])


def build(arch: str) -> nn.Module:
    return zoo.build(arch, encoder_attention_heads=4, decoder_attention_heads=4).double().eval()


def run(model: nn.Module, backbone: str) -> Tensor:
    """A padded batch; transformers get their sources as fairseq does, padded on the left."""
    return zoo.run(model, backbone, SOURCES, TARGETS, left=backbone == "transformer")


def lone_features(model: nn.Module, backbone: str, index: int) -> dict[str, list[Tensor]]:
    """Z_i (T, d) of every head, by Eq. 1 from what the attention was given, of one sentence."""
    found = {}

    def compute(name: str) -> Callable:
        def hook(module: nn.Module, args: tuple, given: dict, _: object) -> None:
            query, key = given["query"][:, 0], given["key"][:, 0]
            q, k, v = module.q_proj(query), module.k_proj(key), module.v_proj(key)
            d, mask = module.head_dim, given.get("attn_mask")
            found[name] = []
            for head in range(module.num_heads):
                rows = slice(head * d, (head + 1) * d)
                logits = q[:, rows] @ k[:, rows].T / math.sqrt(d)
                logits = logits if mask is None else logits + mask
                found[name].append(logits.softmax(dim=-1) @ v[:, rows])

        return hook

    hooks = [
        group.module.register_forward_hook(compute(group.name), with_kwargs=True)
        for group in find_heads(model)
    ]
    with torch.no_grad():
        zoo.run(model, backbone, [SOURCES[index]], [TARGETS[index]])
    for hook in hooks:
        hook.remove()
    return found


@plain_and_ours
@every_backbone
def test_dist_is_the_mean_over_pairs_of_heads_and_real_tokens(backbone: str, suffix: str) -> None:
    """A padded batch against sentences alone, token by token, pair by pair."""
    distances: dict[str, list[float]] = {}
    reference = build(backbone)
    for index in range(len(SOURCES)):
        for name, z in lone_features(reference, backbone, index).items():
            for token in range(len(z[0])):
                for i in range(len(z)):
                    for j in range(i):
                        norm = (z[i][token] - z[j][token]).pow(2).sum().sqrt().item()
                        distances.setdefault(name, []).append(norm)
    model = show_heads(build(f"{backbone}{suffix}"))
    groups = find_heads(model)
    with torch.no_grad():
        found = head_distances(groups, lambda: run(model, backbone))
    expected = [sum(distances[x.name]) / len(distances[x.name]) for x in groups]
    # fairseq's cross-attention has its softmax in fp32, whatever the model's precision.
    assert found == pytest.approx(expected, rel=1e-7)


@every_backbone
def test_showing_the_heads_changes_no_output(backbone: str) -> None:
    plain, shown = build(backbone), show_heads(build(backbone))
    torch.testing.assert_close(run(shown, backbone), run(plain, backbone), rtol=0, atol=1e-6)
    assert list(shown.state_dict()) == list(plain.state_dict())


def test_a_single_head_has_no_dist() -> None:
    model = show_heads(zoo.build("roberta", encoder_attention_heads=1).eval())
    assert head_distances(find_heads(model), lambda: run(model, "roberta")) == [None] * 3


@plain_and_ours
@every_backbone
def test_masking_zeroes_the_output_of_one_head(backbone: str, suffix: str) -> None:
    """Against a model in which Z_i is set to zero before W_O; in plain fairseq on torch's path."""
    model, reference = build(f"{backbone}{suffix}"), build(f"{backbone}_deterministic")
    whole = run(model, backbone)
    for group, other in zip(find_heads(model), find_heads(reference), strict=True):
        for head in (0, 3):
            d = other.module.head_dim

            def zero(_: nn.Module, args: tuple, columns: slice = slice(head * d, (head + 1) * d)):
                z = args[0].clone()
                z[..., columns] = 0
                return z

            hook = other.module.out_proj.register_forward_pre_hook(zero)
            expected = run(reference, backbone)
            hook.remove()
            with masked_head(group, head):
                found = run(model, backbone)
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
            assert not torch.allclose(found, whole, rtol=0, atol=1e-5)
    assert torch.equal(run(model, backbone), whole)


@pytest.mark.parametrize("cause", [ValueError, KeyboardInterrupt, SystemExit])
def test_weights_are_restored_bit_for_bit_whatever_happens(cause: type[BaseException]) -> None:
    model = zoo.build("transformer")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    groups, calls = find_heads(model), []

    def score() -> float:
        calls.append(0)
        if len(calls) == 4:
            assert any(not torch.equal(model.state_dict()[name], before[name]) for name in before)
            raise cause
        return 0.0

    with pytest.raises(cause):
        head_importances(groups, score, 0.0)
    assert len(calls) == 4
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def cross_entropy(model: nn.Module, backbone: str) -> Callable[[], float]:
    """−CE against the model's own distribution: what is lost is a KL, so it is never negative."""
    with torch.no_grad():
        target = run(model, backbone).softmax(dim=-1)

    @torch.no_grad()
    def score() -> float:
        return (target * run(model, backbone).log_softmax(dim=-1)).sum(dim=-1).mean().item()

    return score


def columns_of(group: HeadGroup) -> Tensor:
    """(C, H, d): W_O by heads, in place."""
    return group.module.out_proj.weight.detach().unflatten(1, (group.num_heads, -1))


@plain_and_ours
def test_unused_heads_cost_nothing_and_the_only_used_one_does(suffix: str) -> None:
    model = build(f"transformer{suffix}")
    groups = find_heads(model)
    for index, group in enumerate(groups):
        for head in range(group.num_heads):
            if (index, head) != (4, 2):
                columns_of(group)[:, head] = 0
    score = cross_entropy(model, "transformer")
    found = head_importances(groups, score, score())
    assert found[4][2] > 1e-6
    found[4][2] = 0.0
    assert found == [[0.0] * 4] * len(groups)  # exactly


@every_backbone
def test_permuting_heads_permutes_importance_and_keeps_dist(backbone: str) -> None:
    model = show_heads(build(backbone))
    groups, order = find_heads(model), [2, 0, 3, 1]
    score = cross_entropy(model, backbone)
    dist = head_distances(groups, score)
    before = head_importances(groups, score, score())
    with torch.no_grad():
        for group in groups:
            for parameter in (x for found in group.parameters.values() for x in found):
                rows = by_head(parameter, group.num_heads)
                rows.copy_(rows[order])
            columns_of(group).copy_(columns_of(group)[:, order])
    after = head_importances(groups, score, score())
    assert head_distances(groups, score) == pytest.approx(dist, rel=1e-9)
    for one, other in zip(before, after, strict=True):
        assert other == pytest.approx([one[i] for i in order], abs=1e-12)
        assert len(set(one)) == 4


class Pooling(nn.Module):
    """Heads of a sentence, as in Lin et al. 2017: one feature each."""

    def __init__(self, flat: bool, with_weights: bool) -> None:
        super().__init__()
        self.num_heads, self.flat, self.with_weights = 3, flat, with_weights
        self.scores = nn.Linear(5, 3)

    def head_parameters(self) -> dict[str, list[nn.Parameter]]:
        return {"v": list(self.scores.parameters())}

    def forward(self, hidden: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        weights = self.scores(hidden).softmax(dim=1)  # (B, T, H)
        z = torch.einsum("bth,btd->bhd", weights, hidden)
        z = z.flatten(1) if self.flat else z
        return (z, weights) if self.with_weights else z


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("with_weights", [False, True])
def test_a_module_with_heads_of_its_own_takes_part(flat: bool, with_weights: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Pooling(flat, with_weights)).double()
    hidden = torch.randn(4, 7, 5, dtype=torch.double)

    def features() -> Tensor:
        out = model(hidden)
        return (out[0] if with_weights else out).reshape(4, 3, 5)

    (group,) = find_heads(model)
    z = features()
    pairs = [(z[:, i] - z[:, j]).norm(dim=-1).mean().item() for i, j in ((0, 1), (0, 2), (1, 2))]
    assert head_distances([group], features) == [pytest.approx(sum(pairs) / 3)]
    with masked_head(group, 1):
        masked = features()
    assert torch.equal(masked[:, 1], torch.zeros(4, 5))
    assert torch.equal(masked[:, [0, 2]], z[:, [0, 2]])
    assert torch.equal(features(), z)


def test_no_bin_holds_both_gains_and_losses() -> None:
    for values in ([-0.3, 0.1, 2.0], [0.5, 1.0], [-1.0, -0.2], [0.0, 0.0]):
        edges = bin_edges(values)
        assert 0.0 in edges
        assert np.histogram(values, edges)[0].sum() == len(values)
        assert np.allclose(np.diff(edges), edges[1] - edges[0])


def test_every_pass_sees_the_same_random_numbers() -> None:
    """So that masking an unused head of a stochastic model still costs exactly nothing."""

    def valid_step(*_: object) -> tuple[None, int, dict[str, Tensor]]:
        return None, 1, {"loss": torch.rand(())}

    task = SimpleNamespace(valid_step=valid_step)
    batches = [{}, {}]
    first, again, other = (
        Evaluation(nn.Module(), task, nn.Module(), batches, seed, cuda=False).loss()
        for seed in (3, 3, 4)
    )
    assert first == again != other


# The command.


@pytest.fixture(scope="module")
def trained(translation_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    flags = ("--arch", "transformer", *sizes.TRANSFORMER, "--dropout", 0, "--max-epoch", 15)
    commands.train(translation_data, folder, *flags, user_dir=None)
    return folder / "checkpoint_last.pt"


def heads(checkpoint: Path, data: Path, *more: object) -> int:
    return heads_command.main([str(x) for x in (checkpoint, data, "--cpu", *more)])


def measured(checkpoint: Path, data: Path, *more: object) -> dict:
    out = checkpoint.parent / "heads.json"
    assert heads(checkpoint, data, "--json", out, *more) == 0
    return json.loads(out.read_text())


def generated_bleu(data: Path, checkpoint: Path) -> float:
    flags = ("--gen-subset", "valid", "--beam", 3, "--scoring", "sacrebleu")
    text = commands.generate(data, checkpoint, *flags).text
    return float(re.search(r"BLEU = ([\d.]+)", text).group(1))


def test_bleu_is_what_fairseq_generate_finds_without_the_head(
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


PER_SENTENCE = ("--criterion", "elbo", "--sentence-avg")  # here nll_loss is the one per token
LIVES = {
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


@pytest.mark.parametrize("arch", LIVES)
def test_loss_is_what_fairseq_validates(
    arch: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Every task, plain and ours; and the JSON holds what is promised."""
    fixture, flags, logged, sites = LIVES[arch]
    data = request.getfixturevalue(fixture)
    output = commands.train(data, tmp_path, "--arch", arch, *flags, "--max-epoch", 1)
    found = measured(tmp_path / "checkpoint_last.pt", data, "--tolerance", 0.01)
    assert set(found) == {"data", "subset", "tolerance", "models"}
    assert (found["data"], found["subset"], found["tolerance"]) == (str(data), "valid", 0.01)
    (model,) = found["models"]
    expected = float(output.stats["valid"][-1][f"valid_{logged}"])
    assert model["score"] == pytest.approx(expected, abs=0.0011)  # the log has three decimals
    assert (model["metric"], model["unit"], model["signature"]) == ("loss", "bits per target", None)
    assert model["checkpoint"] == str(tmp_path / "checkpoint_last.pt")
    assert model["sentences"] > 0
    layers = model["layers"]
    assert [(x["site"], x["layer"]) for x in layers] == [(s, i) for s in sites for i in (0, 1)]
    assert all(set(x) == {"site", "layer", "name", "dist", "importance"} for x in layers)
    drops = [value for layer in layers for value in layer["importance"]]
    assert len(drops) == model["heads"] == 4 * len(sites)
    assert any(drops)
    assert model["harmless_heads"] == sum(drop <= 0.01 for drop in drops)
    by_site = [sum(x["dist"] for x in layers if x["site"] == site) / 2 for site in sites]
    assert list(model["dist_by_site"].values()) == pytest.approx(by_site)
    assert model["dist"] == pytest.approx(sum(by_site) / len(sites))
    assert model["dist"] > 0


def test_limit_takes_the_first_sentences_of_the_corpus(
    trained: Path, translation_data: Path
) -> None:
    """And batches of any size give the same numbers."""
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


def test_two_models_stand_side_by_side(
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
    drop = first["layers"][0]["importance"][1]
    assert re.search(rf"^encoder +0  A +[\d.]+ .*\{drop:+.4f}$", table, re.MULTILINE)
    assert re.search(r"^encoder +0  B +[\d.]+ +\+0\.0000 ", table, re.MULTILINE)
    assert f"B {other}: loss {second['score']:.4f} bits per target, 40 sentences" in table
    assert "1 of 8 heads (12%) cost nothing when masked alone" in table


def test_the_picture_is_drawn(trained: Path, translation_data: Path, tmp_path: Path) -> None:
    for name in ("heads.png", "heads.svg"):
        heads(trained, translation_data, "--limit", 3, "--plot", tmp_path / name)
    pixels = pictures.imread(tmp_path / "heads.png")[..., :3]
    assert min(pixels.shape[:2]) > 400
    assert 0.05 < (pixels.min(axis=-1) < 0.95).mean() < 0.7
    text = (tmp_path / "heads.svg").read_text()
    for label in ("number of heads", "rise of loss (bits per target)", "layer", "cross attention"):
        assert f"<!-- {label}" in text


def test_bad_input_is_one_line_before_anything_is_written(
    trained: Path, translation_data: Path, lm_data: Path, tmp_path: Path
) -> None:
    no_file = tmp_path / "no.pt"
    (tmp_path / "weights.pt").write_bytes(b"")
    torch.save({"weight": torch.zeros(2)}, tmp_path / "weights.pt")
    plot, out = tmp_path / "heads.png", tmp_path / "heads.json"
    for checkpoint, data, flags, cause in (
        (no_file, translation_data, (), "no.pt does not exist"),
        (trained, translation_data, ("--compare", no_file), "no.pt does not exist"),
        (tmp_path / "weights.pt", translation_data, (), "weights.pt is no fairseq checkpoint"),
        (trained, tmp_path / "nowhere", (), "nowhere does not exist"),
        (trained, lm_data, (), "does not fit the data in"),
        (trained, translation_data, ("--subset", "dev"), "no dev set in"),
        (trained, translation_data, ("--sites", "mind"), "--sites: no site 'mind'"),
        (trained, translation_data, ("--layers", "7"), "--layers: layer 7 is out of range"),
        (trained, translation_data, ("--limit", 0), "--limit must be positive"),
        (trained, translation_data, ("--tolerance", -1), "--tolerance must not be negative"),
        (trained, translation_data, ("--plot", "heads.gif"), "must end in .png, .svg, .pdf"),
        (trained, translation_data, ("--json", tmp_path / "x" / "y"), "an existing directory"),
    ):
        with pytest.raises(UsageError, match=re.escape(cause)) as caught:
            heads(checkpoint, data, "--plot", plot, "--json", out, *flags)
        assert "\n" not in str(caught.value)
    assert not plot.exists()
    assert not out.exists()


def test_what_has_no_heads_or_no_bleu_says_so(
    translation_data: Path, lm_data: Path, tmp_path: Path
) -> None:
    update = ("--max-update", 1)
    commands.train(translation_data, tmp_path / "lstm", "--arch", "lstm", *sizes.LSTM, *update)
    with pytest.raises(UsageError, match="this model has no attention with heads"):
        heads(tmp_path / "lstm" / "checkpoint_last.pt", translation_data)
    arch = ("--arch", "transformer_lm", *sizes.TRANSFORMER_LM)
    commands.train(lm_data, tmp_path / "lm", *arch, *update)
    with pytest.raises(UsageError, match="BLEU is for translation, not for a LanguageModeling"):
        heads(tmp_path / "lm" / "checkpoint_last.pt", lm_data, "--metric", "bleu")


def test_without_matplotlib_a_hint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'fairseq_stochattn\[analysis\]'"):
        heads(tmp_path, tmp_path, "--plot", tmp_path / "heads.png")
