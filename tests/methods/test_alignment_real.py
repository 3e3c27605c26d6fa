"""On real text, alignment halves the MMD between keys and queries of a small character model."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

import zoo
from fairseq_stochattn.criterions.attention_losses import AttentionLosses
from fairseq_stochattn.methods.alignment.distances import MATCHERS

UPDATES = 300


def trained_mmd(lines: list[Tensor], kind: str, weight: float) -> float:
    """Train with a fixed seed and return the squared MMD, averaged over the last 20 updates."""
    flags = {"alignment": kind, "alignment_weight": weight, "alignment_log_mmd": True}
    model = zoo.build("transformer_lm_alignment", **flags).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    criterion = AttentionLosses.__new__(AttentionLosses)
    generator = torch.Generator().manual_seed(0)
    measured = []
    for _ in range(UPDATES):
        picks = torch.randint(0, len(lines), (16,), generator=generator).tolist()
        rows = [lines[n] for n in picks]
        out = model(zoo.pad(zoo.shift(rows)))[0].flatten(0, 1)
        nll = F.cross_entropy(out, zoo.pad(rows).flatten(), ignore_index=zoo.PAD)
        loss, _, log = criterion.with_named_losses(model, nll, sample_size=1, log={})
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        measured.append(log["attention/mmd_sigma1"].item())
    return sum(measured[-20:]) / 20


def test_alignment_halves_the_mmd(novel: list[Tensor]) -> None:
    without = trained_mmd(novel, "ot", weight=0.0)
    found = {kind: trained_mmd(novel, kind, weight=0.1) for kind in MATCHERS}
    print(f"squared MMD without {without:.4f}", *(f"{k} {v:.4f}" for k, v in found.items()))
    assert all(value < without / 2 for value in found.values()), (without, found)
