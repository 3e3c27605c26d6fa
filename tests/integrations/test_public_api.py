"""The public functions: samples, uncertainty, repulsion, and the API without fairseq."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fairseq_stochattn as sa
import runner
from fairseq_stochattn.core.heads import find_heads
from fairseq_stochattn.methods.head_diversity import mean_cosine

CLASSES = 3


class Classifier(nn.Module):
    """Mean-pooled encoder states and a linear layer."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.out = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor, src_key_padding_mask: Tensor | None = None) -> Tensor:
        h = self.encoder(x, src_key_padding_mask=src_key_padding_mask)
        return self.out(h.mean(dim=1))


def batch(rows: int = 6) -> Tensor:
    return torch.randn(rows, 5, 16, generator=torch.Generator().manual_seed(2))


def test_samples_have_the_promised_shape_and_follow_the_seed() -> None:
    model = sa.convert(Classifier(), sa.BABN())
    model.train()
    found = []
    for max_rows in (None, 6, 13):
        torch.manual_seed(4)
        found.append(sa.sample(model, 20, batch(), max_rows=max_rows))
    assert found[0].outputs.shape == (20, 6, CLASSES)
    assert model.training
    assert all(draws.outputs.shape == found[0].outputs.shape for draws in found)
    torch.manual_seed(4)
    assert torch.equal(sa.sample(model, 20, batch()).outputs, found[0].outputs)
    assert not torch.equal(found[0].outputs[0], found[0].outputs[1])


def test_the_mean_of_samples_is_near_the_mean_attention_and_dropout_widens_them() -> None:
    model = sa.convert(Classifier(), sa.BAM(k=20.0)).eval()
    draws = sa.sample(model, 400, batch())
    wide = sa.sample(model, 400, batch(), dropout=True)
    assert (draws.mean - model(batch())).abs().max() < 0.02
    assert wide.std.mean() > 2 * draws.std.mean()
    assert torch.equal(model(batch()), model(batch()))


def test_batch_axis_and_shared_masks() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0)
    model = sa.convert(nn.TransformerEncoder(layer, 1), sa.BAM())
    x = torch.randn(5, 5, 16)  # as many rows as positions: the mask must not be copied
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    draws = sa.sample(model, 3, x, batch_dim=1, mask=mask)
    assert draws.outputs.shape == (3, 5, 5, 16)
    expected = model.eval()(x, mask=mask).transpose(0, 1)
    assert (draws.mean - expected).abs().mean() < 0.2


def test_uncertainty_of_known_distributions() -> None:
    certain = torch.tensor([1.0, 0.0, 0.0])
    other = torch.tensor([0.0, 1.0, 0.0])
    uniform = torch.full((3,), 1 / 3)
    agree = torch.stack([certain, certain])
    disagree = torch.stack([certain, other])
    ambiguous = torch.stack([uniform, uniform])
    found = sa.uncertainty(torch.stack([agree, disagree, ambiguous], dim=1))
    bits = math.log2(3)
    torch.testing.assert_close(found.entropy, torch.tensor([0.0, 1.0, bits]))
    torch.testing.assert_close(found.expected_entropy, torch.tensor([0.0, 0.0, bits]))
    torch.testing.assert_close(found.mutual_information, torch.tensor([0.0, 1.0, 0.0]))


@pytest.mark.parametrize("converted", [True, False])
def test_repulsion_changes_only_heads_and_keeps_the_base_optimizer(converted: bool) -> None:
    """After one step, the heads differ from those of the base; all other parameters are equal."""
    found = []
    for weight in (None, 5.0):
        model = Classifier().eval()
        if converted:
            sa.convert(model, sa.Deterministic()).eval()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        if weight is not None:
            optimizer = sa.Repulsive(optimizer, model, rule="svgd", weight=weight, epsilon=1.0)
        model(batch()).square().sum().backward()
        optimizer.step()
        found.append({name: p.detach().clone() for name, p in model.named_parameters()})
    for name in found[0]:
        same = torch.equal(found[0][name], found[1][name])
        assert same != ("in_proj" in name), name


def test_strong_repulsion_drives_heads_apart() -> None:
    model = Classifier()
    groups = find_heads(model)
    assert [group.num_heads for group in groups] == [4, 4]

    def similarity() -> float:
        parts = [part.detach().view(4, -1) for g in groups for part in g.parameters["q"][:1]]
        return float(torch.stack([mean_cosine(x) for x in parts]).mean())

    optimizer = sa.Repulsive(torch.optim.SGD(model.parameters(), 0.05), model, strength=1.0)
    start = similarity()
    for _ in range(30):
        optimizer.zero_grad()
        (0.0 * model(batch()).sum()).backward()
        optimizer.step()
    assert similarity() < start - 0.05


def test_state_and_schedulers_of_the_wrapped_optimizer() -> None:
    model = Classifier()
    base = torch.optim.AdamW(model.parameters(), 0.1)
    optimizer = sa.Repulsive(base, model, rule="spos", seed=3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    model(batch()).sum().backward()
    optimizer.step()
    scheduler.step()
    assert base.param_groups[0]["lr"] == pytest.approx(0.05)
    state = optimizer.state_dict()
    other = sa.Repulsive(torch.optim.AdamW(model.parameters(), 0.1), model, rule="spos")
    other.load_state_dict(state)
    assert other.num_updates == 1
    assert other.param_groups[0]["lr"] == pytest.approx(0.05)
    torch.optim.AdamW(model.parameters(), 0.1).load_state_dict(base.state_dict())
    with pytest.raises(ValueError, match="epsilon must be positive"):
        sa.Repulsive(base, model, epsilon=0)
    with pytest.raises(ValueError, match="projections: no projection 'z'"):
        sa.Repulsive(base, model, projections="z")


def test_frozen_heads_are_refused() -> None:
    model = Classifier()
    heads = [p for name, p in model.named_parameters() if "in_proj" not in name]
    with pytest.raises(ValueError, match="all selected heads are frozen"):
        sa.Repulsive(torch.optim.SGD(heads, 0.1), model)


def test_the_readme_snippet_runs() -> None:
    text = (runner.ROOT / "README.md").read_text()
    snippet = re.search(r"<!-- python: begin -->\n```python\n(.*?)```", text, re.S).group(1)
    assert 12 <= len(snippet.strip().splitlines()) <= 25
    subprocess.run([sys.executable, "-c", snippet], check=True, capture_output=True, timeout=120)


WITHOUT_FAIRSEQ = """
import sys
sys.modules["fairseq"] = None  # any import of it fails
import torch
from torch import nn
import fairseq_stochattn as sa
from fairseq_stochattn.core.method import METHODS
import fairseq_stochattn.methods

masks = {"asa", "bernoulli", "scheduled", "magnitude"}
trained = []
for name, method in METHODS.items():
    if method.needs_tokens:
        continue
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    model = sa.convert(nn.TransformerEncoder(layer, 2), method.Settings())
    optimizer = sa.Repulsive(torch.optim.AdamW(model.parameters(), 1e-3), model)
    x = torch.randn(4, 6, 16)
    for step in range(2):
        if name in masks:
            out, adversarial = sa.paired_forward(model, x)
            divergence = sa.divergence(out, adversarial)
            loss = out.square().mean() + divergence
        else:
            loss, divergence = model(x).square().mean(), None
        loss = loss + sa.collect_losses(model, step=step, divergence=divergence)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert torch.isfinite(loss)
    if method.samples_at_test:
        draws = sa.sample(model, 5, x)
        assert sa.uncertainty(draws.probabilities).mutual_information.shape == (4, 6)
    sa.revert(model, exact=False)
    trained.append(name)
print(" ".join(sorted(trained)))
"""


def test_everything_works_without_fairseq() -> None:
    """In a process that cannot import fairseq: convert, train, sample and revert every method."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_FAIRSEQ], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    expected = "alignment asa babn bam bernoulli cell_dropout deterministic layerdrop magnitude"
    assert done.stdout.split() == [*expected.split(), "scheduled"]


def test_torch_only_modules_neither_need_nor_patch_fairseq() -> None:
    """Also in a process that has fairseq: its Trainer stays as it was."""
    code = """
import sys
import fairseq_stochattn
assert "torch" not in sys.modules
import fairseq_stochattn.core.distributions, fairseq_stochattn.methods
import fairseq_stochattn.uncertainty.sampling, fairseq_stochattn.uncertainty.measures
assert not [name for name in sys.modules if name.split(".")[0] == "fairseq"]
from fairseq.trainer import Trainer
from fairseq import checkpoint_utils
from fairseq.models import ARCH_MODEL_REGISTRY
before = Trainer.__init__, Trainer._build_optimizer, checkpoint_utils.load_checkpoint_to_cpu
import fairseq_stochattn.core.stack, fairseq_stochattn.integrations.convert
after = Trainer.__init__, Trainer._build_optimizer, checkpoint_utils.load_checkpoint_to_cpu
assert before == after
assert "transformer_babn" not in ARCH_MODEL_REGISTRY
import fairseq_stochattn.models
assert "transformer_babn" in ARCH_MODEL_REGISTRY
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_the_house_keeps_its_rules() -> None:
    """core, methods and uncertainty do not import fairseq; methods/ has one entry per method.

    No file has more than 400 lines.
    """
    package = Path(sa.__file__).parent
    for folder in ("core", "methods", "uncertainty"):
        for path in (package / folder).rglob("*.py"):
            assert not re.search(r"import fairseq|from fairseq", path.read_text()), path
    listed = {
        path.stem
        for path in (package / "methods").iterdir()
        if not path.name.startswith("__") and (path.is_dir() or path.suffix == ".py")
    }
    attention = {
        name
        for name, cls in sa.core.method.METHODS.items()
        if cls.__module__.startswith("fairseq_stochattn.methods")
    }
    assert listed == attention | {"repulsive", "head_diversity", "freelb", "smart"}
    for path in package.parent.rglob("*.py"):
        if ".venv" not in path.parts:
            assert len(path.read_text().splitlines()) <= 400, path
