"""Promise 1: with the identity method, outputs and gradients equal plain fairseq."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
import torch
from fairseq.modules import MultiheadAttention
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor, nn

import zoo
from fairseq_stochattn.attention import multihead
from fairseq_stochattn.attention.method import MethodDict
from fairseq_stochattn.attention.multihead import StochasticMultiheadAttention
from fairseq_stochattn.attention.stack import AttentionStack

BACKBONES = ["transformer", "transformer_lm", "lstm", *zoo.ENCODERS]
SOURCES, TARGETS = zoo.sentences(9, 7, 4, 1), zoo.sentences(8, 5, 3, 1, seed=1)


def both(backbone: str, **overrides) -> tuple[nn.Module, nn.Module]:
    plain = zoo.build(backbone, **overrides)
    ours = zoo.build(f"{backbone}_deterministic", **overrides)
    return plain, ours


def outputs(model: nn.Module, backbone: str) -> Tensor:
    rows = SOURCES if backbone in zoo.ENCODERS else TARGETS
    left = backbone in ("transformer", "lstm")  # as fairseq pads sources by default
    return zoo.real_positions(zoo.run(model, backbone, SOURCES, TARGETS, left), backbone, rows)


@pytest.mark.parametrize("backbone", BACKBONES)
def test_same_seed_same_parameters(backbone: str) -> None:
    plain, ours = (model.state_dict() for model in both(backbone))
    assert list(plain) == list(ours)
    assert all(torch.equal(plain[name], ours[name]) for name in plain)


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("backbone", BACKBONES)
def test_outputs_and_gradients(backbone: str, mode: str) -> None:
    plain, ours = both(backbone)
    found = []
    for model in (plain, ours):
        getattr(model, mode)()
        out = outputs(model, backbone)
        out.square().mean().backward()
        found.append((out, {name: p.grad for name, p in model.named_parameters()}))
    (out, grads), (our_out, our_grads) = found
    torch.testing.assert_close(our_out, out, rtol=1e-6, atol=1e-6)
    for name, grad in grads.items():
        if grad is None:
            assert our_grads[name] is None
        else:
            torch.testing.assert_close(our_grads[name], grad, rtol=1e-6, atol=1e-6, msg=name)


@pytest.mark.parametrize("backbone", ["transformer", "transformer_lm", *zoo.ENCODERS])
def test_equal_in_double_precision(backbone: str) -> None:
    plain, ours = (model.double() for model in both(backbone))
    if backbone == "transformer":
        # fairseq's cross-attention rounds the weights to fp32 by itself: compare the encoder.
        tokens = zoo.pad(SOURCES, left=True)
        out, our_out = (m.encoder(tokens)["encoder_out"][0] for m in (plain, ours))
        keep = tokens.ne(zoo.PAD).t()
        out, our_out = out[keep], our_out[keep]
    else:
        out, our_out = outputs(plain, backbone), outputs(ours, backbone)
    torch.testing.assert_close(our_out, out, rtol=0, atol=1e-12)


@pytest.mark.parametrize("heads", [False, True])
def test_attention_weights(heads: bool) -> None:
    plain, ours = both("transformer")
    torch.manual_seed(0)
    query, memory = torch.randn(5, 4, 16), torch.randn(9, 4, 16)
    padding = zoo.pad(SOURCES, left=True).eq(zoo.PAD)
    found = []
    for model in (plain, ours):
        attention = model.decoder.layers[0].encoder_attn
        if model is ours:
            attention.stack.begin(torch.full((4, 5), 7), zoo.PAD)
        found.append(
            attention(
                query,
                memory,
                memory,
                key_padding_mask=padding,
                static_kv=True,
                need_weights=True,
                need_head_weights=heads,
            )
        )
    for theirs, ours_found in zip(*found, strict=True):
        torch.testing.assert_close(ours_found, theirs, rtol=1e-6, atol=1e-6)
    assert found[1][1].shape == ((2, 4, 5, 9) if heads else (4, 5, 9))


@pytest.mark.parametrize("backbone", ["transformer", "lstm"])
@pytest.mark.parametrize("need_attention", [False, True])
def test_averaged_weights_that_fairseq_prints(backbone: str, need_attention: bool) -> None:
    plain, ours = (model.eval() for model in both(backbone))
    for model in (plain, ours):
        model.make_generation_fast_(need_attn=need_attention)
    lengths = torch.tensor([len(row) for row in SOURCES])
    batch = (zoo.pad(SOURCES, left=True), lengths, zoo.pad(zoo.shift(TARGETS)))
    theirs, found = plain(*batch)[1], ours(*batch)[1]
    if backbone == "transformer":
        theirs, found = theirs["attn"][0], found["attn"][0]
    if theirs is None:
        assert found is None
    else:
        torch.testing.assert_close(found, theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {"cross_self_attention": True, "no_cross_attention": True},
        {"encoder_layerdrop": 0.5, "decoder_layerdrop": 0.5},
        {"encoder_normalize_before": True, "decoder_normalize_before": True},
        {"checkpoint_activations": True},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_of_fairseq_keep_working(options: dict) -> None:
    found = []
    for model in both("transformer", **options):
        torch.manual_seed(4)
        np.random.seed(4)
        found.append(outputs(model.train(), "transformer"))
    torch.testing.assert_close(found[1], found[0], rtol=1e-6, atol=1e-6)


def test_bias_and_zero_attention() -> None:
    found = []
    for ours in (False, True):
        torch.manual_seed(0)
        attention = MultiheadAttention(
            16, 2, add_bias_kv=True, add_zero_attn=True, self_attention=True
        )
        if ours:
            attention = StochasticMultiheadAttention.adopt(attention)
            attention.attention_methods = MethodDict()
            object.__setattr__(
                attention,
                "stack",
                AttentionStack("encoder", 1, attention.num_heads, attention.head_dim),
            )
        x, padding = torch.randn(9, 4, 16), zoo.pad(SOURCES).eq(zoo.PAD)
        found.append(attention(x, x, x, key_padding_mask=padding)[0])
    torch.testing.assert_close(found[1], found[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("backbone", ["transformer", "transformer_lm", "lstm"])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_beam_search(backbone: str, dropout: float) -> None:
    """The same hypotheses with the same scores, un-repeated keys included."""
    found = []
    for model in both(backbone, dropout=dropout):
        model.eval()
        search = SequenceGenerator(
            [model], zoo.dictionary(), beam_size=3, max_len_b=8, match_source_len=False
        )
        tokens = zoo.pad(SOURCES, left=True)
        net_input = {"src_tokens": tokens, "src_lengths": tokens.ne(zoo.PAD).sum(1)}
        prefix = None
        if backbone == "transformer_lm":
            net_input = {"src_tokens": zoo.pad(zoo.sentences(4, 4))}
            prefix = net_input["src_tokens"][:, :2]
        found.append(search.generate([model], {"net_input": net_input}, prefix_tokens=prefix))
    for theirs, ours in zip(*found, strict=True):
        assert len(theirs) == len(ours) == 3
        for one, other in zip(theirs, ours, strict=True):
            assert torch.equal(one["tokens"], other["tokens"])
            torch.testing.assert_close(one["score"], other["score"], rtol=1e-6, atol=1e-6)


def test_unrepeated_keys_step_by_step() -> None:
    """Beam search as BART asks for it: three hypotheses a sentence over one copy of its keys.

    In double precision, since fairseq multiplies in another order here; its softmax is in single.
    """
    found = []
    for model in both("transformer"):
        model.eval().double()
        model.decoder.set_beam_size(3)
        tokens = zoo.pad(SOURCES, left=True)
        memory = model.encoder(tokens, src_lengths=tokens.ne(zoo.PAD).sum(1))
        prefixes, state = torch.stack(zoo.sentences(*[5] * 3 * len(SOURCES))), {}
        steps = [
            model.decoder(prefixes[:, : t + 1], encoder_out=memory, incremental_state=state)[0]
            for t in range(5)
        ]
        found.append(torch.cat(steps, dim=1))
    assert found[0].dtype == torch.float64
    torch.testing.assert_close(found[1], found[0], rtol=1e-6, atol=1e-6)


def test_passive_methods_train_in_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody needs the logits they are not formed; outputs and gradients are the same, in
    double precision, since a kernel sums in its own order."""
    fused, found = mock.Mock(wraps=multihead.attend_fused), []
    monkeypatch.setattr(multihead, "attend_fused", fused)
    for dropout in (0.0, 1e-12):  # the second drops nothing, and takes the other way
        attention = zoo.build("transformer_deterministic").encoder.layers[0].self_attn.double()
        attention.dropout_module.p = dropout
        x = torch.randn(9, 4, 16, generator=torch.Generator().manual_seed(0)).double()
        x.requires_grad_()
        padding = zoo.pad(SOURCES).eq(zoo.PAD)
        out = attention.train()(x, x, x, key_padding_mask=padding, need_weights=False)[0]
        out[:3].square().sum().backward()
        found.append((out, x.grad, attention.k_proj.weight.grad))
    assert fused.call_count == 1
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-10)


def test_layerdrop_leaves_no_layer_without_our_attention() -> None:
    options = {"encoder_layers": 8, "encoder_layerdrop": 0.9, "decoder_layerdrop": 0.9}
    model = zoo.build("transformer_deterministic", **options)
    attentions = [m for m in model.modules() if isinstance(m, MultiheadAttention)]
    assert len(attentions) == 8 + 3 + 3
    assert all(isinstance(m, StochasticMultiheadAttention) for m in attentions)


def test_dropout_is_drawn_as_often_as_in_plain_fairseq() -> None:
    """Same generator state after a step: a run with dropout stays comparable seed for seed."""
    found = []
    for model in both("lstm", dropout=0.3):
        model.train()
        torch.manual_seed(5)
        out = outputs(model, "lstm")
        found.append((out, torch.rand(1)))
    torch.testing.assert_close(found[1], found[0], rtol=1e-6, atol=1e-6)
