"""The game of AttendOut as fairseq-train plays it: turns, checkpoints, precisions, ranks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fairseq.optim.adam import FairseqAdam
from fairseq.trainer import Trainer
from torch import Tensor, nn

import commands
import sizes
import zoo
from fairseq_stochattn import compat
from fairseq_stochattn.errors import UsageError
from fairseq_stochattn.export import export
from fairseq_stochattn.game import Game, Rules
from fairseq_stochattn.optim.twins import copy_to_twins
from test_precision import PRECISIONS

STILL = ("--dropout", 0, "--attention-dropout", 0)
SMALL = (*sizes.ROBERTA, *sizes.CLASSIFICATION, *STILL, "--batch-size", 32)
GAME = ("--arch", "roberta_attendout", *SMALL, "--criterion", "attendout", "--attendout-steps", 3)
PLAY = ("reward", "baseline", "attacker_won", "attacker_kept")


def state_of(folder: Path) -> dict:
    return compat.load_checkpoint(str(folder / "checkpoint_last.pt"))


def players(state: dict) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The parameters of attacker and defender, under fairseq's names."""
    prefix = "game.defender."
    stored = state["criterion"].items()
    defender = {k.removeprefix(prefix): v for k, v in stored if k.startswith(prefix)}
    return {name: state["model"][name] for name in defender}, defender


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return all(torch.equal(first[name], value) for name, value in second.items())


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Game, bool, bool]]:
    """At every turn: whether the players were equal before, and whether they are after."""
    seen = []
    plain = Game.end_turn

    def equal(game: Game, optimizer: object) -> bool:
        own = dict(game.attacker.named_parameters())
        held = getattr(optimizer, "fp32_params", None)
        held = {} if held is None else dict(zip(optimizer.fp16_params, held, strict=True))
        memory = optimizer.optimizer.state
        for name, theirs in game.defender.named_parameters():
            pair = own[name], theirs
            copies = [held.get(p, p) for p in pair]
            moments = [memory[p]["exp_avg"] for p in copies if p in memory]
            if not torch.equal(*pair) or not torch.equal(*copies):
                return False
            if moments and not torch.equal(*moments):
                return False
        return True

    def end_turn(game: Game, attacker, defender, chance: float, optimizer) -> None:
        before = equal(game, optimizer)
        plain(game, attacker, defender, chance, optimizer)
        seen.append((game, before, equal(game, optimizer)))

    monkeypatch.setattr(Game, "end_turn", end_turn)
    return seen


def test_players_differ_within_a_turn_and_are_one_after_it(
    turns: list, classification_data: Path, tmp_path: Path
) -> None:
    flags = (*GAME, "--attendout-survivor", "proportional", "--max-update", 10)
    output = commands.train(classification_data, tmp_path, *flags)
    assert [(before, after) for _, before, after in turns] == [(False, True)] * 3
    rows = output.stats["train_inner"]
    assert all(name not in row for row in rows[:2] for name in PLAY)
    assert all(name in row for row in rows[2:] for name in PLAY)
    assert all(f"drop_encoder_{n}" in row for row in rows for n in (0, 1))
    assert all(float(row["defender_loss"]) > 0 for row in rows)
    assert not same(*players(state_of(tmp_path)))  # the tenth update was after the last turn


def test_defender_is_what_plain_fairseq_trains(classification_data: Path, tmp_path: Path) -> None:
    """Same seed, same batches, no turn: the attacker's masks are none of its business."""
    short = ("--max-update", 6, "--attendout-steps", 50)
    plain = ("--arch", "roberta_attendout", *SMALL, "--criterion", "sentence_prediction")
    plain = (*plain, "--attention", "deterministic", "--max-update", 6)
    # The generator comes before the head in the random state: start both from one file.
    commands.train(classification_data, tmp_path / "start", *plain, "--lr", 0, "--max-update", 1)
    start = ("--finetune-from-model", tmp_path / "start" / "checkpoint_last.pt")
    commands.train(classification_data, tmp_path / "plain", *plain, *start)
    commands.train(classification_data, tmp_path / "again", *GAME, *short, *start)
    attacker, defender = players(state_of(tmp_path / "again"))
    expected = state_of(tmp_path / "plain")["model"]
    for name, value in defender.items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=2e-6)
    assert not same(attacker, defender)


def test_plain_checkpoint_starts_both_players(classification_data: Path, tmp_path: Path) -> None:
    plain = ("--arch", "roberta", *SMALL, "--max-update", 3)
    commands.train(classification_data, tmp_path / "plain", *plain)
    checkpoint = tmp_path / "plain" / "checkpoint_last.pt"
    flags = (*GAME, "--finetune-from-model", checkpoint, "--lr", 0, "--max-update", 1)
    commands.train(classification_data, tmp_path / "both", *flags)
    attacker, defender = players(state_of(tmp_path / "both"))
    assert same(state_of(tmp_path / "plain")["model"], defender)
    assert same(attacker, defender)


def test_finetuning_a_game_begins_a_new_one(classification_data: Path, tmp_path: Path) -> None:
    commands.train(classification_data, tmp_path / "first", *GAME, "--max-update", 5)
    start = ("--finetune-from-model", tmp_path / "first" / "checkpoint_last.pt", "--lr", 0)
    commands.train(classification_data, tmp_path / "second", *GAME, *start, "--max-update", 1)
    state = state_of(tmp_path / "second")
    assert same(*players(state))
    assert state["criterion"]["game._extra_state"]["updates"] == 1
    assert state["criterion"]["game._extra_state"]["turn"] == 0


def test_resuming_plays_on_the_same_game(classification_data: Path, tmp_path: Path) -> None:
    """Stopped within a turn, or at the end of one: every number of the checkpoint is the same."""
    flags = (*GAME, "--attendout-reward", "losses", "--max-update", 10, "--disable-validation")
    whole = tmp_path / "whole"
    straight = commands.train(classification_data, whole, *flags, "--save-interval-updates", 2)
    one = state_of(whole)
    for stop in (4, 6):
        parts = tmp_path / f"from {stop}"
        parts.mkdir()
        shutil.copy(whole / f"checkpoint_1_{stop}.pt", parts / "checkpoint_last.pt")
        resumed = commands.train(classification_data, parts, *flags)
        last = [output.stats["train_inner"][-1] for output in (straight, resumed)]
        assert len(resumed.stats["train_inner"]) == 10 - stop
        assert all(last[0][name] == last[1][name] for name in ("loss", "drop_encoder_1", *PLAY))
        other = state_of(parts)
        assert same(one["model"], other["model"])
        assert same(*(players(state)[1] for state in (one, other)))
        games = [state["criterion"]["game._extra_state"] for state in (one, other)]
        assert games[0]["turn"] == 3
        (traces,) = zip(*(game["traces"] for game in games), strict=True)
        assert torch.equal(*traces)
        for name in ("updates", "turn", "baseline", "last_turn"):
            assert games[0][name] == games[1][name]


def test_dummy_batches_teach_nothing(
    classification_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fairseq gives a rank without data another one's batch, and ignores its gradient."""
    plain = Trainer._prepare_sample
    monkeypatch.setattr(Trainer, "_prepare_sample", lambda *args: (plain(*args)[0], True))
    commands.train(classification_data, tmp_path, *GAME, "--max-update", 2)
    (trace,) = state_of(tmp_path)["criterion"]["game._extra_state"]["traces"]
    assert trace.eq(0).all()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_reduced_precision(
    precision: str, turns: list, classification_data: Path, tmp_path: Path
) -> None:
    """The fp32 copies and the optimizer's state go with the parameters; the policy learns."""
    flags = (*GAME, *PRECISIONS[precision], "--fp16-init-scale", 4, "--max-update", 6)
    flags = (*flags, "--attendout-reward", "losses", "--attendout-lr", 1e-5)
    output = commands.train(classification_data, tmp_path, *flags)
    assert len(output.losses()) == 6
    assert [(before, after) for _, before, after in turns] == [(False, True)] * 2
    g = turns[0][0].makers[0]
    assert g.in_proj.weight.dtype == torch.float32
    step = turns[0][0].policy.state[g.in_proj.weight]
    assert step["step"] == 2
    assert step["exp_avg"].abs().max() > 0


@pytest.mark.parametrize("follows", [True, False])
def test_parts_of_flat_parameters_go_to_their_twins(follows: bool) -> None:
    """fairseq's --fp16 holds all parameters as one fp32 vector."""
    a, b = (nn.Linear(3, 2).half() for _ in range(2))
    parameters = [*a.parameters(), *b.parameters()]
    flat = nn.Parameter(torch.cat([p.detach().float().flatten() for p in parameters]) + 1e-5)
    inner = FairseqAdam(
        SimpleNamespace(
            **{"lr": [0.1], "adam_betas": "(0.9, 0.98)", "adam_eps": 1e-6, "weight_decay": 0},
            **{"use_old_adam": True, "fp16_adam_stats": False, "tpu": False},
        ),
        [flat],
    )
    flat.grad = torch.randn_like(flat)
    inner.step()
    optimizer = SimpleNamespace(
        fp16_params=parameters, fp32_params={0: flat}, optimizer=inner.optimizer
    )
    pairs = list(zip(b.parameters(), a.parameters(), strict=True))
    before = inner.optimizer.state[flat]["exp_avg"].clone()
    copy_to_twins(pairs, optimizer, with_state=follows)
    assert torch.equal(a.weight, b.weight)
    half = flat.numel() // 2
    assert torch.equal(flat[:half], flat[half:])
    moments = inner.optimizer.state[flat]["exp_avg"]
    assert torch.equal(moments[half:], before[half:])
    assert torch.equal(moments[:half], before[half:] if follows else before[:half])


def test_shares_of_the_learning_rate_go_to_the_defender() -> None:
    model = zoo.build("roberta_attendout", layer_lr_decay=0.5)
    game = Game(model, Rules(), seed=1)
    own = dict(model.named_parameters())
    marked = 0
    for name, parameter in game.defender.named_parameters():
        wanted = getattr(own[name], "optim_overrides", None)
        assert getattr(parameter, "optim_overrides", None) == wanted
        marked += wanted is not None
    assert marked > 0


def test_defender_is_the_backbone_and_no_part_of_the_model() -> None:
    model = zoo.build("transformer_attendout")
    plain = zoo.build("transformer_deterministic")
    game = Game(model, Rules(), seed=1)
    assert list(game.defender.state_dict()) == list(plain.state_dict())
    assert {id(p) for p in game.parameters()}.isdisjoint(id(p) for p in model.parameters())
    game.defender.load_state_dict(plain.state_dict())
    rows = zoo.sentences(6, 3), zoo.sentences(5, 2)
    found = [zoo.run(x.train(), "transformer", *rows) for x in (plain, game.defender)]
    assert torch.equal(*found)


def test_two_ranks_play_one_game(tmp_path: Path) -> None:
    """Other batches on each rank; the same reward, draw, players and generator on both."""
    ranks = [
        commands.start("python", Path(__file__).with_name("game_ranks.py"), rank, tmp_path / "meet")
        for rank in (0, 1)
    ]
    results = [commands.finish(rank) for rank in ranks]
    assert all(r.returncode == 0 for r in results), results[0].stderr[-2000:] + results[1].stderr
    one, other = (json.loads(r.stdout.splitlines()[-1]) for r in results)
    assert one.pop("batch") != other.pop("batch")
    assert one == other
    assert len(set(one["kept"])) == 2  # both players have survived at some turn


def test_exported_attacker_is_plain_and_no_larger(translation_data: Path, tmp_path: Path) -> None:
    flags = (*sizes.TRANSFORMER, "--dropout", 0, "--max-update", 3, "--disable-validation")
    game = ("--arch", "transformer_attendout", "--criterion", "attendout", "--attendout-steps", 2)
    commands.train(translation_data, tmp_path / "game", *flags, *game)
    commands.train(translation_data, tmp_path / "plain", *flags, "--arch", "transformer")
    source, exported = tmp_path / "game" / "checkpoint_last.pt", tmp_path / "exported.pt"
    assert export(source, exported) == "transformer"
    state, plain = (compat.load_checkpoint(str(p)) for p in (exported, source))
    assert list(state["model"]) == list(state_of(tmp_path / "plain")["model"])
    assert same(plain["model"], state["model"])
    assert state["criterion"] is None
    assert exported.stat().st_size < (tmp_path / "plain" / "checkpoint_last.pt").stat().st_size
    lines = [commands.generate(translation_data, path).text for path in (source, exported)]
    words = [[x.split("\t")[2] for x in text.splitlines() if x[:2] == "H-"] for text in lines]
    assert words[0] == words[1] != []
    losses = [commands.validate(translation_data, path).stats for path in (source, exported)]
    assert losses[0]["valid"][0]["valid_loss"] == losses[1]["valid"][0]["valid_loss"]


OTHER_TASKS = {
    "tagging": ("roberta_attendout", "tagging_data", sizes.ROBERTA, sizes.TAGGING),
    "choice": ("roberta_attendout", "choice_data", sizes.ROBERTA, sizes.CHOICE),
    "electra": ("electra_attendout", "classification_data", sizes.ELECTRA, sizes.CLASSIFICATION),
    "language model": ("transformer_lm_attendout", "lm_data", sizes.TRANSFORMER_LM, ()),
}


@pytest.mark.parametrize("task", OTHER_TASKS)
def test_other_tasks(task: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    arch, data, size, kind = OTHER_TASKS[task]
    flags = ("--arch", arch, *size, *kind, "--criterion", "attendout", "--attendout-steps", 2)
    short = ("--batch-size", 16, "--max-update", 4, "--update-freq", 2, "--disable-validation")
    output = commands.train(request.getfixturevalue(data), tmp_path, *flags, *short)
    row = output.stats["train_inner"][-1]
    assert all(name in row for name in PLAY)
    assert state_of(tmp_path)["criterion"]["game._extra_state"]["turn"] == 2


BAD = {
    "plain arch": (
        ("--arch", "roberta_deterministic"),
        "needs an arch with attendout attention, e.g. roberta_attendout",
    ),
    "training set": (("--valid-subset", "train"), "'train' is what the model is trained on"),
    "no such set": (("--attendout-subset", "dev"), "there is no set 'dev'"),
    "steps": (("--attendout-steps", 0), "--attendout-steps must be positive"),
    "sharded state": (("--zero-sharding", "os"), "add --attendout-optimizer-state keep"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_work_says_so(case: str, classification_data: Path, tmp_path: Path) -> None:
    flags, complaint = BAD[case]
    with pytest.raises(UsageError, match=complaint):
        commands.train(classification_data, tmp_path, *GAME, *flags, "--max-update", 1)
    assert not list(tmp_path.glob("*.pt"))


def test_without_its_criterion_it_warns(classification_data: Path, tmp_path: Path) -> None:
    flags = ("--arch", "roberta_attendout", *SMALL, "--max-update", 2)
    output = commands.train(classification_data, tmp_path, *flags)
    assert output.text.count("attendout learns with --criterion attendout alone") == 1
