"""asa on real text: a smaller penalty weight τ masks more attention of a small character model."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import torch
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.criterions.cross_entropy import CrossEntropyCriterion
from torch import Tensor, nn

import zoo

START, UPDATES = 150, 150


def train(model: nn.Module, lines: list[Tensor], tau: float, start: int, stop: int) -> list[dict]:
    """Train with the criterion asa, whose attack starts at update START.

    Returns the logged terms of each update per token.
    """
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    flags = {"asa_weight": 1.0, "asa_tau": tau, "asa_start": START, "kl_reduction": "mean"}
    flags |= {"kl_weight": 0.0, "kl_start": 0, "kl_anneal_updates": 0}
    config = SimpleNamespace(task_criterion="cross_entropy", **flags)
    own = CrossEntropyCriterion(zoo.task(), sentence_avg=False)
    criterion = CRITERION_REGISTRY["asa"](zoo.task(), own, config)
    generator = torch.Generator().manual_seed(start)
    torch.manual_seed(start)
    measured = []
    for update in range(start, stop):
        rows = [lines[n] for n in torch.randint(0, len(lines), (16,), generator=generator).tolist()]
        inputs, size = {"src_tokens": zoo.pad(zoo.shift(rows))}, sum(map(len, rows))
        model.set_num_updates(update)
        loss, _, log = criterion(
            model, {"net_input": inputs, "target": zoo.pad(rows), "ntokens": size}
        )
        optimizer.zero_grad()
        (loss / size).backward()
        optimizer.step()
        measured.append({name.removeprefix("attention/"): float(log[name]) / size for name in log})
    return measured


def test_a_lower_tau_masks_more(novel: list[Tensor]) -> None:
    """A model trained without masks is trained further with three values of τ and equal batches."""
    learnt = zoo.build("transformer_lm_asa").train()
    train(learnt, novel, tau=0.0, start=0, stop=START)
    shares = []
    for tau in (0.1, 0.3, 1.0):
        rows = train(copy.deepcopy(learnt), novel, tau, START, START + UPDATES)[-50:]
        mean = {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}
        by_layer = ", ".join(f"{mean[f'masked_share_decoder_{n}']:.3f}" for n in range(3))
        shares.append(mean["masked_share"])
        print(
            f"τ {tau}: masked share {shares[-1]:.3f}, by layer {by_layer}; nll {mean['loss']:.2f}"
        )
    assert shares[0] > shares[1] > shares[2] > 0
