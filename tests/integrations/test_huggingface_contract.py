"""Promises of every method on models of transformers: batches, padding, causality, no NaN."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn

import fairseq_stochattn as sa
import huggingface_zoo as zoo

pytestmark = pytest.mark.usefixtures("transformers")
METHODS = {
    "babn": partial(sa.BABN, sigma=0.05),
    "bam": sa.BAM,
    "alignment": partial(sa.Alignment, "ct"),
    "asa": sa.ASA,
    "bernoulli": sa.Bernoulli,
    "scheduled": sa.Scheduled,
    "magnitude": sa.Magnitude,
    "cell_dropout": sa.CellDropout,
    "layerdrop": sa.LayerDrop,
    "babn, alignment, asa": lambda: [sa.BABN(), sa.Alignment("ot"), sa.ASA()],
}
FAMILIES = ("bert", "albert", "bart", "gpt2", "deberta", "deberta_v2")


def changed(model: nn.Module) -> nn.Module:
    """The model with other parameters of its methods, so that they do not act as at the start."""
    generator = torch.Generator().manual_seed(5)
    for name, parameter in model.named_parameters():
        if "stochattn" in name:
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.data.add_(noise, alpha=0.1)
    return model


def logits(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    with torch.no_grad():
        return model(**batch).logits


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("family", FAMILIES)
def test_contract(family: str, method: str) -> None:
    model = changed(sa.convert(zoo.build(family), METHODS[method]()))
    batch = zoo.batch(family)
    together = logits(model, batch)
    lengths = (7, 4, 5)
    for row, length in enumerate(lengths):
        alone = {name: x[row : row + 1] for name, x in batch.items()}
        keep = slice(-length, None) if family in zoo.CAUSAL else slice(0, length)
        alone = {
            name: x[:, keep] if x.dim() == 2 and (name != "labels" or family == "gpt2") else x
            for name, x in alone.items()
        }
        if family == "gpt2":  # positions are counted from the left, padding included
            positions = torch.arange(7 - length, 7)[None]
            found = logits(model, {**alone, "position_ids": positions})[0]
            expected = together[row, -length:]
        else:
            found, expected = logits(model, alone)[0], together[row]
        assert (found - expected).abs().max() < 1e-5, "depends on the batch or the padding"
    if family in ("bart", "gpt2"):
        # BART's last input is the last label but one.
        name, last = ("labels", -2) if family == "bart" else ("input_ids", -1)
        other = {**batch, name: batch[name].clone()}
        other[name][:, last] = 7
        found = logits(model, other)
        change = (found - together).abs().amax(dim=-1)  # (B, T)
        if family == "gpt2":  # queries that are padding see nothing, or everything
            change = change * batch["attention_mask"]
        assert change[:, -1].max() > 1e-3
        assert change[:, :-1].max() < 1e-6, "depends on the future"
    model.train()
    sa.collect_losses(model, step=1)
    clean, adversarial = sa.paired_forward(
        model, **{name: x for name, x in batch.items() if family == "bart" or name != "labels"}
    )
    loss = clean.square().mean() + sa.divergence(clean, adversarial)
    (loss + sa.collect_losses(model, step=1)).backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
    own = [p for name, p in model.named_parameters() if "stochattn" in name]
    assert all(p.grad is not None for p in own), "every parameter of a method is trained"


@pytest.mark.parametrize("family", ["bert", "albert", "gpt2", "deberta"])
def test_asa_masks_only_the_adversarial_half(family: str) -> None:
    model = sa.convert(zoo.build(family), sa.ASA())
    plain = logits(model, zoo.batch(family))
    for module in model.modules():  # dropout off, the adversary on
        module.training = isinstance(module, sa.core.method.AttentionMethod)
    inputs = {name: x for name, x in zoo.batch(family).items() if name != "labels"}
    clean, adversarial = sa.paired_forward(model, **inputs)
    assert (clean - plain)[0].abs().max() < 1e-6
    assert (adversarial - plain)[0].abs().max() > 1e-5


@pytest.mark.parametrize("family", ["bert", "albert", "bart", "gpt2", "deberta_v2"])
def test_samples_differ_and_their_mean_is_near_the_mean_attention(family: str) -> None:
    model = sa.convert(zoo.build(family), sa.BAM(k=20.0))
    torch.manual_seed(0)
    draws = sa.sample(model, 60, **zoo.batch(family))
    expected = logits(model, zoo.batch(family))
    assert draws.std[0].max() > 1e-5
    error = (draws.mean - expected)[0].abs()
    assert (error <= 6 * draws.std[0] / 60**0.5 + 3e-3).all()
