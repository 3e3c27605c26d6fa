"""Layer-wise learning-rate decay: the steps of all parameters for each optimizer and precision."""

from __future__ import annotations

import re
from argparse import ArgumentParser, Namespace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fairseq.optim import OPTIMIZER_REGISTRY, build_optimizer
from omegaconf import OmegaConf
from torch import nn

import runner
import sizes
import zoo
from fairseq_stochattn import compat
from fairseq_stochattn.models.layer_decay import apply_factors, factor_of, rates_by_factor
from precision import PRECISIONS

DECAY = 0.5
MODEL = (
    *("--arch", "roberta_deterministic", *sizes.ROBERTA, "--dropout", 0, "--attention-dropout", 0),
    *("--batch-size", 64, "--max-tokens", 4000, "--clip-norm", 0, "--disable-validation"),
)


def expected_factor(name: str, layers: int, decay: float) -> float:
    layer = re.search(r"sentence_encoder\.layers\.(\d+)\.", name)
    if layer:
        return decay ** (layers - 1 - int(layer[1]))
    embeds = "sentence_encoder.embed" in name or "layernorm_embedding" in name
    return decay**layers if embeds or name == "encoder.lm_head.weight" else 1.0


@pytest.mark.parametrize("more", [{}, {"segment_embeddings": 2, "attention": "babn"}])
def test_every_parameter_has_the_factor_of_its_layer(more: dict) -> None:
    """Embeddings have the lowest factor; the top layer, heads and shared parameters have 1."""
    model = zoo.build("roberta_deterministic", layer_lr_decay=0.8, **more)
    model.register_classification_head("mine", num_classes=3)
    factors = {name: factor_of(value) for name, value in model.named_parameters()}
    expected = {name: expected_factor(name, layers=3, decay=0.8) for name in factors}
    assert factors == pytest.approx(expected)
    assert sorted(set(factors.values())) == pytest.approx([0.8**3, 0.8**2, 0.8, 1.0])


def test_without_decay_task_and_parameters_are_unchanged() -> None:
    model = zoo.build("roberta_deterministic")
    task = SimpleNamespace(optimizer_step=print)
    apply_factors(task, model)
    assert task.optimizer_step is print
    assert not any(hasattr(p, "optim_overrides") for p in model.parameters())


def weights(folder: Path) -> dict[str, torch.Tensor]:
    state = compat.load_checkpoint(str(folder / "checkpoint_last.pt"))["model"]
    return {name: value.double() for name, value in state.items()}


CASES = {
    "sgd": ("--optimizer", "sgd", "--lr", 0.5),
    "adam": ("--optimizer", "adam", "--lr", 0.01, "--weight-decay", 0.1),
    **{
        name: ("--optimizer", "adam", "--lr", 0.05, *flags, "--fp16-init-scale", 4)
        for name, flags in PRECISIONS.items()
    },
}


@pytest.fixture(scope="module")
def initial(classification_data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict:
    """The initial weights of all runs in this file."""
    folder = tmp_path_factory.mktemp("initial")
    flags = (*MODEL, *sizes.CLASSIFICATION, "--max-update", 1, "--lr", 0)
    runner.train(classification_data, folder, *flags)
    return weights(folder)


@pytest.mark.parametrize("case", CASES)
def test_first_step_of_every_layer(
    case: str, initial: dict, classification_data: Path, tmp_path: Path
) -> None:
    """The first change Δθ of layer l (of L layers) is decay^(L−l) times Δθ without decay."""
    flags = (*MODEL, *sizes.CLASSIFICATION, *CASES[case], "--max-update", 1)
    runner.train(classification_data, tmp_path / "plain", *flags)
    runner.train(classification_data, tmp_path / "ours", *flags, "--layer-lr-decay", DECAY)
    plain, ours = weights(tmp_path / "plain"), weights(tmp_path / "ours")
    half = case in ("fp16", "memory-efficient-fp16")
    moved = set()
    for name, start in initial.items():
        start = start.half().double() if half else start
        factor = expected_factor(name, layers=2, decay=DECAY)
        step = plain[name] - start
        error = (ours[name] - start - factor * step).abs()
        # Stored weights are rounded; in fp16 they have 11 bits.
        rounding = 2.0 ** (-10 if half else -22) * (start.abs() + step.abs())
        assert (error <= rounding + 1e-7).all(), name
        if step.abs().max() > 1e-4:
            moved.add(factor)
    assert moved == {1.0, DECAY, DECAY**2}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("adam", ("--weight-decay", "0.1", "--adam-betas", "(0.9, 0.99)")),
        ("sgd", ("--momentum", "0.9")),
        ("nag", ("--momentum", "0.9")),
        ("adagrad", ()),
        ("adamax", ("--weight-decay", "0.1")),
        ("adadelta", ()),
    ],
)
def test_steps_are_those_of_separate_optimizers(name: str, options: tuple[str, ...]) -> None:
    """Under a schedule, one optimizer with factors equals one optimizer per learning rate."""
    factors = (1.0, 0.5, 0.25)

    def parameters() -> list[nn.Parameter]:
        torch.manual_seed(0)
        found = [nn.Parameter(torch.randn(3, 2, dtype=torch.double)) for _ in factors]
        for parameter, factor in zip(found, factors, strict=True):
            parameter.optim_overrides = {"optimizer": {"lr_scale": factor}}
        return found

    def optimizer(params: list[nn.Parameter]):
        parser = ArgumentParser()
        OPTIMIZER_REGISTRY[name].add_args(parser)
        flags = vars(parser.parse_args(options))
        return build_optimizer(
            Namespace(**{**flags, "optimizer": name, "lr": [1.0], "tpu": False}), params
        )

    ours, expected = parameters(), parameters()
    together, separate = optimizer(ours[::-1]), [optimizer([p]) for p in expected]
    for lr in (0.1, 0.3, 0.2):
        grads = [torch.randn(3, 2, dtype=torch.double) for _ in factors]
        for p, q, grad in zip(ours, expected, grads, strict=True):
            p.grad, q.grad = grad.clone(), grad.clone()
        together.set_lr(lr)
        with rates_by_factor(together.optimizer):
            together.step()
        assert together.get_lr() == lr
        assert len(together.param_groups) == 1
        for single, factor in zip(separate, factors, strict=True):
            single.set_lr(lr * factor)
            single.step()
        for p, q in zip(ours, expected, strict=True):
            torch.testing.assert_close(p, q)


def test_composite_optimizer_applies_factors_once() -> None:
    """fairseq's composite optimizer reads the same factors itself."""
    params = [nn.Parameter(torch.zeros(2)) for _ in range(2)]
    params[1].optim_overrides = {"optimizer": {"lr_scale": 0.25}}
    group = {
        "optimizer": {"_name": "sgd", "momentum": 0.0, "weight_decay": 0.0, "lr": [0.1]},
        "lr_scheduler": {"_name": "fixed", "warmup_updates": 0, "lr": [0.1]},
        "lr_float": None,
    }
    config = {"_name": "composite", "groups": {"default": group}, "dynamic_groups": True}
    optimizer = build_optimizer(OmegaConf.create(config), params)
    for parameter in params:
        parameter.grad = torch.ones(2)
    with rates_by_factor(optimizer.optimizer):
        optimizer.step()
    torch.testing.assert_close(params[0].data, torch.full((2,), -0.1))
    torch.testing.assert_close(params[1].data, torch.full((2,), -0.025))


@pytest.mark.parametrize("task", ["tagging", "choice"])
def test_resumed_run_equals_an_uninterrupted_one(
    task: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """This holds with a schedule on two tasks; logs and checkpoints contain one learning rate."""
    data = request.getfixturevalue(f"{task}_data")
    more = sizes.TAGGING if task == "tagging" else sizes.CHOICE
    schedule = ("--lr-scheduler", "polynomial_decay", "--warmup-updates", 2)
    schedule = (*schedule, "--total-num-update", 8, "--lr", 0.01)
    flags = (*MODEL, *more, *schedule, "--layer-lr-decay", DECAY, "--save-interval-updates", 2)
    whole = runner.train(data, tmp_path / "whole", *flags, "--max-update", 4)
    runner.train(data, tmp_path / "parts", *flags, "--max-update", 2)
    runner.train(data, tmp_path / "parts", *flags, "--max-update", 4)
    first, second = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    assert [float(row["lr"]) for row in whole.stats["train_inner"]] == pytest.approx(
        [0.005, 0.01, 0.01 * 5 / 6, 0.01 * 4 / 6], rel=1e-3
    )
    state = compat.load_checkpoint(str(tmp_path / "whole" / "checkpoint_last.pt"))
    (group,) = state["last_optimizer_state"]["param_groups"]
    assert group["lr"] == pytest.approx(0.01 * 4 / 6, rel=1e-3)


def test_flattened_parameters_are_refused() -> None:
    """By default --fp16 on a GPU flattens all parameters into one, which has no layers."""
    model = zoo.build("roberta_deterministic", layer_lr_decay=DECAY)
    task = SimpleNamespace(optimizer_step=lambda optimizer: None)
    apply_factors(task, model)
    with pytest.raises(SystemExit, match="--fp16-no-flatten-grads"):
        task.optimizer_step(Namespace(has_flat_params=True))


@pytest.mark.parametrize("decay", [0, -0.5, 1.5])
def test_factors_out_of_range_are_refused(decay: float, classification_data: Path, tmp_path: Path):
    flags = (*MODEL, *sizes.CLASSIFICATION, "--layer-lr-decay", decay)
    with pytest.raises(SystemExit, match="--layer-lr-decay must be above 0 and at most 1"):
        runner.train(classification_data, tmp_path, *flags)
