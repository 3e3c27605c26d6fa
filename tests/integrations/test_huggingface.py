"""sa.convert on models of transformers: the identity method computes plain attention."""

from __future__ import annotations

import copy
import subprocess
import sys
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

import fairseq_stochattn as sa
import huggingface_zoo as zoo
from fairseq_stochattn.core.stack import AttentionStack

pytestmark = pytest.mark.usefixtures("transformers")


def outputs_and_gradients(
    model: nn.Module, batch: dict[str, Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    torch.manual_seed(3)
    model.zero_grad()
    output = model(**batch)
    output.loss.backward()
    return output.logits.detach(), {
        name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None
    }


@pytest.mark.parametrize("training", [False, True], ids=["eval", "training"])
@pytest.mark.parametrize("family", zoo.FAMILIES)
def test_identity_is_the_plain_model(family: str, training: bool) -> None:
    """Logits at real positions and gradients, on a padded batch; in training with dropout."""
    model = zoo.build(family).train(training)
    batch = zoo.batch(family)
    logits, grads = outputs_and_gradients(model, batch)
    before = model.config._attn_implementation
    sa.convert(model, sa.Deterministic())
    found, found_grads = outputs_and_gradients(model, batch)
    real = torch.ones_like(batch["labels"], dtype=torch.bool)
    if family in zoo.CAUSAL:
        real = batch["attention_mask"].bool()
    assert (found - logits)[real].abs().max() < 1e-6 * max(1.0, float(logits.abs().max()))
    assert found_grads.keys() == grads.keys()
    for name, grad in grads.items():
        limit = 1e-6 * max(1.0, float(grad.abs().max()))
        assert (found_grads[name] - grad).abs().max() < 2 * limit, name
    sa.revert(model)
    assert model.config._attn_implementation == before
    again, _ = outputs_and_gradients(model, batch)
    assert torch.equal(again, logits)
    assert not [name for name in model.state_dict() if "stochattn" in name]


@pytest.mark.parametrize("family", ["bart", "gpt2", "t5", "llama"])
def test_generation_with_beams_is_that_of_the_plain_model(family: str) -> None:
    model = zoo.build(family)
    batch = zoo.batch(family)
    del batch["labels"]
    settings = {"num_beams": 3, "max_new_tokens": 6, "do_sample": False}
    plain = model.generate(**batch, **settings)
    sa.convert(model, sa.Deterministic())
    assert torch.equal(model.generate(**batch, **settings), plain)
    sa.revert(model)
    sa.convert(model, sa.BAM())
    assert torch.equal(model.generate(**batch, **settings), plain), "the mean is plain attention"


@pytest.mark.parametrize(
    ("family", "sites"),
    [
        ("bert", {"encoder": 2}),
        ("albert", {"encoder": 3}),
        ("gpt2", {"decoder": 2}),
        ("bart", {"encoder": 2, "decoder": 2, "cross": 2}),
        ("t5", {"encoder": 2, "decoder": 2, "cross": 2}),
    ],
)
def test_sites_and_layers(family: str, sites: dict[str, int]) -> None:
    """Each layer of a stack runs once per forward pass, in its order."""
    model = sa.convert(zoo.build(family), sa.BAM(), layers="last").train()
    stacks = {m.site: m for m in model.modules() if isinstance(m, AttentionStack)}
    assert {site: stack.num_layers for site, stack in stacks.items()} == sites
    calls: list[tuple[str, int]] = []
    for stack in stacks.values():
        assert len(stack.methods) == 1
        site, last = stack.site, stack.num_layers - 1
        stack.methods[0].register_forward_hook(lambda *_, x=(site, last): calls.append(x))
    for _ in range(2):
        model(**zoo.batch(family))
        sa.collect_losses(model)
    assert sorted(calls) == sorted(2 * [(site, n - 1) for site, n in sites.items()])


def test_decoders_of_encoder_layers_have_three_sites(transformers: ModuleType) -> None:
    settings = {**zoo.FAMILIES["bert"][2], "is_decoder": True, "add_cross_attention": True}
    model = transformers.BertLMHeadModel(transformers.BertConfig(**settings)).eval()
    inputs = {
        "input_ids": torch.tensor([[4, 5, 6, 7]]),
        "encoder_hidden_states": torch.randn(1, 3, 16),
    }
    plain = model(**inputs).logits
    sa.convert(model, sa.Deterministic(), sites="cross")
    assert (model(**inputs).logits - plain).abs().max() < 1e-6
    assert {m.site for m in model.modules() if isinstance(m, AttentionStack)} == {
        *("decoder", "cross")
    }


@torch.no_grad()
def test_masks_of_floats_are_those_of_booleans() -> None:
    """A mask of the user with four axes: very low numbers block, others are added."""
    model = sa.convert(zoo.build("bert"), sa.BAM())
    batch = zoo.batch("bert")
    given = torch.where(batch["attention_mask"].bool(), 0.0, -1e9)[:, None, None, :]
    given = given.expand(-1, 1, 7, -1)
    expected = model(**batch).logits
    assert torch.equal(model(**{**batch, "attention_mask": given}).logits, expected)
    biased = given + torch.linspace(0, 3, 7)
    assert (model(**{**batch, "attention_mask": biased}).logits - expected).abs().max() > 1e-4


def test_copies_are_independent_and_errors_are_one_line() -> None:
    model = sa.convert(zoo.build("bert"), sa.BAM())
    twin = copy.deepcopy(model)
    sa.revert(model)
    torch.manual_seed(0)
    draws = sa.sample(twin, 3, **zoo.batch("bert"))
    assert draws.outputs.std(dim=0).max() > 0
    with pytest.raises(sa.core.errors.InputError, match="converted already"):
        sa.convert(twin, sa.BAM())
    with pytest.raises(sa.core.errors.InputError, match="no decoder attention"):
        sa.convert(model, sa.BAM(), sites="decoder")
    assert not hasattr(model, "_stochattn_hook")
    model.gradient_checkpointing_enable()
    with pytest.raises(sa.core.errors.InputError, match="gradient checkpointing"):
        sa.convert(model, sa.BAM())


WITHOUT_FAIRSEQ = """
import sys
sys.modules["fairseq"] = sys.modules["torchaudio"] = None
import fairseq_stochattn as sa
from fairseq_stochattn.integrations import convert
assert "transformers" not in sys.modules
import huggingface_zoo as zoo
model = sa.convert(zoo.build("bert"), [sa.BABN(), sa.Alignment("ct")]).train()
batch = zoo.batch("bert")
(model(**batch).loss + sa.collect_losses(model, step=1)).backward()
assert sa.sample(model, 2, **batch).outputs.shape == (2, 3, 2)
sa.revert(model, exact=False)
"""


def test_everything_works_without_fairseq() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_FAIRSEQ],
        **{"capture_output": True, "text": True, "timeout": 300, "cwd": zoo.__file__[:-18]},
    )
    assert done.returncode == 0, done.stderr
