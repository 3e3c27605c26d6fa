"""Runs AttendOut's training loop as one of two ranks: ``loop_ranks.py RANK FILE``.

FILE, which must not exist yet, lets the two processes find each other. Prints what must be equal on
both ranks, and the batch, which must differ.
"""

from __future__ import annotations

import hashlib
import json
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch

sys.path.insert(0, str(Path(__file__).parent))

from fairseq.optim.adam import FairseqAdam

import zoo
from fairseq_stochattn.criterions.reward_set import summed_over_ranks
from fairseq_stochattn.methods.attendout.training_loop import (
    LoopSettings,
    PlayerResult,
    TwoPlayerLoop,
)
from fairseq_stochattn.optim.copy_parameters import copy_parameters

ROUNDS, STEPS = 6, 2


def digest(module: torch.nn.Module) -> str:
    """A hash of all parameters."""
    data = b"".join(p.detach().numpy().tobytes() for p in module.parameters())
    return hashlib.sha256(data).hexdigest()


def main(rank: int, file: str) -> None:
    """Train for some rounds and print the result as JSON."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{file}", rank=rank, world_size=2
    )
    model = zoo.build("roberta_attendout").train()
    loop = TwoPlayerLoop(
        model,
        LoopSettings(steps=STEPS, lr=0.01, temperature=1.0),
        seed=1,
        copy_parameters=partial(copy_parameters, with_state=True),
        reduce=summed_over_ranks,
    )
    adam = {"lr": [0.01], "adam_betas": "(0.9, 0.98)", "adam_eps": 1e-6, "weight_decay": 0}
    adam |= {"use_old_adam": True, "fp16_adam_stats": False, "tpu": False}
    trained = [p for p in (*model.parameters(), *loop.parameters()) if p.requires_grad]
    optimizer = FairseqAdam(SimpleNamespace(**adam), trained)
    kept = []
    for update in range(ROUNDS * STEPS):
        rows = zoo.sentences(6, 4, 3, seed=2 * update + rank)
        loop.begin_update(update, optimizer)
        loop.generators[0].learning = True
        losses = [
            zoo.run(player, "roberta", rows, rows).logsumexp(-1).mean()
            for player in (model, loop.defender)
        ]
        optimizer.zero_grad()
        sum(losses).backward()
        for parameter in trained:
            summed_over_ranks(parameter.grad)
        optimizer.step()
        if loop.end_update():
            totals = summed_over_ranks(torch.stack(losses).detach().double()).tolist()
            results = [PlayerResult(loss, None) for loss in totals]
            loop.end_round(*results, loop.random().random(), optimizer)
            kept.append(loop.last_round["attacker_kept"])
    print(
        json.dumps(
            {
                "batch": rows[0].tolist(),
                "kept": kept,
                "baseline": loop.baseline,
                "attacker": digest(model),
                "defender": digest(loop.defender),
                "generator": digest(loop.generators[0]),
            }
        )
    )
    # A thread of the group that is still there at exit can abort the process.
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
