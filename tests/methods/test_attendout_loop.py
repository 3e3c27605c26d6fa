"""AttendOut's training loop in fairseq-train: rounds, checkpoints, precisions, ranks."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fairseq.optim.adam import FairseqAdam
from fairseq.trainer import Trainer
from torch import Tensor, nn

import runner
import sizes
import zoo
from fairseq_stochattn import compat
from fairseq_stochattn.compat import UsageError
from fairseq_stochattn.criterions.attendout import AttendOutCriterion
from fairseq_stochattn.criterions.reward_set import HeldOut
from fairseq_stochattn.methods.attendout.training_loop import LoopSettings, TwoPlayerLoop
from fairseq_stochattn.optim.copy_parameters import copy_parameters
from fairseq_stochattn.pretrained.export_fairseq import export
from precision import PRECISIONS

NO_DROPOUT = ("--dropout", 0, "--attention-dropout", 0)
SMALL = (*sizes.ROBERTA, *sizes.CLASSIFICATION, *NO_DROPOUT, "--batch-size", 32)
ATTENDOUT = (
    "--arch",
    "roberta_attendout",
    *SMALL,
    "--criterion",
    "attendout",
    "--attendout-steps",
    3,
)
LOGGED = ("reward", "baseline", "attacker_won", "attacker_kept", "policy_snr")


def state_of(folder: Path) -> dict:
    return compat.load_checkpoint(str(folder / "checkpoint_last.pt"))


def players(state: dict) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The parameters of attacker and defender, under fairseq's names."""
    prefix = "loop.defender."
    stored = state["criterion"].items()
    defender = {k.removeprefix(prefix): v for k, v in stored if k.startswith(prefix)}
    return {name: state["model"][name] for name in defender}, defender


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return all(torch.equal(first[name], value) for name, value in second.items())


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> list[tuple[TwoPlayerLoop, bool, bool]]:
    """For every round: the loop, and whether both players were equal before and after its end."""
    seen = []
    plain = TwoPlayerLoop.end_round

    def equal(loop: TwoPlayerLoop, optimizer: object) -> bool:
        own = dict(loop.attacker.named_parameters())
        held = getattr(optimizer, "fp32_params", None)
        held = {} if held is None else dict(zip(optimizer.fp16_params, held, strict=True))
        states = optimizer.optimizer.state
        for name, theirs in loop.defender.named_parameters():
            pair = own[name], theirs
            copies = [held.get(p, p) for p in pair]
            moments = [states[p]["exp_avg"] for p in copies if p in states]
            if not torch.equal(*pair) or not torch.equal(*copies):
                return False
            if moments and not torch.equal(*moments):
                return False
        return True

    def end_round(loop: TwoPlayerLoop, attacker, defender, chance: float, optimizer) -> None:
        before = equal(loop, optimizer)
        plain(loop, attacker, defender, chance, optimizer)
        seen.append((loop, before, equal(loop, optimizer)))

    monkeypatch.setattr(TwoPlayerLoop, "end_round", end_round)
    return seen


def test_players_differ_within_a_round_and_are_equal_after_it(
    rounds: list, classification_data: Path, tmp_path: Path
) -> None:
    flags = (*ATTENDOUT, "--attendout-survivor", "proportional", "--max-update", 10)
    output = runner.train(classification_data, tmp_path, *flags)
    assert [(before, after) for _, before, after in rounds] == [(False, True)] * 3
    rows = output.stats["train_inner"]
    assert all(name not in row for row in rows[:2] for name in LOGGED)
    assert all(name in row for row in rows[2:] for name in LOGGED)
    assert all(f"drop_encoder_{n}" in row for row in rows for n in (0, 1))
    assert all(float(row["defender_loss"]) > 0 for row in rows)
    assert not same(*players(state_of(tmp_path)))  # the tenth update was after the last round


def test_defender_trains_like_plain_fairseq(classification_data: Path, tmp_path: Path) -> None:
    """With the same seed and batches, and before the first round ends."""
    short = ("--max-update", 6, "--attendout-steps", 50, "--attendout-subset", "valid")
    plain = ("--arch", "roberta_attendout", *SMALL, "--criterion", "sentence_prediction")
    plain = (*plain, "--attention", "deterministic", "--max-update", 6)
    # Start both from one file, since building the generator changes the random state.
    runner.train(classification_data, tmp_path / "start", *plain, "--lr", 0, "--max-update", 1)
    start = ("--finetune-from-model", tmp_path / "start" / "checkpoint_last.pt")
    runner.train(classification_data, tmp_path / "plain", *plain, *start)
    runner.train(classification_data, tmp_path / "again", *ATTENDOUT, *short, *start)
    attacker, defender = players(state_of(tmp_path / "again"))
    expected = state_of(tmp_path / "plain")["model"]
    for name, value in defender.items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=2e-6)
    assert not same(attacker, defender)


def test_the_reward_set_is_not_trained_on(
    classification_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every fourth example of the training set, in every epoch."""
    trained, rewarded = set(), set()
    forward, batches = AttendOutCriterion.forward, HeldOut.batches

    def seen(self, model: nn.Module, sample: dict, reduce: bool = True) -> tuple:
        if model.training:
            trained.update(sample["id"].tolist())
        return forward(self, model, sample, reduce)

    def drawn(self, indices, device):
        rewarded.update(indices.tolist())
        return batches(self, indices, device)

    monkeypatch.setattr(AttendOutCriterion, "forward", seen)
    monkeypatch.setattr(HeldOut, "batches", drawn)
    flags = ("--attendout-holdout", 4, "--max-epoch", 2, "--no-save", "--batch-size", 8)
    runner.train(classification_data, tmp_path, *ATTENDOUT, "--max-update", 1000, *flags)
    assert all(index % 4 == 3 for index in rewarded)
    assert len(rewarded) > 5
    count = max(trained | rewarded) + 1
    assert trained == {index for index in range(count) if index % 4 != 3}


def test_plain_checkpoint_starts_both_players(classification_data: Path, tmp_path: Path) -> None:
    plain = ("--arch", "roberta", *SMALL, "--max-update", 3)
    runner.train(classification_data, tmp_path / "plain", *plain)
    checkpoint = tmp_path / "plain" / "checkpoint_last.pt"
    flags = (*ATTENDOUT, "--finetune-from-model", checkpoint, "--lr", 0, "--max-update", 1)
    runner.train(classification_data, tmp_path / "both", *flags)
    attacker, defender = players(state_of(tmp_path / "both"))
    assert same(state_of(tmp_path / "plain")["model"], defender)
    assert same(attacker, defender)


def test_finetuning_starts_a_new_training_loop(classification_data: Path, tmp_path: Path) -> None:
    runner.train(classification_data, tmp_path / "first", *ATTENDOUT, "--max-update", 5)
    start = ("--finetune-from-model", tmp_path / "first" / "checkpoint_last.pt", "--lr", 0)
    runner.train(classification_data, tmp_path / "second", *ATTENDOUT, *start, "--max-update", 1)
    state = state_of(tmp_path / "second")
    assert same(*players(state))
    assert state["criterion"]["loop._extra_state"]["updates"] == 1
    assert state["criterion"]["loop._extra_state"]["turn"] == 0


def test_resuming_continues_exactly(classification_data: Path, tmp_path: Path) -> None:
    """After a stop within a round or at its end, all numbers of the checkpoint are the same."""
    flags = (*ATTENDOUT, "--attendout-reward", "losses", "--max-update", 10, "--disable-validation")
    whole = tmp_path / "whole"
    straight = runner.train(classification_data, whole, *flags, "--save-interval-updates", 2)
    one = state_of(whole)
    for stop in (4, 6):
        parts = tmp_path / f"from {stop}"
        parts.mkdir()
        shutil.copy(whole / f"checkpoint_1_{stop}.pt", parts / "checkpoint_last.pt")
        resumed = runner.train(classification_data, parts, *flags)
        last = [output.stats["train_inner"][-1] for output in (straight, resumed)]
        assert len(resumed.stats["train_inner"]) == 10 - stop
        assert all(last[0][name] == last[1][name] for name in ("loss", "drop_encoder_1", *LOGGED))
        other = state_of(parts)
        assert same(one["model"], other["model"])
        assert same(*(players(state)[1] for state in (one, other)))
        loops = [state["criterion"]["loop._extra_state"] for state in (one, other)]
        assert loops[0]["turn"] == 3
        (traces,) = zip(*(loop["traces"] for loop in loops), strict=True)
        assert torch.equal(*traces)
        for name in ("updates", "turn", "baseline", "last_turn"):
            assert loops[0][name] == loops[1][name]


def test_checkpoints_of_version_0_1_are_resumed(classification_data: Path, tmp_path: Path) -> None:
    """They call the training loop "game"; resuming from one equals resuming from a new one."""
    flags = (*ATTENDOUT, "--disable-validation")
    runner.train(classification_data, tmp_path / "new", *flags, "--max-update", 4)
    state = state_of(tmp_path / "new")
    assert all(name.startswith("loop.") for name in state["criterion"])
    state["criterion"] = {
        f"game.{k.removeprefix('loop.')}": v for k, v in state["criterion"].items()
    }
    (tmp_path / "old").mkdir()
    torch.save(state, tmp_path / "old" / "checkpoint_last.pt")
    for name in ("new", "old"):
        runner.train(classification_data, tmp_path / name, *flags, "--max-update", 6)
    one, other = (state_of(tmp_path / name) for name in ("new", "old"))
    assert same(one["model"], other["model"])
    assert same(*(players(state)[1] for state in (one, other)))
    loops = [state["criterion"]["loop._extra_state"] for state in (one, other)]
    assert loops[0]["turn"] == loops[1]["turn"] == 2


def test_the_generator_does_not_learn_from_dummy_batches(
    classification_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fairseq gives a rank without data a dummy batch and ignores its gradient."""
    plain = Trainer._prepare_sample
    monkeypatch.setattr(Trainer, "_prepare_sample", lambda *args: (plain(*args)[0], True))
    runner.train(classification_data, tmp_path, *ATTENDOUT, "--max-update", 2)
    (trace,) = state_of(tmp_path)["criterion"]["loop._extra_state"]["traces"]
    assert trace.eq(0).all()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_reduced_precision(
    precision: str, rounds: list, classification_data: Path, tmp_path: Path
) -> None:
    """fp32 copies and optimizer state are copied with the parameters; the policy learns."""
    flags = (*ATTENDOUT, *PRECISIONS[precision], "--fp16-init-scale", 4, "--max-update", 6)
    flags = (*flags, "--attendout-reward", "losses", "--attendout-lr", 1e-5)
    output = runner.train(classification_data, tmp_path, *flags)
    assert len(output.losses()) == 6
    assert [(before, after) for _, before, after in rounds] == [(False, True)] * 2
    g = rounds[0][0].generators[0]
    assert g.in_proj.weight.dtype == torch.float32
    step = rounds[0][0].policy.state[g.in_proj.weight]
    assert step["step"] == 2
    assert step["exp_avg"].abs().max() > 0


@pytest.mark.parametrize("follows", [True, False])
def test_parameters_are_copied_within_a_flat_vector(follows: bool) -> None:
    """With --fp16 fairseq stores the fp32 copies of all parameters in one vector."""
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
    copy_parameters(pairs, optimizer, with_state=follows)
    assert torch.equal(a.weight, b.weight)
    half = flat.numel() // 2
    assert torch.equal(flat[:half], flat[half:])
    moments = inner.optimizer.state[flat]["exp_avg"]
    assert torch.equal(moments[half:], before[half:])
    assert torch.equal(moments[:half], before[half:] if follows else before[:half])


def test_the_defender_has_the_learning_rates_of_the_layers() -> None:
    model = zoo.build("roberta_attendout", layer_lr_decay=0.5)
    loop = TwoPlayerLoop(model, LoopSettings(), 1, partial(copy_parameters, with_state=True))
    own = dict(model.named_parameters())
    marked = 0
    for name, parameter in loop.defender.named_parameters():
        wanted = getattr(own[name], "optim_overrides", None)
        assert getattr(parameter, "optim_overrides", None) == wanted
        marked += wanted is not None
    assert marked > 0


def test_defender_is_a_plain_backbone_outside_of_the_model() -> None:
    model = zoo.build("transformer_attendout")
    plain = zoo.build("transformer_deterministic")
    loop = TwoPlayerLoop(model, LoopSettings(), 1, partial(copy_parameters, with_state=True))
    assert list(loop.defender.state_dict()) == list(plain.state_dict())
    assert {id(p) for p in loop.parameters()}.isdisjoint(id(p) for p in model.parameters())
    loop.defender.load_state_dict(plain.state_dict())
    rows = zoo.sentences(6, 3), zoo.sentences(5, 2)
    found = [zoo.run(x.train(), "transformer", *rows) for x in (plain, loop.defender)]
    assert torch.equal(*found)


def test_two_ranks_have_the_same_training_loop(tmp_path: Path) -> None:
    """Batches differ between ranks; reward, survivor, players and generator are the same."""
    ranks = [
        runner.start("python", runner.ROOT / "tests" / "loop_ranks.py", rank, tmp_path / "meet")
        for rank in (0, 1)
    ]
    results = [runner.finish(rank) for rank in ranks]
    assert all(r.returncode == 0 for r in results), results[0].stderr[-2000:] + results[1].stderr
    one, other = (json.loads(r.stdout.splitlines()[-1]) for r in results)
    assert one.pop("batch") != other.pop("batch")
    assert one == other
    assert len(set(one["kept"])) == 2  # both players have survived a round


def test_exported_attacker_is_a_plain_checkpoint(translation_data: Path, tmp_path: Path) -> None:
    flags = (*sizes.TRANSFORMER, "--dropout", 0, "--max-update", 3, "--disable-validation")
    loop = ("--arch", "transformer_attendout", "--criterion", "attendout", "--attendout-steps", 2)
    runner.train(translation_data, tmp_path / "loop", *flags, *loop)
    runner.train(translation_data, tmp_path / "plain", *flags, "--arch", "transformer")
    source, exported = tmp_path / "loop" / "checkpoint_last.pt", tmp_path / "exported.pt"
    assert export(source, exported) == "transformer"
    state, plain = (compat.load_checkpoint(str(p)) for p in (exported, source))
    assert list(state["model"]) == list(state_of(tmp_path / "plain")["model"])
    assert same(plain["model"], state["model"])
    assert state["criterion"] is None
    assert exported.stat().st_size < (tmp_path / "plain" / "checkpoint_last.pt").stat().st_size
    lines = [runner.generate(translation_data, path).text for path in (source, exported)]
    words = [[x.split("\t")[2] for x in text.splitlines() if x[:2] == "H-"] for text in lines]
    assert words[0] == words[1] != []
    losses = [runner.validate(translation_data, path).stats for path in (source, exported)]
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
    output = runner.train(request.getfixturevalue(data), tmp_path, *flags, *short)
    row = output.stats["train_inner"][-1]
    assert all(name in row for name in LOGGED)
    assert state_of(tmp_path)["criterion"]["loop._extra_state"]["turn"] == 2


BAD = {
    "plain arch": (
        ("--arch", "roberta_deterministic"),
        "needs an arch with attendout attention, e.g. roberta_attendout",
    ),
    "training set": (("--attendout-subset", "train"), "the model is trained on 'train'"),
    "unknown split": (("--attendout-subset", "dev"), "there is no split 'dev'"),
    "steps": (("--attendout-steps", 0), "--attendout-steps must be positive"),
    "sharded state": (("--zero-sharding", "os"), "add --attendout-optimizer-state keep"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_flags_are_refused(case: str, classification_data: Path, tmp_path: Path) -> None:
    flags, message = BAD[case]
    with pytest.raises(UsageError, match=message):
        runner.train(classification_data, tmp_path, *ATTENDOUT, *flags, "--max-update", 1)
    assert not list(tmp_path.glob("*.pt"))


def test_training_with_another_criterion_warns(classification_data: Path, tmp_path: Path) -> None:
    flags = ("--arch", "roberta_attendout", *SMALL, "--max-update", 2)
    output = runner.train(classification_data, tmp_path, *flags)
    assert output.text.count("attendout learns only with --criterion attendout") == 1
