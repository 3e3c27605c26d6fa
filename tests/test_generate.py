"""stochattn-generate: fairseq-generate's lines, and true spreads under sampled attention."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils

import commands
import sizes
import zoo
from fairseq_stochattn import generate, sampling
from fairseq_stochattn.errors import UsageError
from fairseq_stochattn.sampling import Spread, sampled_attention, score_outputs

SIZES = {"transformer": sizes.TRANSFORMER, "lstm": sizes.LSTM}


@pytest.fixture(scope="module", params=["transformer", "lstm"])
def trained(
    request: pytest.FixtureRequest, translation_data: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    arch = ("--arch", f"{request.param}_babn", *SIZES[request.param], "--dropout", 0)
    commands.train(translation_data, folder, *arch, "--criterion", "elbo", "--max-epoch", 3)
    return folder / "checkpoint_best.pt"


def run(data: Path, checkpoint: Path, *more: object) -> commands.Output:
    common = ("--user-dir", commands.USER_DIR, "--cpu", "--num-workers", 0, "--batch-size", 16)
    return commands._call(generate.main, data, "--path", checkpoint, *common, *more)


def lines(output: commands.Output, letter: str) -> list[list[str]]:
    return [x.split("\t") for x in re.findall(rf"^{letter}-.*$", output.text, re.MULTILINE)]


def test_lines_stand_beside_fairseqs(trained: Path, translation_data: Path) -> None:
    plain = commands.generate(translation_data, trained, "--beam", 4, "--nbest", 2)
    ours = run(translation_data, trained, "--beam", 4, "--nbest", 2, "--samples", 5)
    for letter in "HDPT":
        assert lines(ours, letter) == lines(plain, letter)
    assert re.search("Generate .*", ours.text).group(0) == re.search(
        "Generate .*", plain.text
    ).group(0)
    found, scores = lines(ours, "U"), lines(ours, "P")
    assert len(found) == 2 * 40
    for (number, mean, spread, tokens), (_, positional) in zip(found, scores, strict=True):
        assert number.startswith("U-")
        assert len(tokens.split()) == len(positional.split())
        assert float(mean) < 0 < float(spread)
        # The samples scatter around the mean attention's score.
        total = sum(map(float, positional.split()))
        assert abs(float(mean) - total) < 6 * float(spread) + 0.3 * abs(total) + 0.5
    order = [x[:2] for x in re.findall(r"^[HDPU]-", ours.text, re.MULTILINE)]
    assert order == ["H-", "D-", "P-", "U-"] * 80


def test_the_seed_decides(trained: Path, translation_data: Path) -> None:
    first, again, other = (
        lines(run(translation_data, trained, "--samples", 3, "--seed", seed), "U")
        for seed in (1, 1, 2)
    )
    assert first == again != other


def load(trained: Path):
    models, _, task = checkpoint_utils.load_model_ensemble_and_task([str(trained)])
    return models[0].eval(), task


@pytest.fixture
def batch():
    sources, targets = zoo.sentences(9, 7, 4), zoo.sentences(8, 5, 3, seed=1)
    tokens = zoo.pad(sources, left=True)
    net_input = {"src_tokens": tokens, "src_lengths": torch.tensor([9, 7, 4])}
    return net_input, [(0, targets[0]), (0, targets[1]), (2, targets[2])]


@pytest.mark.parametrize("arch", ["transformer_babn", "lstm_bam"])
def test_spread_is_that_of_single_passes(arch: str, batch) -> None:
    """Batched copies against a loop of single passes: same mean and spread, within 5 σ."""
    net_input, outputs = batch
    k = {"bam_k": 2.0} if "bam" in arch else {}
    model = zoo.build(arch, **k).eval()
    torch.manual_seed(1)
    count = 400
    together = score_outputs([model], net_input, outputs, count, zoo.PAD, zoo.EOS, 5000)
    loop: list[list[float]] = [[] for _ in outputs]
    with torch.no_grad(), sampled_attention([model]):
        for _ in range(count):
            for index, (row, tokens) in enumerate(outputs):
                source = net_input["src_tokens"][row]
                source = source[source.ne(zoo.PAD)].unsqueeze(0)
                previous = zoo.shift([tokens])[0].unsqueeze(0)
                out = model(source, torch.tensor([source.size(1)]), previous)
                scores = model.get_normalized_probs(out, log_probs=True)[0]
                loop[index].append(scores.gather(1, tokens[:, None]).sum().item())
    for spread, scores in zip(together, map(torch.tensor, loop), strict=True):
        assert spread.tokens.shape[0] == count
        error = scores.std().item() * math.sqrt(2 / count)
        assert abs(spread.mean - scores.mean().item()) < 5 * error
        assert spread.std == pytest.approx(scores.std().item(), rel=0.25)


def test_without_noise_the_scores_are_the_searchs(
    trained: Path, translation_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No sampling, same pass: U- shows the sum of P- and no spread, whatever the chunking."""
    monkeypatch.setattr(sampling.AttentionMethod, "stochastic", property(lambda self: False))
    for budget in (20, 4000):
        found = run(translation_data, trained, "--samples", 3, "--max-tokens", budget)
        for (_, mean, spread, _), (_, positional) in zip(
            lines(found, "U"), lines(found, "P"), strict=True
        ):
            assert float(mean) == pytest.approx(sum(map(float, positional.split())), abs=2e-3)
            assert float(spread) < 1e-3


def test_an_ensemble_averages_probabilities(batch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling.AttentionMethod, "stochastic", property(lambda self: False))
    net_input, outputs = batch
    models = [zoo.build("transformer_babn", seed=seed).eval() for seed in (1, 2)]
    args = (net_input, outputs, 1, zoo.PAD, zoo.EOS, 5000)
    both = score_outputs(models, *args)
    single = [score_outputs([model], *args) for model in models]
    for spread, one, other in zip(both, *single, strict=True):
        mean = (one.tokens.exp() + other.tokens.exp()) / 2
        torch.testing.assert_close(spread.tokens, mean.log())


def test_one_sample_has_no_spread() -> None:
    spread = Spread(torch.tensor([[-1.0, -2.0]]))
    assert (spread.mean, spread.std, spread.token_std.tolist()) == (-3.0, 0.0, [0.0, 0.0])


def test_nothing_to_sample(batch) -> None:
    model = zoo.build("transformer_deterministic").eval()
    with pytest.raises(UsageError, match="attention is not random"):
        score_outputs([model], *batch, 2, zoo.PAD, zoo.EOS, 100)


def test_samples_must_be_positive() -> None:
    with pytest.raises(UsageError, match="--samples must be at least 1"):
        generate.main(["data", "--samples", "0"])
