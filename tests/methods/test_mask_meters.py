"""The ratio of divergences under masks: near 1 for random masks, above 1 for harmful ones."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import zoo
from fairseq_stochattn.core.divergences import categorical_kl
from fairseq_stochattn.core.masking import MaskingMethod
from fairseq_stochattn.core.paired_batch import paired_batch, twice
from fairseq_stochattn.methods.asa.meter import divergence_ratio, mask_meters

TOKENS = zoo.pad(zoo.sentences(*[12] * 60, *[7] * 20))


def peaked(method: str, **settings: float) -> nn.Module:
    """A model whose attention prefers some keys and changes its outputs, in training mode."""
    model = zoo.build(f"roberta_{method}", dropout=0.3, **settings)
    for name, parameter in model.named_parameters():
        if "self_attn" in name and name.endswith(("q_proj.weight", "k_proj.weight")):
            parameter.data.mul_(6)
    return model.double().train()


def run(model: nn.Module) -> Tensor:
    with paired_batch():
        clean, masked = model(twice(TOKENS))[0].chunk(2)
    return (categorical_kl(clean, masked) * TOKENS.ne(zoo.PAD)).sum()


def measured(model: nn.Module, times: int = 5) -> tuple[float, float]:
    """The ratio over several masks, and the masked share."""
    found = []
    for seed in range(times):  # a meter restores the random state
        torch.manual_seed(seed)
        found.append(mask_meters(model, lambda: run(model)))
    masked, random, share = (torch.stack(x) for x in zip(*found, strict=True))
    return divergence_ratio(masked.sum(), random.sum()).item(), share.mean().item()


def test_random_masks_have_the_ratio_one() -> None:
    ratio, share = measured(peaked("bernoulli", bernoulli_share=0.3))
    assert ratio == pytest.approx(1, abs=0.1)
    assert share == pytest.approx(0.3, abs=0.02)


def test_an_adversary_that_masks_the_largest_weights_has_a_high_ratio() -> None:
    ratio, share = measured(peaked("magnitude", magnitude_share=0.1), times=2)
    assert ratio > 1.5
    assert share == pytest.approx(0.1, abs=0.05)


def test_an_untrained_adversary_is_no_better_than_chance() -> None:
    """Its masks follow its random parameters, not the model's attention."""
    ratio, share = measured(peaked("asa", asa_initial_share=0.2))
    assert ratio == pytest.approx(1, abs=0.2)
    assert share == pytest.approx(0.2, abs=0.05)


def test_random_masks_have_the_share_of_each_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers that mask 5, 30 and 60 % are compared with random masks of these shares."""
    model = peaked("scheduled", scheduled_shares="0.05/0.3/0.6")
    shares: list[float] = []
    forward = MaskingMethod.forward

    def counted(self: MaskingMethod, logits: Tensor, context) -> Tensor:
        out = forward(self, logits.clone(), context)
        changed = (out - logits).abs()[len(logits) // 2 :].amax(dim=1) > 1
        valid = context.adversarial_half().valid[:, 0]
        shares.append((changed & valid).sum().item() / valid.sum().item())
        return out

    monkeypatch.setattr(MaskingMethod, "forward", counted)
    meters = mask_meters(model, lambda: run(model))
    own, random = shares[:3], shares[3:]
    assert own == pytest.approx([0.05, 0.3, 0.6], abs=0.04)
    assert random == pytest.approx(own, abs=0.02)
    assert meters.masked_share.item() == pytest.approx(sum(own) / 3, abs=1e-6)


def test_share_of_several_passes_is_that_of_all_pairs() -> None:
    """As in a multiple choice, where each option is a forward pass."""
    model = peaked("magnitude", magnitude_share=0.3)
    short, long = zoo.pad(zoo.sentences(3, 3)), zoo.pad(zoo.sentences(12, 12))

    def forward(*batches: Tensor) -> Tensor:
        with paired_batch():
            return torch.stack([model(twice(x))[0].sum() for x in batches]).sum()

    alone = [mask_meters(model, lambda x=x: forward(x)).masked_share for x in (short, long)]
    both = mask_meters(model, lambda: forward(short, long)).masked_share
    pairs = torch.tensor([2 * 9, 2 * 144])
    assert alone[0] != alone[1]
    assert both.item() == pytest.approx(((torch.stack(alone) * pairs).sum() / pairs.sum()).item())


def test_the_model_and_the_random_state_are_left_as_they_were() -> None:
    model = peaked("asa")
    model.encoder.sentence_encoder.layers[1].eval()
    modes = [module.training for module in model.modules()]
    torch.manual_seed(5)
    expected = model(TOKENS)[0]
    torch.manual_seed(5)
    mask_meters(model, lambda: run(model))
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(model(TOKENS)[0], expected)  # the same dropout
    assert all(p.grad is None for p in model.parameters())
    assert mask_meters(zoo.build("roberta_babn"), lambda: torch.zeros(())) is None


def test_ratio_of_predictions_that_do_not_change() -> None:
    assert divergence_ratio(0.0, 0.0) == 1
    assert divergence_ratio(3.0, 2.0) == 1.5
    assert divergence_ratio(1.0, 0.0) == torch.inf
