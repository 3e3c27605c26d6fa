"""SMART's Bregman term: the moving average of the model, the term by hand, resumed trainings."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_freelb_smart import batch, criterion, gradients, translator
from torch import Tensor, nn

import runner
import sizes
import zoo
from fairseq_stochattn import compat
from fairseq_stochattn.compat import UsageError
from fairseq_stochattn.core.divergences import symmetric_kl
from fairseq_stochattn.core.errors import SettingError
from fairseq_stochattn.core.model_average import ModelAverage
from fairseq_stochattn.methods.smart import SMART

NO_PENALTY = {"smart_weight": 0.0, "smart_noise": 0.0}


def attached(model: nn.Module, max_update: int = 0, **flags: Any) -> Any:
    """The criterion as the Trainer attaches it to a model."""
    found = criterion("smart", **{"smart_bregman_weight": 2.0, **NO_PENALTY, **flags})
    found.task.optimizer_step = lambda optimizer, model, update_num: optimizer.step()
    config = SimpleNamespace(
        optimization=SimpleNamespace(max_update=max_update),
        distributed_training=SimpleNamespace(ddp_backend="pytorch_ddp"),
    )
    found.attach(model, config)
    return found


def moved(model: nn.Module, seed: int) -> nn.Module:
    """Change all parameters at random, in place."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(noise.to(parameter), alpha=0.1)
    return model


def test_the_average_follows_its_equation() -> None:
    model = zoo.build("roberta_babn").double()
    average = ModelAverage(model)
    moved(model, 1)  # as if a checkpoint were loaded after the copy was made
    average.follow(model, 0.9)
    expected = {name: p.detach().clone() for name, p in model.named_parameters()}
    for step in range(3):
        moved(model, 2 + step)
        average.follow(model, 0.9)
        for name, parameter in model.named_parameters():
            expected[name] = 0.9 * expected[name] + 0.1 * parameter.detach()
    found = dict(average.model.named_parameters())
    for name, value in expected.items():
        torch.testing.assert_close(found[name].detach(), value, rtol=1e-12, atol=1e-12)
    assert int(average.calls) == 4
    assert not any(p.requires_grad for p in average.parameters())


def test_small_steps_add_up_in_half_precision() -> None:
    """A step of 0.001 of the way is lost in fp16, so the average itself is in fp32."""
    model = nn.Linear(1, 1, bias=False).half()
    nn.init.constant_(model.weight, 1.0)
    average = ModelAverage(model)
    average.follow(model, 0.999)
    nn.init.constant_(model.weight, 1.25)
    for _ in range(1000):
        average.follow(model, 0.999)
    wanted = 1.25 - 0.25 * 0.999**1000
    assert average.model.weight.item() == pytest.approx(wanted, abs=1e-3)
    state = average.state_dict()
    assert state["model.weight"].dtype == torch.float32
    again = ModelAverage(model)
    again.load_state_dict(state, strict=True)
    assert again.values["weight"].item() == average.values["weight"].item()
    assert (again.model.weight.item(), int(again.calls)) == (average.model.weight.item(), 1001)


def test_the_term_by_hand() -> None:
    """μ times the symmetric KL to the predictions of the average; the average gets no gradient."""
    model = translator().double()
    ours = attached(model)
    _, _, log = ours(model, batch())
    assert log["attention/bregman"] == 0
    target = zoo.pad(zoo.sentences(8, 5, 3, 2, seed=1)).ne(zoo.PAD)

    def logits(of: nn.Module) -> Tensor:
        return of(**batch()["net_input"])[0][target]

    earlier = logits(model).detach()
    moved(model, 5)
    loss, _, log = ours(model, batch())
    term = symmetric_kl(earlier, logits(model))
    assert log["attention/bregman"] == pytest.approx(term.item(), rel=1e-9)
    assert term > 0.01
    plain, _, _ = criterion("smart", **NO_PENALTY)(model, batch())
    found, expected = gradients(loss, model), gradients(plain + 2 * term, model)
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9)
    assert all(p.grad is None for p in ours.parameters())


@pytest.mark.parametrize("arch", ["transformer_babn", "transformer_asa", "transformer_alignment"])
def test_the_copy_has_the_same_dropout_and_the_same_samples(arch: str) -> None:
    """So the term is 0 before the first update, and the random state after it is unchanged."""
    flags = {"alignment": "gan"} if arch.endswith("alignment") else {}
    model = translator(arch, dropout=0.3, **flags)
    states = []
    for ours in (attached(model), criterion("smart", **NO_PENALTY)):
        torch.manual_seed(3)
        _, _, log = ours(model, batch())
        assert log.get("attention/bregman", 0) == pytest.approx(0, abs=1e-8)
        states.append(torch.rand(3))
    assert torch.equal(*states)


def test_the_average_moves_after_every_step() -> None:
    model = translator()
    ours = attached(model, smart_momentum=0.75)
    ours(model, batch())
    first = model.encoder.layers[0].fc1.weight.detach().clone()
    ours.task.optimizer_step(SimpleNamespace(step=lambda: moved(model, 7)), model, 0)
    second = model.encoder.layers[0].fc1.weight.detach()
    found = ours.average.model.encoder.layers[0].fc1.weight
    torch.testing.assert_close(found.detach(), 0.75 * first + 0.25 * second)


def test_the_momentum_grows_after_a_tenth_of_the_updates() -> None:
    paper = SMART()
    assert [paper.momentum_at(n, 100) for n in (1, 10, 11, 100)] == [0.99, 0.99, 0.999, 0.999]
    assert [paper.momentum_at(n, 0) for n in (1, 10**6)] == [0.99, 0.99]
    chosen = SMART(momentum_updates=3, momentum=0.5, late_momentum=0.6)
    assert [chosen.momentum_at(n, 100) for n in (3, 4)] == [0.5, 0.6]
    assert [chosen.momentum_at(n, 0) for n in (3, 4)] == [0.5, 0.6]


@pytest.mark.parametrize(
    "bad", [{"bregman_weight": -1}, {"momentum": 1.0}, {"late_momentum": -0.1}]
)
def test_bad_settings_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(SettingError, match=next(iter(bad))):
        SMART(**bad)


def test_the_term_needs_the_trainer_and_whole_parameters() -> None:
    with pytest.raises(UsageError, match="only within fairseq's Trainer"):
        criterion("smart", smart_bregman_weight=1.0, **NO_PENALTY)(translator(), batch())
    found = criterion("smart", smart_bregman_weight=1.0)
    sharded = SimpleNamespace(ddp_backend="fully_sharded")
    with pytest.raises(UsageError, match="fully_sharded"):
        found.attach(translator(), SimpleNamespace(distributed_training=sharded))


FLAGS = (
    *("--arch", "roberta_deterministic", *sizes.ROBERTA, *sizes.CLASSIFICATION),
    *("--smart-bregman-weight", 1, "--smart-momentum", 0.9, "--smart-momentum-updates", 99),
    *("--lr", 0.01, "--batch-size", 64, "--max-tokens", 4000, "--save-interval-updates", 2),
)


def trained(folder: Path, data: Path, updates: int, *more: object) -> dict[str, Any]:
    flags = (*FLAGS, "--criterion", "smart", "--max-update", updates, *more)
    output = runner.train(data, folder, *flags)
    state = compat.load_checkpoint(str(folder / "checkpoint_last.pt"))
    return {**state, "log": output.stats["train_inner"]}


def test_a_resumed_training_equals_an_uninterrupted_one(
    classification_data: Path, tmp_path: Path
) -> None:
    """The average is in the checkpoint; a run without the term can start from one with it."""
    whole = trained(tmp_path / "whole", classification_data, 4)
    terms = [float(row["bregman"]) for row in whole["log"]]
    assert terms[0] == 0 < min(terms[1:])
    trained(tmp_path / "parts", classification_data, 2)
    parts = trained(tmp_path / "parts", classification_data, 4)
    assert int(whole["criterion"]["average.calls"]) == 5
    for part in ("model", "criterion"):
        assert whole[part].keys() == parts[part].keys()
        assert all(torch.equal(whole[part][name], parts[part][name]) for name in whole[part])
    name = "encoder.sentence_encoder.layers.0.fc1.weight"
    assert not torch.equal(whole["criterion"][f"average.model.{name}"], whole["model"][name])
    plain = trained(tmp_path / "parts", classification_data, 5, "--smart-bregman-weight", 0)
    assert plain["criterion"] is None
    again = trained(tmp_path / "parts", classification_data, 6)
    assert int(again["criterion"]["average.calls"]) == 2  # a new average
