"""One rank of a game between two processes: ``game_ranks.py RANK MEETING_POINT``.

Prints what has to be the same on both ranks, and the batch, which is not.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import torch

sys.path.insert(0, str(Path(__file__).parent))

from fairseq.optim.adam import FairseqAdam

import zoo
from fairseq_stochattn.game import Game, Result, Rules
from fairseq_stochattn.held_out import summed_over_ranks

TURNS, STEPS = 6, 2


def digest(module: torch.nn.Module) -> str:
    data = b"".join(p.detach().numpy().tobytes() for p in module.parameters())
    return hashlib.sha256(data).hexdigest()


def main(rank: int, meeting_point: str) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{meeting_point}", rank=rank, world_size=2
    )
    model = zoo.build("roberta_attendout").train()
    game = Game(model, Rules(steps=STEPS, lr=0.01, temperature=1.0), seed=1)
    adam = {"lr": [0.01], "adam_betas": "(0.9, 0.98)", "adam_eps": 1e-6, "weight_decay": 0}
    adam |= {"use_old_adam": True, "fp16_adam_stats": False, "tpu": False}
    trained = [p for p in (*model.parameters(), *game.parameters()) if p.requires_grad]
    optimizer = FairseqAdam(SimpleNamespace(**adam), trained)
    kept = []
    for update in range(TURNS * STEPS):
        rows = zoo.sentences(6, 4, 3, seed=2 * update + rank)
        game.begin_update(update, optimizer)
        game.makers[0].learning = True
        losses = [
            zoo.run(player, "roberta", rows, rows).logsumexp(-1).mean()
            for player in (model, game.defender)
        ]
        optimizer.zero_grad()
        sum(losses).backward()
        for parameter in trained:
            summed_over_ranks(parameter.grad)
        optimizer.step()
        if game.end_update():
            totals = summed_over_ranks(torch.stack(losses).detach().double()).tolist()
            results = [Result(loss, None) for loss in totals]
            game.end_turn(*results, game.random().random(), optimizer)
            kept.append(game.last_turn["attacker_kept"])
    print(
        json.dumps(
            {
                "batch": rows[0].tolist(),
                "kept": kept,
                "baseline": game.baseline,
                "attacker": digest(model),
                "defender": digest(game.defender),
                "generator": digest(game.makers[0]),
            }
        )
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
