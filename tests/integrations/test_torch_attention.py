"""``convert`` on torch's attention: equality with plain torch, properties of methods, errors."""

from __future__ import annotations

import copy
from collections.abc import Iterable

import pytest
import torch
from torch import Tensor, nn

import fairseq_stochattn as sa
from fairseq_stochattn.core.method import METHODS, AttentionMethod
from fairseq_stochattn.integrations.torch_attention import StochasticTorchAttention

WIDTH, HEADS, LENGTH = 16, 4, 7
LENGTHS = torch.tensor([7, 5, 3, 1, 6])
PADDING = torch.arange(LENGTH) >= LENGTHS[:, None]  # (5, 7)
CAUSAL = nn.Transformer.generate_square_subsequent_mask(LENGTH, dtype=torch.float64)
SETTINGS = {
    "deterministic": sa.Deterministic(),
    "babn": sa.BABN(),
    "bam": sa.BAM(),
    "gan": sa.Alignment(distance="gan"),
    "ot": sa.Alignment(distance="ot"),
    "ct": sa.Alignment(distance="ct"),
    "asa": sa.ASA(),
    "bernoulli": sa.Bernoulli(),
    "scheduled": sa.Scheduled(),
    "magnitude": sa.Magnitude(),
    "cell_dropout": sa.CellDropout(),
    "layerdrop": sa.LayerDrop(),
}
MASKS = ("asa", "bernoulli", "scheduled", "magnitude")
every_method = pytest.mark.parametrize("name", SETTINGS)


def encoder(seed: int = 0, dtype: torch.dtype = torch.float64, **options: object) -> nn.Module:
    torch.manual_seed(seed)
    options = {"dropout": 0.0, "batch_first": True, **options}
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, **options)
    return nn.TransformerEncoder(layer, 3).to(dtype)


def inputs(seed: int = 1, rows: int = 5, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, LENGTH, WIDTH, generator=generator, dtype=torch.float64).to(dtype)


def compare(
    plain: nn.Module, ours: nn.Module, outputs: Iterable[Tensor], real: Tensor | None = None
) -> None:
    """Outputs and gradients of both models agree to 1e-6."""
    ya, yb = ((y if real is None else y[real]) for y in outputs)
    torch.testing.assert_close(yb, ya, rtol=1e-6, atol=1e-6)
    direction = torch.randn(ya.shape, dtype=ya.dtype, generator=torch.Generator().manual_seed(3))
    for y in (ya, yb):
        (y * direction).sum().backward()
    gradients = dict(ours.named_parameters())
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(gradients[name].grad, parameter.grad, rtol=1e-6, atol=1e-6)


def test_every_attention_method_is_covered() -> None:
    covered = {settings.method for settings in SETTINGS.values()}
    own = {name for name, cls in METHODS.items() if not cls.__module__.startswith("toy_method")}
    assert own - {"temperature"} == covered | {"attendout"}  # attendout reads token ids


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("masks", ["none", "padding", "causal", "both"])
def test_the_identity_method_equals_the_plain_encoder(
    training: bool, batch_first: bool, norm_first: bool, masks: str
) -> None:
    given: dict[str, Tensor] = {}
    if masks in ("padding", "both"):
        given["src_key_padding_mask"] = PADDING
    if masks in ("causal", "both"):
        given["mask"] = CAUSAL if masks == "causal" else CAUSAL.isinf()
    x = inputs() if batch_first else inputs().transpose(0, 1)
    options = {"batch_first": batch_first, "norm_first": norm_first}
    plain = encoder(**options).train(training)
    ours = sa.convert(encoder(**options), sa.Deterministic()).train(training)
    real = ~PADDING if "src_key_padding_mask" in given else torch.ones_like(PADDING)
    real = real if batch_first else real.t()
    compare(plain, ours, [plain(x, **given), ours(x, **given)], real)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_the_identity_method_equals_the_plain_transformer(training: bool) -> None:
    """Encoder, decoder and cross-attention of nn.Transformer, with padding on both sides."""
    models = []
    for convert in (False, True):
        torch.manual_seed(0)
        model = nn.Transformer(WIDTH, HEADS, 2, 2, 32, 0.0, batch_first=True, dtype=torch.float64)
        models.append(sa.convert(model, sa.Deterministic()) if convert else model)
    source, target = inputs(1), inputs(2)
    masks = {
        "src_key_padding_mask": PADDING,
        "memory_key_padding_mask": PADDING,
        "tgt_key_padding_mask": PADDING.flip(0),
        "tgt_mask": CAUSAL.isinf(),
    }
    outputs = [model.train(training)(source, target, **masks) for model in models]
    compare(*models, outputs, ~PADDING.flip(0))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias": False},
        {"add_bias_kv": True},
        {"add_zero_attn": True},
        {"kdim": 10, "vdim": 12},
        {"batch_first": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("average", [True, False])
def test_the_identity_method_equals_every_kind_of_plain_attention(
    options: dict, average: bool
) -> None:
    models = []
    for convert in (False, True):
        torch.manual_seed(0)
        model = nn.MultiheadAttention(WIDTH, HEADS, dtype=torch.float64, **options)
        models.append(sa.convert(model, sa.Deterministic()) if convert else model)
    generator = torch.Generator().manual_seed(1)
    widths = WIDTH, options.get("kdim", WIDTH), options.get("vdim", WIDTH)
    q, k, v = (
        torch.randn(5, n, w, generator=generator, dtype=torch.float64)
        for n, w in zip((4, LENGTH, LENGTH), widths, strict=True)
    )
    if not options.get("batch_first"):
        q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    mask = torch.zeros(5 * HEADS, 4, LENGTH, dtype=torch.float64).uniform_(generator=generator)
    found = [
        model(q, k, v, key_padding_mask=PADDING, attn_mask=mask, average_attn_weights=average)
        for model in models
    ]
    torch.testing.assert_close(found[1][1], found[0][1], rtol=1e-6, atol=1e-6)
    compare(*models, [out for out, _ in found])
    single = [model(*(x[0] if options.get("batch_first") else x[:, 0] for x in (q, k, v)))
              for model in models]  # fmt: skip
    torch.testing.assert_close(single[1], single[0], rtol=1e-6, atol=1e-6)


def test_dropout_is_drawn_as_in_the_plain_model() -> None:
    """With the same seed, the dropout mask equals that of torch's own attention."""
    found = []
    for convert in (False, True):
        torch.manual_seed(0)
        model = nn.MultiheadAttention(WIDTH, HEADS, dropout=0.5, batch_first=True).double()
        model = sa.convert(model, sa.Deterministic()) if convert else model
        torch.manual_seed(5)
        found.append(model(inputs(), inputs(), inputs())[0])
    torch.testing.assert_close(found[1], found[0], rtol=1e-6, atol=1e-6)


def run(model: nn.Module, name: str, x: Tensor, **masks: Tensor) -> Tensor:
    """One forward pass in the current mode; masking methods need a paired batch in training."""
    if name in MASKS and model.training:
        clean, adversarial = sa.paired_forward(model, x, **masks)
        return torch.cat([clean, adversarial])
    return model(x, **masks)


@every_method
def test_batch_independence_and_padding(name: str) -> None:
    model = sa.convert(encoder(), SETTINGS[name]).eval()
    together = model(inputs(), src_key_padding_mask=PADDING)
    for row, length in enumerate(LENGTHS.tolist()):
        alone = model(inputs()[row : row + 1, :length])
        torch.testing.assert_close(alone[0], together[row, :length], rtol=1e-6, atol=1e-6)
    changed = inputs()
    changed[PADDING] = 100.0
    again = model(changed, src_key_padding_mask=PADDING)
    torch.testing.assert_close(again[~PADDING], together[~PADDING], rtol=1e-6, atol=1e-6)


@every_method
def test_the_side_of_the_padding_does_not_matter(name: str) -> None:
    model = sa.convert(encoder(), SETTINGS[name]).eval()
    right = model(inputs(), src_key_padding_mask=PADDING)
    moved = torch.stack([x.roll(LENGTH - n, 0) for x, n in zip(inputs(), LENGTHS, strict=True)])
    left = model(moved, src_key_padding_mask=PADDING.flip(1))
    torch.testing.assert_close(left[~PADDING.flip(1)], right[~PADDING], rtol=1e-6, atol=1e-6)


@every_method
def test_causality(name: str) -> None:
    model = sa.convert(encoder(), SETTINGS[name]).eval()
    first, second = inputs(), inputs()
    second[:, 4:] += 1.0
    seen = [model(x, mask=CAUSAL.isinf()) for x in (first, second)]
    torch.testing.assert_close(seen[0][:, :4], seen[1][:, :4], rtol=1e-6, atol=1e-6)
    assert not torch.allclose(seen[0][:, 4:], seen[1][:, 4:])


@every_method
@pytest.mark.parametrize("size", [1.0, 1e4])
def test_extremes_stay_finite(name: str, size: float) -> None:
    """A row of padding only, one-token rows, huge logits: no NaN in outputs, losses, gradients."""
    model = sa.convert(encoder(dtype=torch.float32), SETTINGS[name]).train()
    with torch.no_grad():
        for layer in model.layers:
            layer.self_attn.in_proj_weight[: 2 * WIDTH] *= size
    padding = PADDING.clone()
    padding[1] = True
    out = run(model, name, inputs(dtype=torch.float32), src_key_padding_mask=padding)
    loss = out.square().mean() + sa.collect_losses(model, step=10_000)
    loss.backward()
    assert torch.isfinite(loss)
    for parameter in model.parameters():
        assert parameter.grad is None or torch.isfinite(parameter.grad).all()


@every_method
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_reduced_precision(name: str, dtype: torch.dtype) -> None:
    model = sa.convert(encoder(dtype=torch.float32), SETTINGS[name]).eval()
    expected = model(inputs(dtype=torch.float32), src_key_padding_mask=PADDING)
    half = copy.deepcopy(model).to(dtype)
    found = half(inputs(dtype=dtype), src_key_padding_mask=PADDING)
    torch.testing.assert_close(found.float()[~PADDING], expected[~PADDING], rtol=0.1, atol=0.1)
    out = run(half.train(), name, inputs(dtype=dtype), src_key_padding_mask=PADDING)
    (out.float().mean() + sa.collect_losses(half)).backward()
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in half.parameters())


@every_method
def test_copies_are_independent(name: str) -> None:
    model = sa.convert(encoder(), SETTINGS[name])
    twin = copy.deepcopy(model)
    run(twin.train(), name, inputs())
    methods = [m for m in model.modules() if isinstance(m, AttentionMethod)]
    assert methods
    assert not any(method.losses for method in methods)
    assert torch.equal(model.eval()(inputs()), twin.eval()(inputs()))


@every_method
def test_training_changes_the_model_and_revert_gives_plain_torch(name: str) -> None:
    plain = encoder()
    model = sa.convert(encoder(), SETTINGS[name]).train()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(2):
        out = run(model, name, inputs(), src_key_padding_mask=PADDING)
        loss = out[: len(LENGTHS)].square().mean() + sa.collect_losses(model, step=step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    trained = model.eval()(inputs())
    assert not torch.allclose(trained, plain.eval()(inputs()), atol=1e-4)
    sa.revert(model, exact=name != "babn")
    assert model.state_dict().keys() == plain.state_dict().keys()
    assert type(model.layers[0].self_attn) is nn.MultiheadAttention
    assert model.use_nested_tensor == plain.use_nested_tensor
    torch.testing.assert_close(model(inputs()), trained, rtol=1e-4, atol=1e-4)
    plain.load_state_dict(model.state_dict())
    torch.testing.assert_close(plain(inputs()), model(inputs()))


@pytest.mark.parametrize(
    ("sites", "layers"), [("encoder,cross", "last"), (["encoder", "cross"], [1])]
)
def test_layers_and_sites_are_chosen(sites: str | list[str], layers: str | list[int]) -> None:
    torch.manual_seed(0)
    model = nn.Transformer(WIDTH, HEADS, 2, 2, 32, batch_first=True)
    sa.convert(model, sa.BAM(), sites=sites, layers=layers)
    with_method = {
        name
        for name, module in model.named_modules()
        if isinstance(module, StochasticTorchAttention) and len(module.attention_methods)
    }
    assert with_method == {"encoder.layers.1.self_attn", "decoder.layers.1.multihead_attn"}


def test_losses_that_nobody_collects_are_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    model = sa.convert(encoder(), sa.BABN(kl_anneal_updates=0)).train()
    model(inputs())
    once = sa.collect_losses(model)
    for _ in range(3):
        model(inputs())
    assert "babn left the loss kl" in caplog.text
    assert sa.collect_losses(model).item() == pytest.approx(once.item(), rel=0.2)
    assert sa.collect_losses(model) == 0


def test_the_losses_count_valid_pairs_only() -> None:
    """Padding changes nothing: the KL of a padded batch is that of its sentences."""
    model = sa.convert(encoder(), sa.BABN(kl_reduction="sum", kl_weight=1.0, kl_anneal_updates=0))
    with torch.no_grad():
        padded, alone = 0.0, 0.0
        model(inputs(), src_key_padding_mask=PADDING)
        padded = sa.collect_losses(model).item()
        for row, length in enumerate(LENGTHS.tolist()):
            model(inputs()[row : row + 1, :length])
            alone += sa.collect_losses(model).item()
    # Later layers see sampled attention: their logits, and so their KL, differ a little.
    assert padded == pytest.approx(alone, rel=0.05)


def test_steps_drive_schedules() -> None:
    model = sa.convert(encoder(), sa.Alignment(weight=1.0, start=5, warmup=10)).train()
    found = []
    for step in (0, 5, 10, 15, 99):
        torch.manual_seed(0)
        model(inputs())
        found.append(sa.collect_losses(model, step=step).item())
    full = found[-1]
    assert found == pytest.approx([0, 0, full / 2, full, full])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sa.convert(nn.Linear(2, 2), sa.BABN()), "contains no nn.MultiheadAttention"),
        (lambda: sa.convert(encoder(), sa.BABN(), sites="cross"), "no cross attention"),
        (lambda: sa.convert(encoder(), sa.BABN(), sites="heart"), "unknown site 'heart'"),
        (lambda: sa.convert(encoder(), sa.BABN(), layers="7"), "layers 7: out of range"),
        (lambda: sa.convert(encoder(), sa.BABN(), layers="x"), "layers: expected all, first"),
        (lambda: sa.convert(encoder(), sa.BABN(), sites=None), "sites must be a string or a list"),
        (lambda: sa.convert(encoder(), sa.BABN(), layers=0), "layers must be a string or a list"),
        (lambda: sa.convert(torch.jit.script(nn.ReLU()), sa.BABN()), "on the nn.Module itself"),
        (lambda: sa.convert(encoder(), "babn"), "'babn' is not a method"),
        (lambda: sa.convert(encoder(), []), "at least one method"),
        (lambda: sa.convert(encoder(), [sa.BAM(), sa.BAM()]), "bam is given twice"),
        (lambda: sa.convert(encoder(), [sa.ASA(), sa.BAM()]), "asa masks the output"),
        (lambda: sa.convert(encoder(), sa.AttendOut()), "attendout reads token ids"),
        (lambda: sa.convert(encoder(), [sa.CellDropout(), sa.BAM()]), "name bam first"),
        (lambda: sa.convert(sa.convert(encoder(), sa.BAM()), sa.BAM()), "converted already"),
        (lambda: sa.revert(encoder()), "not converted"),
        (
            lambda: sa.revert(sa.convert(encoder(), sa.BABN())),
            "babn does not compute plain attention",
        ),
        (lambda: sa.BABN(rho=-1), "rho must not be negative"),
        (lambda: sa.BABN(scores="odd"), "scores must be one of normalized, raw"),
        (lambda: sa.Alignment(distance="none"), "distance must be one of gan, ot, ct"),
        (lambda: sa.sample(encoder(), 3, inputs()), "nothing to sample"),
        (lambda: sa.sample(encoder(), 0, inputs()), "samples must be at least 1"),
    ],
)
def test_bad_input_is_a_value_error_of_one_line(call, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_a_refused_conversion_leaves_the_model_as_it_was() -> None:
    model = encoder()
    before = model(inputs())
    with pytest.raises(ValueError, match="out of range"):
        sa.convert(model, sa.BABN(), layers="9")
    assert type(model.layers[0].self_attn) is nn.MultiheadAttention
    assert torch.equal(model(inputs()), before)
    sa.convert(model, sa.BABN())
