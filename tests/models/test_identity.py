"""With the method ``deterministic``, outputs and gradients equal those of plain fairseq."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
import torch
from fairseq.modules import MultiheadAttention
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor, nn

import zoo
from fairseq_stochattn.core.method import MethodDict
from fairseq_stochattn.core.stack import AttentionStack
from fairseq_stochattn.models import multihead_attention as multihead
from fairseq_stochattn.models.multihead_attention import StochasticMultiheadAttention

BACKBONES = ["transformer", "transformer_lm", "lstm", *zoo.ENCODERS]
SOURCES, TARGETS = zoo.sentences(9, 7, 4, 1), zoo.sentences(8, 5, 3, 1, seed=1)


def both(backbone: str, **overrides) -> tuple[nn.Module, nn.Module]:
    """fairseq's model, and the same model with ``deterministic`` attention, from the same seed."""
    plain = zoo.build(backbone, **overrides)
    ours = zoo.build(f"{backbone}_deterministic", **overrides)
    return plain, ours


def outputs(model: nn.Module, backbone: str) -> Tensor:
    """The model's outputs at non-padding positions."""
    rows = SOURCES if backbone in zoo.ENCODERS else TARGETS
    left = backbone in ("transformer", "lstm")  # the default side of source padding in fairseq
    return zoo.non_padding_outputs(zoo.run(model, backbone, SOURCES, TARGETS, left), backbone, rows)


@pytest.mark.parametrize("backbone", BACKBONES)
def test_same_seed_gives_the_same_parameters(backbone: str) -> None:
    plain, ours = (model.state_dict() for model in both(backbone))
    assert list(plain) == list(ours)
    assert all(torch.equal(plain[name], ours[name]) for name in plain)


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("backbone", BACKBONES)
def test_outputs_and_gradients_are_equal(backbone: str, mode: str) -> None:
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
def test_outputs_are_equal_in_double_precision(backbone: str) -> None:
    plain, ours = (model.double() for model in both(backbone))
    if backbone == "transformer":
        # fairseq's cross-attention rounds its weights to fp32, so only the encoder is compared.
        tokens = zoo.pad(SOURCES, left=True)
        out, our_out = (m.encoder(tokens)["encoder_out"][0] for m in (plain, ours))
        keep = tokens.ne(zoo.PAD).t()
        out, our_out = out[keep], our_out[keep]
    else:
        out, our_out = outputs(plain, backbone), outputs(ours, backbone)
    torch.testing.assert_close(our_out, out, rtol=0, atol=1e-12)


@pytest.mark.parametrize("heads", [False, True])
def test_attention_weights_are_equal(heads: bool) -> None:
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
def test_averaged_weights_are_equal(backbone: str, need_attention: bool) -> None:
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
def test_outputs_are_equal_with_options_of_fairseq(options: dict) -> None:
    found = []
    for model in both("transformer", **options):
        torch.manual_seed(4)
        np.random.seed(4)
        found.append(outputs(model.train(), "transformer"))
    torch.testing.assert_close(found[1], found[0], rtol=1e-6, atol=1e-6)


def test_bias_kv_and_zero_attention_are_equal() -> None:
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
def test_beam_search_is_equal(backbone: str, dropout: float) -> None:
    """Hypotheses and scores are equal, even if a sentence's beams share one copy of its keys."""
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


def test_incremental_decoding_with_one_copy_of_keys() -> None:
    """As in BART's beam search, three hypotheses per sentence share one copy of its keys.

    The models run in double precision, since fairseq multiplies in another order here.
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


def test_passive_methods_train_with_a_fused_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs and gradients equal those without the fused kernel.

    The comparison is in double precision, since the kernel sums in another order.
    """
    fused, found = mock.Mock(wraps=multihead.attend_fused), []
    monkeypatch.setattr(multihead, "attend_fused", fused)
    for dropout in (0.0, 1e-12):  # the second drops nothing, but prevents the fused kernel
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


def test_layerdrop_models_have_stochastic_attention_in_every_layer() -> None:
    options = {"encoder_layers": 8, "encoder_layerdrop": 0.9, "decoder_layerdrop": 0.9}
    model = zoo.build("transformer_deterministic", **options)
    attentions = [m for m in model.modules() if isinstance(m, MultiheadAttention)]
    assert len(attentions) == 8 + 3 + 3
    assert all(isinstance(m, StochasticMultiheadAttention) for m in attentions)


def test_random_state_after_a_step_equals_that_of_fairseq() -> None:
    """Dropout uses as many random numbers as in fairseq, so equal seeds give comparable runs."""
    found = []
    for model in both("lstm", dropout=0.3):
        model.train()
        torch.manual_seed(5)
        out = outputs(model, "lstm")
        found.append((out, torch.rand(1)))
    torch.testing.assert_close(found[1], found[0], rtol=1e-6, atol=1e-6)
