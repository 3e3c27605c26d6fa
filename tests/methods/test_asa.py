"""The adversary of asa: probabilities of its masks, its gradient, and what each side optimises."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn

import zoo
from fairseq_stochattn.core.attention import attend
from fairseq_stochattn.core.context import AttentionContext, AttentionMask
from fairseq_stochattn.core.divergences import categorical_kl
from fairseq_stochattn.core.gradients import straight_through
from fairseq_stochattn.core.losses import collecting_losses, take_losses
from fairseq_stochattn.core.masking import mask_last_rows
from fairseq_stochattn.core.paired_batch import paired_batch
from fairseq_stochattn.methods.asa import attention as asa_module
from fairseq_stochattn.methods.asa.attention import AdversarialSelfAttention
from fairseq_stochattn.pretrained.export_fairseq import is_plugin_parameter

ROWS = zoo.sentences(9, 7, 4, 1)
GONE = 1e-9  # masked pairs have a smaller weight


def build(**overrides) -> nn.Module:
    """A model whose weights are large enough for attention to change its predictions."""
    settings = {"asa_initial_share": 0.3, "asa_lr_multiplier": 1.0, **overrides}
    model = zoo.build("roberta_asa", **settings).train()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and not is_plugin_parameter(name):
                parameter.mul_(10)
    return model


def halves(model: nn.Module, seed: int = 0, repeats: int = 1) -> tuple[Tensor, Tensor]:
    """The logits at non-padding tokens, clean and adversarial, of a batch ``repeats`` times."""
    rows = ROWS * repeats
    torch.manual_seed(seed)
    with paired_batch(), collecting_losses():
        clean, adversarial = zoo.run(model, "roberta", rows * 2, rows).chunk(2)
    return tuple(zoo.non_padding_outputs(out, "roberta", rows) for out in (clean, adversarial))


def divergence(model: nn.Module, seed: int = 0, repeats: int = 1) -> Tensor:
    return categorical_kl(*halves(model, seed, repeats)).mean()


def masked_share(model: nn.Module) -> Tensor:
    """The masked share of all layers in the last forward pass."""
    shares = [loss for name, loss in take_losses(model) if name == "masked_share"]
    return sum(loss.value for loss in shares) / sum(loss.count for loss in shares)


def gradients(loss: Tensor, model: nn.Module) -> dict[str, Tensor]:
    found = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    pairs = zip(model.named_parameters(), found, strict=True)
    return {name: torch.zeros_like(p) if g is None else g for (name, p), g in pairs}


def one_layer() -> tuple[AdversarialSelfAttention, AttentionContext, Tensor]:
    """The adversary of a first layer, a context of a paired batch, and logits, all in doubles."""
    model = build(attention_layers="first").double()
    attention = model.encoder.sentence_encoder.layers[0].self_attn
    generator = torch.Generator().manual_seed(0)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.double)

    padding = torch.zeros(4, 6, dtype=torch.bool)
    padding[1, 4:] = padding[3, 4:] = True
    attention.stack.state.clear()
    x = noise(6, 2, 16).repeat(1, 2, 1)
    context = AttentionContext(
        q=noise(4, 2, 6, 8),
        k=noise(4, 2, 6, 8),
        query_input=x,
        key_input=x,
        query_padding=padding,
        attention_mask=AttentionMask(padding, padding[:, None, None, :]),
        stack=attention.stack,
        paired=True,
    )
    return attention.attention_methods["asa"], context, noise(4, 2, 6, 6)


def test_pairs_are_masked_with_their_probability() -> None:
    method, context, logits = one_layer()
    scores = method.adversary(context.adversarial_half())
    probability = scores[0, 0].sigmoid()  # of a sentence without padding
    torch.manual_seed(0)
    times = 1500
    counts = torch.zeros(6, 6)
    for _ in range(times):
        counts += attend(logits.clone(), context, {"asa": method})[2, 0] < GONE
        list(take_losses(method))
    spread = 4 * (probability * (1 - probability) / times).sqrt()
    # In about one of a thousand rows all six pairs would be masked; then one of them is kept.
    assert ((counts / times - probability).abs() < spread + 0.002).all()


def test_straight_through_has_the_hard_value_and_the_soft_gradient() -> None:
    x = torch.randn(50, dtype=torch.double, requires_grad=True)
    out = straight_through(x > 0, x.sigmoid())
    assert torch.equal(out, (x > 0).double())
    (found,) = torch.autograd.grad((out * torch.arange(50)).sum(), x)
    torch.testing.assert_close(found, torch.arange(50) * x.sigmoid() * (-x).sigmoid())


def test_gradient_equals_differences_of_the_relaxed_objective(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The relaxed objective interpolates linearly between the attention with and without a pair,
    with σ(x) as the mask. The adversary maximises it and minimises the penalty."""
    method, context, logits = one_layer()
    half = context.adversarial_half()
    generator = torch.Generator().manual_seed(1)
    readout = torch.randn(2, 2, 6, 6, dtype=torch.double, generator=generator)
    kept: list[Tensor] = []
    sample = method.score

    def score(*args: object) -> Tensor:
        kept.append(sample(*args).detach().requires_grad_())
        return kept[-1]

    monkeypatch.setattr(method, "score", score)
    torch.manual_seed(0)
    weights = attend(logits.clone(), context, {"asa": method})
    (x,) = kept
    (found,) = torch.autograd.grad((weights[2:] * readout).sum(), x, retain_graph=True)
    share = dict(take_losses(method))["masked_share"]
    (penalty,) = torch.autograd.grad(share.value, x)
    masked = (weights[2:] < GONE).all(dim=1) & half.valid[:, 0]  # (B, T, S)

    def objective(gone: Tensor) -> Tensor:
        scores = logits[2:].masked_fill(gone.unsqueeze(1) | half.blocked, -torch.inf)
        return (scores.softmax(dim=-1) * readout).sum()

    grad_sigmoid = x.sigmoid() * (-x).sigmoid()
    compared = {True: 0, False: 0}
    for b, t, s in half.valid[:, 0].nonzero().tolist():
        factor = grad_sigmoid[b, 0, t, s]
        assert penalty[b, 0, t, s].item() == pytest.approx(factor.item(), abs=1e-12)
        with_it, without = masked.clone(), masked.clone()
        with_it[b, t, s], without[b, t, s] = False, True
        if (without | half.blocked[:, 0])[b, t].all():
            continue  # the only pair of its row is never masked
        # A larger σ(x) masks more of the pair, and the gradient is reversed.
        expected = (objective(with_it) - objective(without)) * factor
        assert found[b, 0, t, s].item() == pytest.approx(expected.item(), rel=1e-6, abs=1e-9)
        compared[bool(masked[b, t, s])] += 1
    assert min(compared.values()) > 5
    assert not found[~half.valid].any()
    assert not penalty[~half.valid].any()


def test_logits_have_the_gradient_of_a_softmax_without_masked_pairs() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 2, 3, 5, dtype=torch.double, generator=generator)
    m = (torch.rand(2, 1, 3, 5, generator=generator) > 0.6).double()
    m[..., 0] = 0
    readout = torch.randn(4, 2, 3, 5, dtype=torch.double, generator=generator)
    found, expected = (logits.clone().requires_grad_() for _ in range(2))
    (mask_last_rows(found * 1, m).softmax(dim=-1) * readout).sum().backward()
    mask = torch.cat([torch.zeros_like(m), m]).bool()
    (expected.masked_fill(mask, -torch.inf).softmax(dim=-1) * readout).sum().backward()
    torch.testing.assert_close(found.grad, expected.grad, rtol=1e-8, atol=1e-9)


def test_the_penalty_has_a_gradient_only_for_the_adversary() -> None:
    model = build()
    halves(model)
    for name, gradient in gradients(masked_share(model), model).items():
        assert gradient.any() == is_plugin_parameter(name), name


def test_the_adversary_maximises_kl_minus_penalty_and_the_model_minimises_kl(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The gradient of L_asa + τ·L_c against those of both terms without gradient reversal."""
    model = build()
    of_both = gradients(divergence(model) + 0.3 * masked_share(model), model)
    monkeypatch.setattr(asa_module, "reverse_gradient", lambda x, strength: x)
    of_kl = gradients(divergence(model), model)
    list(take_losses(model))
    halves(model)
    of_share = gradients(masked_share(model), model)
    for name, found in of_both.items():
        expected = 0.3 * of_share[name] - of_kl[name] if is_plugin_parameter(name) else of_kl[name]
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-7)


def test_a_small_step_of_the_model_decreases_the_divergence() -> None:
    model = build()
    before = divergence(model)
    grads = gradients(before, model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not is_plugin_parameter(name):
                parameter -= 0.01 * grads[name]
    assert divergence(model) < before


def test_a_step_of_the_adversary_increases_the_divergence() -> None:
    """In expectation over its masks, along the negative reversed gradient; and the opposite step
    decreases it."""
    model = build()
    totals: dict[str, Tensor] = {}
    for seed in range(4):
        grads = gradients(divergence(model, seed, repeats=40), model)
        totals = {
            name: totals.get(name, 0) + grads[name] for name in grads if is_plugin_parameter(name)
        }
    length = torch.cat([total.flatten() for total in totals.values()]).norm()
    found = {}
    for sign in (1, 0, -1):
        with moved(model, {name: sign * total / length for name, total in totals.items()}):
            means = [divergence(model, 100 + seed, repeats=40).item() for seed in range(4)]
        found[sign] = sum(means) / len(means)
    assert found[-1] > found[0] > found[1], found


@contextmanager
def moved(model: nn.Module, by: dict[str, Tensor]) -> Iterator[None]:
    """Within the block, ``by`` is added to the parameters."""
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    model.load_state_dict({name: p + by.get(name, 0) for name, p in before.items()}, strict=False)
    yield
    model.load_state_dict(before, strict=False)


def losses_of(model: nn.Module, backbone: str, times: int) -> dict[str, list]:
    with paired_batch(times == 2), collecting_losses():
        zoo.run(model, backbone, ROWS * times, ROWS * times)
    found: dict[str, list] = {}
    for name, loss in take_losses(model):
        found.setdefault(name, []).append(loss)
    return found


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ({"attention": "babn,asa", "attention_layers": "first"}, "kl"),
        ({"attention": "bam,asa", "attention_layers": "first"}, "kl"),
        ({"attention": "asa", "alignment": "ct"}, "align"),
    ],
)
@pytest.mark.parametrize("backbone", ["roberta", "transformer"])
def test_losses_of_other_methods_count_the_clean_half_only(
    backbone: str, flags: dict, name: str
) -> None:
    """For Bayesian attention only in the first layer, where the KL does not depend on samples."""
    model = zoo.build(f"{backbone}_asa", **flags).train()
    once, twice = (losses_of(model, backbone, times) for times in (1, 2))
    assert len(once[name]) == len(twice[name]) > 0
    compared = 1 if flags["attention"] != "asa" else len(once[name])
    for first, second in list(zip(once[name], twice[name], strict=True))[:compared]:
        torch.testing.assert_close(first.value, second.value, rtol=1e-5, atol=1e-6)
        assert first.count == second.count


def test_on_top_of_babn_the_masks_act_on_the_samples() -> None:
    model = zoo.build("roberta_babn", attention="babn,asa", asa_initial_share=0.5).train()
    clean, adversarial = halves(model)
    assert not torch.allclose(clean, adversarial, atol=1e-3)
    shares = [loss for name, loss in take_losses(model) if name == "masked_share"]
    assert len(shares) == 3
    assert all(0.2 < loss.value / loss.count < 0.8 for loss in shares)
