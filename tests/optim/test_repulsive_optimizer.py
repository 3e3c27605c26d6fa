"""The repulsive optimizer through fairseq's own commands: bases, precisions, ranks, resuming."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import runner
import sizes
from launch import HYDRA, TRANSFORMER
from precision import PRECISIONS, distance, one_length, weights
from repulsive_heads import is_head

MODEL = (
    *(*sizes.TRANSFORMER, "--encoder-attention-heads", 4, "--decoder-attention-heads", 4),
    *("--arch", "transformer", "--dropout", 0, "--max-update", 3),
)
REPULSIVE = ("--optimizer", "repulsive", "--repulsive-rule", "svgd", "--repulsive-base")
# Large enough to matter beside the gradients of these tests, which are large.
STRONG = ("--repulsive-weight", 5)
SGD = (*MODEL, *REPULSIVE, "sgd", *STRONG, "--lr", 0.5)
SPOS = ("--repulsive-rule", "spos", "--repulsive-beta", 1e4)
DIRECTIONS = ("--repulsive-rule", "directions", "--repulsive-strength", 1)


def state(folder: Path) -> dict:
    return torch.load(folder / "checkpoint_last.pt", weights_only=True)


def tensors(value: object) -> list[Tensor]:
    """Every tensor of a nested state, in order."""
    if isinstance(value, dict):
        return [x for key in sorted(value, key=str) for x in tensors(value[key])]
    if isinstance(value, (list, tuple)):
        return [x for entry in value for x in tensors(entry)]
    return [value] if isinstance(value, Tensor) else []


def assert_equal_runs(first: Path, second: Path) -> None:
    """Model and optimizer state are equal bit for bit."""
    for part in ("model", "last_optimizer_state"):
        one, other = (tensors(state(folder)[part]) for folder in (first, second))
        assert len(one) == len(other) > 0
        assert all(torch.equal(*pair) for pair in zip(one, other, strict=True))


BASES = {
    "adam": ("adam", "--adam-betas", "(0.9, 0.98)"),
    "adamw": ("adam", "--weight-decay", 0.1),
    "sgd": ("sgd", "--lr", 0.5, "--momentum", 0.5),
    "adafactor": ("adafactor", "--decay-rate", -0.7),
    "fused_adamw": ("fused_adamw", "--weight-decay", 0.1),
}


@pytest.mark.parametrize(
    ("base", "arch"),
    [
        ("adam", "transformer"),
        ("adamw", "transformer_deterministic"),
        ("sgd", "transformer"),
        ("adafactor", "transformer_deterministic"),
        ("fused_adamw", "transformer"),
    ],
)
def test_every_base_trains_and_is_unchanged_before_the_start(
    base: str, arch: str, translation_data: Path, tmp_path: Path
) -> None:
    flags = (*MODEL, "--arch", arch, "--clip-norm", 1.0)
    runner.train(translation_data, tmp_path / "base", *flags, "--optimizer", *BASES[base])
    ours = (*flags, *REPULSIVE, *BASES[base])
    runner.train(translation_data, tmp_path / "idle", *ours, "--repulsive-start", 3)
    assert_equal_runs(tmp_path / "base", tmp_path / "idle")
    output = runner.train(translation_data, tmp_path / "ours", *ours)
    assert output.losses()[-1] < output.losses()[0]
    assert distance(tmp_path / "ours", tmp_path / "base") > 1e-4


def test_heads_move_apart(translation_data: Path, tmp_path: Path) -> None:
    """After some updates the heads are farther apart than without repulsion."""

    def spread(folder: Path) -> float:
        heads = [x.view(4, -1) for name, x in weights(folder).items() if is_head(name)]
        return sum(torch.pdist(x).mean().item() for x in heads)

    for name, weight in (("none", 0), ("some", 100)):
        flags = (*SGD, "--max-update", 8, "--repulsive-weight", weight)
        runner.train(translation_data, tmp_path / name, *flags)
    assert spread(tmp_path / "some") > 1.02 * spread(tmp_path / "none")


@pytest.mark.parametrize(
    ("base", "rule"), [("adam", SPOS), ("fused_adamw", SPOS), ("adam", DIRECTIONS)]
)
def test_resuming_is_exact(base: str, rule: tuple, translation_data: Path, tmp_path: Path) -> None:
    """With noise or decoupled repulsion, and a scheduled learning rate."""
    schedule = ("--lr-scheduler", "inverse_sqrt", "--warmup-updates", 2, "--warmup-init-lr", 0)
    flags = (*MODEL, *REPULSIVE, base, *STRONG, *rule, *schedule)
    whole = runner.train(translation_data, tmp_path / "whole", *flags, "--max-update", 4)
    rates = [float(row["lr"]) for row in whole.stats["train_inner"]]
    assert rates == pytest.approx(
        [0.0025, 0.005, 0.005 * (2 / 3) ** 0.5, 0.005 * 0.5**0.5], rel=1e-5
    )
    runner.train(translation_data, tmp_path / "parts", *flags, "--max-update", 2)
    assert distance(tmp_path / "parts", tmp_path / "whole") > 1e-4
    runner.train(translation_data, tmp_path / "parts", *flags, "--max-update", 4)
    assert_equal_runs(tmp_path / "parts", tmp_path / "whole")


def test_a_run_of_the_base_continues_with_repulsion_and_back(
    translation_data: Path, tmp_path: Path
) -> None:
    plain = (*MODEL, "--optimizer", "adam")
    ours = (*MODEL, *REPULSIVE, "adam")
    for until, flags in ((1, plain), (2, ours), (3, plain)):
        output = runner.train(translation_data, tmp_path, *flags, "--max-update", until)
        assert len(output.losses()) == 1
    step = state(tmp_path)["last_optimizer_state"]["state"][0]["step"]
    assert step == 3


def test_accumulation_equals_one_double_batch(translation_data: Path, tmp_path: Path) -> None:
    data = one_length(translation_data, tmp_path)
    flags = (*SGD, *SPOS, "--max-tokens", 1000, "--required-batch-size-multiple", 1)
    runner.train(data, tmp_path / "whole", *flags, "--batch-size", 64)
    halves = ("--batch-size", 32, "--update-freq", 2)
    runner.train(data, tmp_path / "halves", *flags, *halves)
    assert distance(tmp_path / "whole", tmp_path / "halves") < 1e-5


SPY = """
import torch
import fairseq_stochattn.models

plain = torch.Tensor.normal_

def normal_(self, *args, generator=None, **kwargs):
    out = plain(self, *args, generator=generator, **kwargs)
    if generator is not None:  # the optimizer's noise; fairseq uses the global generator
        print("noise", self.double().sum().item().hex(), flush=True)
    return out

torch.Tensor.normal_ = normal_
"""


def test_two_ranks_equal_one_process(
    translation_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The noise is equal bit for bit, the parameters up to the order of sums."""
    data = one_length(translation_data, tmp_path)
    spy = tmp_path / "spying_plugin"
    spy.mkdir()
    (spy / "__init__.py").write_text(SPY)
    flags = (*SGD, *SPOS, "--max-tokens", 1000, "--required-batch-size-multiple", 1)
    monkeypatch.setattr(torch.Tensor, "normal_", torch.Tensor.normal_)  # restored afterwards
    one = runner.train(
        data, tmp_path / "one", *flags, "--batch-size", 64, user_dir=spy
    ).text.splitlines()
    two = runner.train_on_two_ranks(
        data, tmp_path / "two", *flags, "--batch-size", 32, user_dir=spy
    )
    expected = [line for line in one if line.startswith("noise")]
    assert len(expected) == len(set(expected)) >= 3  # new noise in every update
    for rank in two:
        assert [x for x in rank.stdout.splitlines() if x.startswith("noise")] == expected
    assert distance(tmp_path / "one", tmp_path / "two") < 1e-5


# fairseq has no memory-efficient sgd; nag without momentum is the same.
NAG = ("nag", "--momentum", 0, "--lr", 0.5, "--max-update", 1)
ONE_UPDATE = (*MODEL, *REPULSIVE, *NAG, *STRONG, *SPOS)


@pytest.fixture(scope="module")
def full_precision(
    translation_data: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[runner.Output, Path]:
    """The output of one update in fp32, and the folder with the parameters before and after."""
    folder = tmp_path_factory.mktemp("full-precision")
    runner.train(translation_data, folder / "start", *ONE_UPDATE, "--lr", 0)
    return runner.train(translation_data, folder / "end", *ONE_UPDATE), folder


@pytest.mark.parametrize("precision", PRECISIONS)
def test_reduced_precision(
    precision: str,
    full_precision: tuple[runner.Output, Path],
    translation_data: Path,
    tmp_path: Path,
) -> None:
    """Heads move as in fp32, so repulsion and noise are not scaled with the loss; all other
    parameters move as with the base alone."""
    full, folder = full_precision
    flags = (*PRECISIONS[precision], "--fp16-init-scale", 4)
    reduced = runner.train(translation_data, tmp_path / "reduced", *ONE_UPDATE, *flags)
    runner.train(translation_data, tmp_path / "plain", *MODEL, "--optimizer", *NAG, *flags)
    for measure in ("loss", "gnorm"):
        one, other = (float(run.stats["train_inner"][0][measure]) for run in (full, reduced))
        assert other == pytest.approx(one, rel=0.01)
    start, end = weights(folder / "start"), weights(folder / "end")
    found, plain = weights(tmp_path / "reduced"), weights(tmp_path / "plain")
    for name, value in found.items():
        if not is_head(name):
            assert torch.equal(value, plain[name]), name
            continue
        assert not torch.equal(value, plain[name]), name
        move, expected = value - start[name], end[name] - start[name]
        assert (move - expected).norm() < 0.02 * expected.norm(), name


@pytest.mark.parametrize("precision", ["fp16", "memory-efficient-fp16"])
def test_overflow_is_still_detected(
    precision: str, translation_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss scale that overflows is halved until it does not, and the update is taken then."""
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self)  # called after an overflow
    flags = (*MODEL, *REPULSIVE, "adam", *PRECISIONS[precision], "--fp16-init-scale", 2**16)
    output = runner.train(translation_data, tmp_path, *flags, "--max-update", 2)
    assert "gradient overflow detected" in output.text
    assert float(output.stats["train_inner"][-1]["loss_scale"]) < 2**16
    assert all(value.isfinite().all() for value in weights(tmp_path).values())


@pytest.mark.parametrize("precision", PRECISIONS)
def test_heads_turn_in_reduced_precision(
    precision: str, translation_data: Path, tmp_path: Path
) -> None:
    """Decoupled repulsion moves the heads as in fp32."""
    flags = (*MODEL, *REPULSIVE, *NAG, *DIRECTIONS, "--fp16-init-scale", 4)
    runner.train(translation_data, tmp_path / "start", *flags, "--lr", 0)
    runner.train(translation_data, tmp_path / "full", *flags)
    runner.train(translation_data, tmp_path / "reduced", *flags, *PRECISIONS[precision])
    start, full, reduced = (weights(tmp_path / name) for name in ("start", "full", "reduced"))
    for name in (name for name in full if is_head(name) and name.endswith("weight")):
        move, expected = reduced[name] - start[name], full[name] - start[name]
        assert (move - expected).norm() < 0.05 * expected.norm(), name


def test_the_optimizer_composes_with_methods(translation_data: Path, tmp_path: Path) -> None:
    """A method on the logits, a loss and a change of the gradient in one run."""
    flags = (*MODEL, "--arch", "transformer_babn", "--alignment", "ct", "--criterion", "elbo")
    output = runner.train(translation_data, tmp_path, *flags, *REPULSIVE, "adam")
    assert {"kl", "align"} <= output.stats["train_inner"][-1].keys()
    assert output.losses()[-1] < output.losses()[0]


def test_hydra(translation_data: Path, tmp_path: Path) -> None:
    config = HYDRA.format(
        user_dir=runner.USER_DIR,
        task="translation",
        data=translation_data,
        save=tmp_path / "run",
        model=TRANSFORMER,
    )
    ours = "_name: repulsive\n  repulsive_base: nag\n  momentum: 0.5\n  repulsive_rule: spos"
    (tmp_path / "tiny.yaml").write_text(config.replace("_name: adam", ours))
    result = runner.run(
        "fairseq-hydra-train", "--config-dir", tmp_path, "--config-name", "tiny", cwd=tmp_path
    )
    assert result.returncode == 0, result.stderr[-3000:]
    stored = state(tmp_path / "run")
    assert stored["cfg"]["optimizer"]["repulsive_rule"] == "spos"
    (group,) = stored["last_optimizer_state"]["param_groups"]
    assert (group["momentum"], group["lr"]) == (0.5, 0.005)


def test_fused_adamw_is_adam(translation_data: Path, tmp_path: Path) -> None:
    flags = (*MODEL, "--weight-decay", 0.1, "--adam-eps", 1e-12, "--optimizer")
    for name in ("adam", "fused_adamw"):
        runner.train(translation_data, tmp_path / name, *flags, name)
    # Adam divides by gradients that may be rounding errors, so a few parameters differ.
    one, other = (weights(tmp_path / name) for name in ("adam", "fused_adamw"))
    difference = torch.cat([(one[name] - other[name]).flatten().abs() for name in one])
    assert difference.quantile(0.99) < 1e-5
    half = (*flags, "fused_adamw", *PRECISIONS["fp16"], "--fp16-init-scale", 4)
    output = runner.train(translation_data, tmp_path / "half", *half)
    assert output.losses()[-1] < output.losses()[0]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--fp16",), "--fp16 flattens the parameters.* add --fp16-no-flatten-grads"),
        (("--repulsive-sites", "encoder,self"), "--repulsive-sites: unknown site 'self'"),
    ],
)
def test_bad_flags_are_refused_before_training(
    flags: tuple, message: str, translation_data: Path, tmp_path: Path
) -> None:
    with pytest.raises(SystemExit, match=message):
        runner.train(translation_data, tmp_path, *MODEL, *REPULSIVE, "adam", *flags)
    assert not list(tmp_path.glob("*.pt"))


def test_unknown_rules_are_refused(
    translation_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    with pytest.raises(SystemExit):
        runner.train(translation_data, tmp_path, *SGD, "--repulsive-rule", "hmc")
    assert "--repulsive-rule: invalid choice: 'hmc'" in capsys.readouterr().err
