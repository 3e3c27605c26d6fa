"""MCAN: equality with a plain reference, order and padding of regions, every method."""

from __future__ import annotations

import math
from argparse import Namespace

import pytest
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY, build_model
from torch import Tensor, nn

import images
import zoo
from fairseq_stochattn.compat import UsageError
from fairseq_stochattn.core.losses import take_losses
from fairseq_stochattn.core.method import METHODS
from fairseq_stochattn.uncertainty.sampling import sampled_attention

ARCHS = [f"mcan_{method}" for b, method in zoo.all_pairs() if b == "mcan"]
CLOSE = {"rtol": 1e-6, "atol": 1e-6}  # a method may compute in single precision
every_arch = pytest.mark.parametrize("arch", ARCHS)


def double(arch: str, **flags: object) -> nn.Module:
    return images.build(arch, **flags).double().eval()


def attended(x: Tensor, memory: Tensor, module: nn.Module, visible: Tensor) -> Tensor:
    """Multi-head attention of one example, written out: x (T, C), memory (S, C)."""
    heads = []
    width = x.size(1) // module.num_heads
    for h in range(module.num_heads):
        rows = slice(h * width, (h + 1) * width)
        q, k, v = (
            y @ p.weight[rows].T + p.bias[rows]
            for y, p in ((x, module.q_proj), (memory, module.k_proj), (memory, module.v_proj))
        )
        scores = (q @ k.T / math.sqrt(width)).masked_fill(~visible, -math.inf)
        heads.append(scores.softmax(dim=1) @ v)
    return module.out_proj(torch.cat(heads, dim=1))


def feed_forward(x: Tensor, layer: nn.Module) -> Tensor:
    return layer.final_layer_norm(x + layer.fc2(layer.fc1(x).relu()))


def reference(model: nn.Module, tokens: Tensor, regions: Tensor) -> Tensor:
    """The logits of one question (T,) and one image (R, width), without padding."""
    x = model.encoder.lstm(model.encoder.embed_tokens(tokens)[None])[0][0]
    everything = torch.tensor(True)
    for layer in model.encoder.layers:
        x = layer.self_attn_layer_norm(x + attended(x, x, layer.self_attn, everything))
        x = feed_forward(x, layer)
    y = model.decoder.project(regions)
    for layer in model.decoder.layers:
        y = layer.self_attn_layer_norm(y + attended(y, y, layer.self_attn, everything))
        y = layer.encoder_attn_layer_norm(y + attended(y, x, layer.encoder_attn, everything))
        y = feed_forward(y, layer)
    pooled = []
    for z, pooling in ((x, model.question_pooling), (y, model.image_pooling)):
        weights = pooling.score(pooling.hidden(z).relu()).softmax(dim=0)  # (T, 1)
        pooled.append(pooling.project((weights * z).sum(dim=0)))
    return model.out_proj(model.norm(sum(pooled)))


@pytest.mark.parametrize("arch", ["mcan", "mcan_deterministic"])
def test_the_forward_pass_is_that_of_a_plain_reference(arch: str) -> None:
    model = double(arch)
    rows = zoo.sentences(5, 3, 1)
    pictures = [torch.randn(n, images.WIDTH, dtype=torch.double) for n in (4, 2, 1)]
    found, extra = model(**images.inputs(rows, pictures))
    wanted = [reference(model, *pair) for pair in zip(rows, pictures, strict=True)]
    torch.testing.assert_close(found, torch.stack(wanted), **CLOSE)
    for name, lengths in (("question_weights", (5, 3, 1)), ("image_weights", (4, 2, 1))):
        for weights, length in zip(extra[name], lengths, strict=True):
            assert weights[:length].sum().item() == pytest.approx(1)


@every_arch
def test_order_of_regions_padding_and_batch_do_not_matter(arch: str) -> None:
    """Also a question of one word about an image of one region."""
    model = double(arch)
    rows = zoo.sentences(5, 3, 1)
    pictures = [torch.randn(n, images.WIDTH, dtype=torch.double) for n in (4, 2, 1)]
    together = model(**images.inputs(rows, pictures))[0]
    alone = [model(**images.inputs([r], [p]))[0] for r, p in zip(rows, pictures, strict=True)]
    torch.testing.assert_close(torch.cat(alone), together, **CLOSE)
    padded = model(**images.inputs(rows, pictures, more=3))[0]
    torch.testing.assert_close(padded, together, **CLOSE)
    shuffled = [p.flip(0) for p in pictures]
    torch.testing.assert_close(model(**images.inputs(rows, shuffled))[0], together, **CLOSE)
    changed = model(**images.inputs(rows, [p + 1 for p in pictures]))[0]
    assert not torch.allclose(changed, together)


def test_positions_of_babn_see_the_order_of_regions() -> None:
    """Why ``heads`` is the default of ``--babn-upward`` for this backbone."""
    rows, picture = zoo.sentences(5), torch.randn(4, images.WIDTH, dtype=torch.double)
    for upward, same in (("heads", True), ("positions", False)):
        model = double("mcan_babn", babn_upward=upward, babn_sigma=1.0)
        found = [model(**images.inputs(rows, [x]))[0] for x in (picture, picture.flip(0))]
        assert torch.allclose(*found, **CLOSE) == same
    assert (
        images.build("mcan_babn")
        .decoder.layers[0]
        .self_attn.attention_methods["babn"]
        .settings.upward
        == "heads"
    )


def test_every_region_sees_every_other_one() -> None:
    """The self-attention of the image is not causal: the first region depends on the last."""
    model = double("mcan_deterministic")
    x = torch.randn(1, 4, images.WIDTH, dtype=torch.double, requires_grad=True)
    words, padding = model.encoder(zoo.pad(zoo.sentences(3)))
    out = model.decoder(x, torch.zeros(1, 4, dtype=torch.bool), words, padding)
    (grad_x,) = torch.autograd.grad((out[0].square() @ torch.arange(16.0).double()).sum(), x)
    assert (grad_x[0].abs().sum(dim=1) > 0).all()


@every_arch
def test_losses_and_gradients_are_finite(arch: str) -> None:
    model = images.build(arch, dropout=0.1).train()
    loss = model(**images.batch())[0].logsumexp(dim=1).sum()
    loss = loss + sum(term.value for _, term in take_losses(model))
    loss.backward()
    assert torch.isfinite(loss)
    for name, parameter in model.named_parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("method", [name for name in METHODS if METHODS[name].samples_at_test])
def test_samples_differ_and_the_mean_does_not(method: str) -> None:
    model, inputs = double(f"mcan_{method}"), images.batch()
    inputs["regions"] = inputs["regions"].double()
    assert torch.equal(model(**inputs)[0], model(**inputs)[0])
    with sampled_attention([model]):
        assert not torch.allclose(model(**inputs)[0], model(**inputs)[0])


def test_attendout_acts_on_the_question_only() -> None:
    """Its generator reads token ids, which regions do not have."""
    model = images.build("mcan_attendout")
    assert len(model.encoder.layers[0].self_attn.attention_methods) == 1
    assert len(model.decoder.layers[0].self_attn.attention_methods) == 0
    with pytest.raises(UsageError, match="does not act on decoder attention"):
        images.build("mcan_attendout", attention_sites="decoder")


def test_sizes_of_the_paper() -> None:
    """Four layers of width 512 with 8 heads, and 3,129 answers, as in the papers' appendices."""
    task = zoo.task(feature_width=2048, answers=list(range(3129)))
    with torch.device("meta"):
        args = Namespace(arch="mcan_deterministic_papers")
        ARCH_CONFIG_REGISTRY[args.arch](args)
        model = build_model(args, task)
    assert len(model.encoder.layers) == len(model.decoder.layers) == 4
    layer = model.decoder.layers[0]
    assert (layer.embed_dim, layer.nh, layer.fc1.out_features) == (512, 8, 2048)
    assert model.out_proj.weight.shape == (3129, 1024)


def test_bad_sizes_are_one_line() -> None:
    for flags, message in (
        ({"mcan_heads": 5}, "not a multiple"),
        ({"mcan_layers": 0}, "--mcan-layers must be positive"),
    ):
        with pytest.raises(UsageError, match=message):
            images.build("mcan_babn", **flags)
