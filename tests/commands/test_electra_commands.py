"""ELECTRA in fairseq's own commands: pre-training, fine-tuning, precision, ranks, bad input."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils

import runner
import sizes
from bad_input import complaint
from fairseq_stochattn import compat
from precision import PRECISIONS

NO_DROPOUT = ("--dropout", 0, "--attention-dropout", 0)
PRETRAIN = (*sizes.ELECTRA, *sizes.REPLACED_TOKENS)
# With the same number of positions as pre-training has by default.
FINETUNE = (*sizes.ELECTRA, *sizes.CLASSIFICATION, "--max-positions", 512)
DETERMINISTIC = ("--arch", "electra_deterministic")
TERMS = {"mlm_loss", "rtd_loss", "rtd_accuracy", "rtd_recall", "replaced"}
# Names of shared parameters in the checkpoint: discriminator → generator.
TIED = {
    "encoder.sentence_encoder.embed_tokens.weight": (
        "generator.sentence_encoder.embed_tokens.weight",
        "generator.lm_head.weight",
    ),
    **{
        f"encoder.sentence_encoder.{name}": (f"generator.sentence_encoder.{name}",)
        for name in (
            *("embed_positions.weight", "embed_segments.weight"),
            *("layernorm_embedding.weight", "layernorm_embedding.bias"),
        )
    },
}


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return compat.load_checkpoint(str(folder / "checkpoint_last.pt"))["model"]


def assert_tied(state: dict[str, torch.Tensor]) -> None:
    for name, others in TIED.items():
        assert all(torch.equal(state[name], state[other]) for other in others), name


def test_training_validation_and_loading(lm_data: Path, tmp_path: Path) -> None:
    """Losses are in bits; fairseq-validate repeats the logged ones; tied parameters stay tied."""
    more = ("--max-update", 6, "--max-tokens", 100)
    output = runner.train(lm_data, tmp_path, *DETERMINISTIC, *PRETRAIN, *more)
    rows = output.stats["train_inner"]
    for row in rows:
        parts = float(row["mlm_loss"]) + 50 * float(row["rtd_loss"])
        assert float(row["loss"]) == pytest.approx(parts, rel=0.05)  # about 15 % are masked
    assert float(rows[0]["mlm_loss"]) == pytest.approx(math.log2(33), abs=0.3)
    assert float(rows[0]["rtd_loss"]) == pytest.approx(1.0, abs=0.2)
    checkpoint = tmp_path / "checkpoint_last.pt"
    valid = output.stats["valid"][-1]
    again = runner.validate(lm_data, checkpoint, "--task", "electra").stats["valid"][-1]
    for name in TERMS:
        value, expected = float(again[f"valid_{name}"]), float(valid[f"valid_{name}"])
        assert value == pytest.approx(expected, abs=1e-3), name
    (model,), _ = checkpoint_utils.load_model_ensemble([str(checkpoint)])
    shared = model.encoder.sentence_encoder.embed_tokens.weight
    assert model.generator.sentence_encoder.embed_tokens.weight is shared
    assert model.generator.lm_head.weight is shared
    state = weights(tmp_path)
    assert torch.equal(shared, state["encoder.sentence_encoder.embed_tokens.weight"])
    assert_tied(state)


def initial_weights(data: Path, tmp_path: Path, flags: tuple) -> dict[str, torch.Tensor]:
    """Return the parameters after one update with learning rate 0."""
    runner.train(data, tmp_path / "initial", *flags, "--lr", 0, "--max-update", 1)
    return weights(tmp_path / "initial")


def test_parameters_stay_tied_on_two_ranks(lm_data: Path, tmp_path: Path) -> None:
    flags = (*DETERMINISTIC, *PRETRAIN, "--batch-size", 16, "--max-update", 3)
    runner.train_on_two_ranks(lm_data, tmp_path / "two", *flags)
    state, before = weights(tmp_path / "two"), initial_weights(lm_data, tmp_path, flags)
    assert_tied(state)
    assert all((state[name] - before[name]).abs().max() > 1e-3 for name in TIED)


def test_accumulation_equals_one_batch(lm_data: Path, tmp_path: Path) -> None:
    """One batch and many accumulated ones give the same update.

    Only the loss of the generator is used, because it does not depend on sampled tokens.
    """
    flags = (*DETERMINISTIC, *PRETRAIN, *NO_DROPOUT, "--optimizer", "sgd", "--lr", 0.05)
    flags = (*flags, "--rtd-weight", 0, "--max-update", 3, "--max-tokens", 4000)
    for name, size in (("whole", 512), ("parts", 16)):
        more = ("--batch-size", size, "--update-freq", 99)
        output = runner.train(lm_data, tmp_path / name, *flags, *more)
        assert [row["epoch"] for row in output.stats["train_inner"]] == [1, 2, 3]
    one, other = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    before, name = initial_weights(lm_data, tmp_path, flags), "generator.lm_head.bias"
    assert (one[name] - before[name]).abs().max() > 1e-3
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=0, atol=1e-5)


def terms(output: runner.Output) -> dict[str, list[float]]:
    """Return every logged term of the loss, one number per update."""
    return {name: [float(row[name]) for row in output.stats["train_inner"]] for name in TERMS}


SHORT = (*DETERMINISTIC, *PRETRAIN, *NO_DROPOUT, "--max-update", 8)


@pytest.fixture(scope="module")
def full_precision(
    lm_data: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[float]]:
    return terms(runner.train(lm_data, tmp_path_factory.mktemp("full"), *SHORT))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_reduced_precision_equals_fp32(
    precision: str, full_precision: dict[str, list[float]], lm_data: Path, tmp_path: Path
) -> None:
    """The losses are close to those of fp32, and tied parameters stay tied."""
    flags = (*SHORT, *PRECISIONS[precision], "--fp16-init-scale", 4)
    output = runner.train(lm_data, tmp_path, *flags)
    reduced = terms(output)
    for name, error in (("mlm_loss", 0.03), ("rtd_loss", 0.01), ("replaced", 0.5)):
        assert reduced[name] == pytest.approx(full_precision[name], abs=error), name
    assert output.losses()[-1] < output.losses()[0]
    assert_tied(weights(tmp_path))


@pytest.mark.parametrize(
    ("arch", "criterion", "term"),
    [("electra_babn", "elbo", "kl"), ("electra_alignment", "alignment", "align")],
)
def test_losses_of_the_attention_are_added(
    arch: str, criterion: str, term: str, lm_data: Path, tmp_path: Path
) -> None:
    flags = ("--arch", arch, *PRETRAIN, "--criterion", criterion, "--max-update", 4)
    weight = ("--kl-weight", 0.2, "--kl-anneal-updates", 0) if term == "kl" else ()
    output = runner.train(lm_data, tmp_path, *flags, *weight, "--rtd-weight", 20)
    for row in output.stats["train_inner"]:
        assert set(row) >= TERMS
        extra = float(row[f"{term}_weight"]) * float(row[term]) / math.log(2)
        assert extra > 0
        expected = float(row["loss"]) + extra
        assert float(row["objective"]) == pytest.approx(expected, rel=1e-3)
        # --rtd-weight is a flag of the wrapped criterion.
        parts = float(row["mlm_loss"]) + 20 * float(row["rtd_loss"])
        assert float(row["loss"]) == pytest.approx(parts, rel=0.05)
    assert {f"valid_{name}" for name in (term, *TERMS)} <= set(output.stats["valid"][-1])


def test_resuming_continues_exactly(lm_data: Path, tmp_path: Path) -> None:
    """Dropout, masking and sampling are the same as without the interruption."""
    flags = ("--arch", "electra_babn", *PRETRAIN, "--criterion", "elbo", "--max-tokens", 100)
    whole = runner.train(lm_data, tmp_path / "whole", *flags, "--max-update", 5)
    runner.train(lm_data, tmp_path / "parts", *flags, "--max-update", 2)
    rest = runner.train(lm_data, tmp_path / "parts", *flags, "--max-update", 5)
    assert rest.losses() == whole.losses()[2:]
    one, other = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def pretrained(lm_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pretrained")
    flags = ("--arch", "electra_babn", *PRETRAIN, "--criterion", "elbo", "--max-epoch", 1)
    runner.train(lm_data, folder, *flags)
    return folder


def test_fine_tuning_and_pretraining_again(
    pretrained: Path, lm_data: Path, classification_data: Path, tmp_path: Path
) -> None:
    """Fine-tuning drops the generator; further pre-training starts a new one."""
    given = ("--finetune-from-model", pretrained / "checkpoint_last.pt")
    flags = (*DETERMINISTIC, *FINETUNE, *given, "--max-epoch", 12)
    tuned = runner.train(classification_data, tmp_path / "fine", *flags)
    assert float(tuned.stats["valid"][-1]["valid_accuracy"]) > 60
    assert "dropping generator.* of the checkpoint" in tuned.text
    fine = weights(tmp_path / "fine")
    assert not [name for name in fine if "generator" in name or "rtd_head" in name]
    given = ("--finetune-from-model", tmp_path / "fine" / "checkpoint_last.pt", "--lr", 0)
    flags = (*DETERMINISTIC, *PRETRAIN, *given, "--max-update", 1)
    again = runner.train(lm_data, tmp_path / "again", *flags)
    assert "generator.* is new" in again.text
    state = weights(tmp_path / "again")
    assert_tied(state)
    heads = "classification_heads"
    assert all(torch.equal(value, state[n]) for n, value in fine.items() if heads not in n)


def test_restore_file_starts_fine_tuning(
    pretrained: Path, classification_data: Path, tmp_path: Path
) -> None:
    """As for RoBERTa, --restore-file loads the encoder bit for bit; the output head is new."""
    reset = (f"--reset-{x}" for x in ("optimizer", "dataloader", "meters", "lr-scheduler"))
    given = ("--restore-file", pretrained / "checkpoint_last.pt", *reset, "--lr", 0)
    flags = (*DETERMINISTIC, *FINETUNE, *given, "--max-update", 1)
    runner.train(classification_data, tmp_path, *flags)
    before, after = weights(pretrained), weights(tmp_path)
    same = {name for name in after if "classification_heads" not in name}
    assert same == {
        n for n in before if not any(x in n for x in ("generator", "rtd", "attention_"))
    }
    assert all(torch.equal(before[name], after[name]) for name in same)
    assert len(after) > len(same)


def test_each_epoch_reads_the_next_shard(lm_data: Path, tmp_path: Path) -> None:
    shards = [str(lm_data), f"{lm_data}/../{lm_data.name}"]
    flags = (*DETERMINISTIC, *PRETRAIN, "--max-epoch", 2, "--no-save")
    text = runner.train(":".join(shards), tmp_path, *flags).text
    loaded = re.findall(r"loaded \d+ blocks from: (.*)/train$", text, re.M)
    assert loaded == [*shards, shards[0]]  # fairseq opens the next shard before it stops


@pytest.mark.parametrize(
    ("flags", "cause"),
    [
        (("--arch", "roberta_deterministic"), "--task electra needs an electra arch"),
        (("--criterion", "masked_lm"), "--task electra needs --criterion electra, or one that"),
        (("--task", "masked_lm"), "--criterion electra goes with --task electra"),
        (("--task", "masked_lm", "--criterion", "masked_lm"), "are pre-trained by --task electra"),
        (("--generator-size", 0), "--generator-size must be positive"),
        (("--embedding-dim", -1), "--embedding-dim must be positive"),
        (("--rtd-weight", -1), "--rtd-weight must not be negative"),
        (("--mask-prob", 1.5), "--mask-prob must be between 0 and 1, not 1.5"),
        (("--leave-unmasked-prob", 0.8, "--random-token-prob", 0.3), "together at most 1"),
        (("--skip-masking",), "--skip-masking and --d2v2-multi leave nothing"),
        (("--valid-subset", "exam"), "Dataset not found: exam"),
    ],
)
def test_bad_flags(flags: tuple, cause: str, lm_data: Path, tmp_path: Path) -> None:
    common = (*DETERMINISTIC, *PRETRAIN, "--max-update", 1)
    if "roberta_deterministic" in flags:
        common = (*sizes.ROBERTA, *sizes.REPLACED_TOKENS)
    assert cause in complaint(runner.train, lm_data, tmp_path / "run", *common, *flags)
    assert not list(tmp_path.glob("run/*.pt"))


def test_folder_without_data(tmp_path: Path) -> None:
    message = complaint(runner.train, tmp_path, tmp_path / "run", *DETERMINISTIC, *PRETRAIN)
    assert "no data of fairseq-preprocess --only-source" in message
    assert "dict.txt" in message
