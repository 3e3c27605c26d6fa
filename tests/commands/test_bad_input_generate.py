"""Bad input to stochattn-generate, which mostly fails inside fairseq: one line, no output."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import runner
import sizes
from bad_input import full_disk, randomize, refusal, truncate
from fairseq_stochattn.analysis import output_scores
from fairseq_stochattn.commands import generate

# Also fails if an error in a destructor prints a traceback besides the one line.
pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
TEST = ("test.src-tgt.src", "test.src-tgt.tgt")


@pytest.fixture(scope="module")
def trained(translation_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkpoint with BABN attention, after one update."""
    folder = tmp_path_factory.mktemp("run")
    arch = ("--arch", "transformer_babn", *sizes.TRANSFORMER, "--criterion", "elbo")
    runner.train(translation_data, folder, *arch, "--max-update", 1)
    return folder / "checkpoint_last.pt"


def refused(data: object, checkpoint: object, *flags: object) -> str:
    common = ("--cpu", "--num-workers", 0, "--samples", 2)
    return refusal(generate.main, data, "--path", checkpoint, *common, *flags)


@pytest.mark.parametrize(
    ("flags", "cause"),
    [
        (["--seed", "1e30"], "argument --seed: invalid int value: '1e30'"),
        (["--seed=-1"], "--seed -1 is not between 0 and 4294967295"),
        (["--seed", 2**70], "is not between 0 and 4294967295"),
        (["--beam", 0], "--beam must be positive"),
        (["--beam", "x"], "argument --beam: invalid int value: 'x'"),
        (["--nbest", 0], "--nbest must be positive"),
        (["--nbest", 9], "--nbest 9 is more than --beam 5"),
        (["--max-tokens", 0], "--max-tokens must be positive"),
        (["--max-tokens", 1], "cannot be batched: Sentences lengths should not exceed"),
        (["--batch-size=-1"], "--batch-size must be positive"),
        (["--required-batch-size-multiple", 0], "--required-batch-size-multiple must be positive"),
        (["--num-workers=-1"], "--num-workers must not be negative"),
        (["--lenpen", "nan"], "--lenpen must be a finite number"),
        (["--temperature", 0], "--temperature must be positive"),
        (["--min-len", 1000], "min_len cannot be larger than max_len"),
        (["--diverse-beam-groups", 3], "requires --beam to be divisible by the number of groups"),
        (["--sampling"], "--sampling needs --nbest equal to --beam"),
        (["--sampling", "--nbest", 5, "--sampling-topk", 10**6], "--sampling-topk: the dictionary"),
        (["--constraints"], "--constraints: prepared data contains no constraints"),
        (["--replace-unk"], "--replace-unk needs raw text"),
        (["--remove-bpe", "magic"], "--remove-bpe magic: Unknown post_process option"),
        (["--gen-subset", "dev"], "no dev set in "),
        (["--gen-subset", ""], "'' is not the name of a split"),
        (["--gen-subset", "../test"], "'../test' is not the name of a split"),
        (["-s", "xx", "-t", "yy"], "dict.xx.txt"),
        (["--task", "sentence_prediction"], "the flags: "),
        (["--task", "magic"], "argument --task: invalid choice: 'magic'"),
        (["--arch", "magic"], "the flags: RuntimeError"),
        (["--user-dir", "/nowhere"], "--user-dir /nowhere is not a directory"),
        (["--bpe", "sentencepiece", "--sentencepiece-model", "/nowhere"], "--bpe: "),
        (["--bpe", "subword_nmt", "--bpe-codes", "/"], "can't open '/'"),
        (["--lm-path", "/nowhere"], "/nowhere cannot be used"),
        (["--magic"], "unrecognized arguments: --magic"),
        (["--samples", "x"], "argument --samples: invalid int value: 'x'"),
        (["--dataset-impl", "lazy"], "no test set in "),
        (["--model-overrides", "x"], "--model-overrides: x is not a dictionary"),
        (["--model-overrides", "[1]"], "--model-overrides: [1] is not a dictionary"),
        (["--model-overrides", "[" * 10**5], "--model-overrides: [[[["),
        (["--model-overrides", "{1: 2}"], "has a name that is not a text"),
        (["--model-overrides", "{'magic': 1}"], "the checkpoint has no setting 'magic'"),
        (["--model-overrides", "{'encoder_layers': 'x'}"], "Value 'x' of type 'str' could not be"),
        (["--model-overrides", "{'encoder_layers': -1}"], "--encoder-layers must be positive"),
        (["--model-overrides", "{'encoder_layers': 5}"], "does not fit this model"),
        (["--model-overrides", "{'babn_rho': -1}"], "--babn-rho must"),
    ],
    ids=lambda value: " ".join(map(str, value))[:40] if isinstance(value, list) else "",
)
def test_flags(flags: list, cause: str, trained: Path, translation_data: Path) -> None:
    line = refused(translation_data, trained, *flags)
    assert cause in line


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no files": (lambda data: [x.unlink() for x in data.iterdir()], "Could not infer language"),
    "no dictionary": (lambda data: (data / "dict.src.txt").unlink(), "dict.src.txt"),
    "random dictionary": (lambda data: randomize(data / "dict.src.txt"), "dict.src.txt"),
    "empty dictionary": (lambda data: (data / "dict.src.txt").write_text(""), "joined dictionary"),
    "other dictionaries": (
        lambda data: [(data / f"dict.{x}.txt").write_text("a 1\nb 1\n") for x in ("src", "tgt")],
        "does not fit this model: size mismatch",
    ),
    "cut index": (lambda data: truncate(data / f"{TEST[0]}.idx"), "src.idx is damaged: it has "),
    "empty index": (
        lambda data: (data / f"{TEST[0]}.idx").write_bytes(b""),
        "src.idx is damaged: it does not start like an index",
    ),
    "random index": (
        lambda data: randomize(data / f"{TEST[1]}.idx"),
        "tgt.idx is damaged: it does not start like an index",
    ),
    "cut tokens": (
        lambda data: truncate(data / f"{TEST[0]}.bin"),
        "src.bin is damaged: it has ",
    ),
    "no tokens": (
        lambda data: (data / f"{TEST[0]}.bin").write_bytes(b""),
        "src.bin is damaged: it has 0 bytes, and sentence 0",
    ),
    "random tokens": (
        lambda data: randomize(data / f"{TEST[0]}.bin"),
        "has the token id ",
    ),
    "other translations": (
        lambda data: [
            shutil.copy(data / f"train.src-tgt.tgt.{end}", data / f"{TEST[1]}.{end}")
            for end in ("bin", "idx")
        ],
        "Source and target must contain the same number",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_data(damage: str, trained: Path, translation_data: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(translation_data, data)
    change, cause = DAMAGES[damage]
    change(data)
    assert cause in refused(data, trained)


def test_no_data(trained: Path, tmp_path: Path) -> None:
    assert "nowhere does not exist" in refused(tmp_path / "nowhere", trained)
    assert "does not exist" in refused("", trained)


CHECKPOINTS: dict[str, tuple[Callable[[dict], Any], str]] = {
    "no model": (lambda state: state.pop("model"), "it has no 'model'"),
    "no tensors": (
        lambda state: state.update(model=dict.fromkeys(state["model"], 1)),
        "its 'model' has more than tensors",
    ),
    "no weights": (lambda state: state.update(model={}), "does not fit this model: Missing key"),
    "no settings": (lambda state: state.pop("cfg"), "Neither args nor cfg exist"),
    "settings are a number": (lambda state: state.update(cfg=5), "bad.pt"),
    "no settings of the model": (lambda state: state["cfg"].pop("model"), "bad.pt"),
    "unknown arch": (lambda state: state["cfg"]["model"].update(_name="magic"), "bad.pt"),
    "heads do not divide": (
        lambda state: state["cfg"]["model"].update(encoder_attention_heads=7),
        "embed_dim must be divisible by num_heads",
    ),
    "setting of a wrong type": (
        lambda state: state["cfg"]["model"].update(babn_rho=[2]),
        "could not be converted to Float",
    ),
    "NaN": (
        lambda state: state["model"]["encoder.layers.0.fc1.weight"].fill_(torch.nan),
        "encoder.layers.0.fc1.weight is not finite",
    ),
}


@pytest.mark.parametrize("damage", CHECKPOINTS)
def test_damaged_checkpoint(
    damage: str, trained: Path, translation_data: Path, tmp_path: Path
) -> None:
    state = torch.load(trained, weights_only=True)
    change, cause = CHECKPOINTS[damage]
    change(state)
    torch.save(state, tmp_path / "bad.pt")
    assert cause in refused(translation_data, tmp_path / "bad.pt")


def test_other_files_as_checkpoint(trained: Path, translation_data: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.pt").touch()
    shutil.copy(trained, tmp_path / "cut.pt")
    truncate(tmp_path / "cut.pt")
    for name in ("empty.pt", "cut.pt", "missing.pt", ""):
        assert name in refused(translation_data, tmp_path / name)
    assert "missing.pt" in refused(translation_data, f"{trained}:{tmp_path / 'missing.pt'}")


def test_model_of_another_task(lm_data: Path, translation_data: Path, tmp_path: Path) -> None:
    arch = ("--arch", "transformer_lm_babn", *sizes.TRANSFORMER_LM, "--max-update", 1)
    runner.train(lm_data, tmp_path, *arch)
    line = refused(translation_data, tmp_path / "checkpoint_last.pt")
    assert "checkpoint_last.pt cannot translate: it is a model of language_modeling" in line


def test_results_are_complete_or_absent(
    trained: Path, translation_data: Path, tmp_path: Path
) -> None:
    results = tmp_path / "results"
    flags = ("--results-path", results)
    assert "min_len" in refused(translation_data, trained, *flags, "--min-len", 1000)
    with full_disk(2000):
        assert "File too large" in refused(translation_data, trained, *flags)
    assert list(results.iterdir()) == []
    common = ("--cpu", "--num-workers", 0, "--samples", 2, *flags)
    argv = [str(x) for x in (translation_data, "--path", trained, *common)]
    assert generate.main(argv) == 0
    (file,) = results.iterdir()
    assert file.name == "generate-test.txt"
    assert file.read_text().count("\nU-") == 40


def test_a_mistake_of_ours_keeps_its_traceback(
    trained: Path, translation_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_scores.Spread, "mean", property(lambda self: 1 / 0))
    argv = [str(translation_data), "--path", str(trained), "--cpu", "--num-workers", "0"]
    with pytest.raises(ZeroDivisionError):
        generate.main(argv)
