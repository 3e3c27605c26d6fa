"""stochattn-generate: the lines of fairseq-generate, and correct spreads in the U- lines."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch

import runner
import sizes
import zoo
from fairseq_stochattn.analysis.output_scores import Spread, score_outputs
from fairseq_stochattn.commands import generate
from fairseq_stochattn.compat import UsageError
from fairseq_stochattn.core.errors import InputError
from fairseq_stochattn.uncertainty import sampling
from fairseq_stochattn.uncertainty.sampling import sampled_attention

SIZES = {"transformer": sizes.TRANSFORMER, "lstm": sizes.LSTM}


@pytest.fixture(scope="module", params=["transformer", "lstm"])
def trained(
    request: pytest.FixtureRequest, translation_data: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Train a model with BABN attention and return its checkpoint."""
    folder = tmp_path_factory.mktemp(request.param)
    arch = ("--arch", f"{request.param}_babn", *SIZES[request.param], "--dropout", 0)
    runner.train(translation_data, folder, *arch, "--criterion", "elbo", "--max-epoch", 3)
    return folder / "checkpoint_best.pt"


def run(data: Path, checkpoint: Path, *more: object) -> runner.Output:
    common = ("--user-dir", runner.USER_DIR, "--cpu", "--num-workers", 0, "--batch-size", 16)
    return runner._call(generate.main, data, "--path", checkpoint, *common, *more)


def lines(output: runner.Output, letter: str) -> list[list[str]]:
    """Return the fields of all lines that start with the letter."""
    return [x.split("\t") for x in re.findall(rf"^{letter}-.*$", output.text, re.MULTILINE)]


def test_u_lines_follow_the_lines_of_fairseq_generate(
    trained: Path, translation_data: Path
) -> None:
    plain = runner.generate(translation_data, trained, "--beam", 4, "--nbest", 2)
    ours = run(translation_data, trained, "--beam", 4, "--nbest", 2, "--samples", 5)
    for letter in "HDPT":
        assert lines(ours, letter) == lines(plain, letter)
    assert re.search("Generate .*", ours.text).group(0) == re.search(
        "Generate .*", plain.text
    ).group(0)
    spreads, scores = lines(ours, "U"), lines(ours, "P")
    assert len(spreads) == 2 * 40
    for (number, mean, spread, tokens), (_, positional) in zip(spreads, scores, strict=True):
        assert number.startswith("U-")
        assert len(tokens.split()) == len(positional.split())
        assert float(mean) < 0 < float(spread)
        # The scores of the samples scatter around the score with mean attention.
        total = sum(map(float, positional.split()))
        assert abs(float(mean) - total) < 6 * float(spread) + 0.3 * abs(total) + 0.5
    order = [x[:2] for x in re.findall(r"^[HDPU]-", ours.text, re.MULTILINE)]
    assert order == ["H-", "D-", "P-", "U-"] * 80


@pytest.mark.parametrize("flags", [(), ("--user-dir", runner.USER_DIR)], ids=["alone", "user-dir"])
def test_the_installed_command(flags: tuple, trained: Path, translation_data: Path) -> None:
    """In a new process, the archs are registered with and without --user-dir."""
    common = ("--path", trained, "--cpu", "--num-workers", 0, "--samples", 2)
    result = runner.run("stochattn-generate", translation_data, *common, *flags)
    assert result.returncode == 0, result.stderr[-2000:]
    assert len(re.findall(r"^U-", result.stdout, re.MULTILINE)) == 40


def test_samples_follow_the_seed(trained: Path, translation_data: Path) -> None:
    first, again, other = (
        lines(run(translation_data, trained, "--samples", 3, "--seed", seed), "U")
        for seed in (1, 1, 2)
    )
    assert first == again != other


@pytest.fixture
def batch() -> tuple[dict[str, torch.Tensor], list[tuple[int, torch.Tensor]]]:
    """Return the inputs of a batch and outputs to score, as (row, tokens)."""
    sources, targets = zoo.sentences(9, 7, 4), zoo.sentences(8, 5, 3, seed=1)
    tokens = zoo.pad(sources, left=True)
    net_input = {"src_tokens": tokens, "src_lengths": torch.tensor([9, 7, 4])}
    return net_input, [(0, targets[0]), (0, targets[1]), (2, targets[2])]


@pytest.mark.parametrize("arch", ["transformer_babn", "lstm_bam"])
def test_batched_samples_have_the_distribution_of_single_passes(arch: str, batch: tuple) -> None:
    """Mean and spread of batched copies equal those of a loop of single passes, within 5 σ."""
    net_input, outputs = batch
    k = {"bam_k": 2.0} if "bam" in arch else {}
    model = zoo.build(arch, **k).eval()
    torch.manual_seed(1)
    count = 400
    batched = score_outputs([model], net_input, outputs, count, zoo.PAD, zoo.EOS, 5000)
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
    for spread, scores in zip(batched, map(torch.tensor, loop), strict=True):
        assert spread.tokens.shape[0] == count
        error = scores.std().item() * math.sqrt(2 / count)
        assert abs(spread.mean - scores.mean().item()) < 5 * error
        assert spread.std == pytest.approx(scores.std().item(), rel=0.25)


def test_without_sampling_the_scores_equal_those_of_the_search(
    trained: Path, translation_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mean is the sum of the P- line and the spread is 0, for any size of the passes."""
    monkeypatch.setattr(sampling.AttentionMethod, "stochastic", property(lambda self: False))
    for max_tokens in (20, 4000):
        output = run(translation_data, trained, "--samples", 3, "--max-tokens", max_tokens)
        for (_, mean, spread, _), (_, positional) in zip(
            lines(output, "U"), lines(output, "P"), strict=True
        ):
            assert float(mean) == pytest.approx(sum(map(float, positional.split())), abs=2e-3)
            assert float(spread) < 1e-3


def test_an_ensemble_averages_probabilities(batch: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_plain_attention_cannot_be_sampled(batch: tuple) -> None:
    model = zoo.build("transformer_deterministic").eval()
    with pytest.raises(InputError, match="attention is not random"):
        score_outputs([model], *batch, 2, zoo.PAD, zoo.EOS, 100)


def test_samples_must_be_positive() -> None:
    with pytest.raises(UsageError, match="--samples must be at least 1"):
        generate.main(["data", "--samples", "0"])
