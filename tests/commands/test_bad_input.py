"""Bad input ends a command with one line that names the cause; no file is overwritten."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path

import pytest
import torch

import runner
import sizes
from bad_input import Malicious, complaint
from fairseq_stochattn import compat
from fairseq_stochattn.commands import export
from fairseq_stochattn.core.errors import InputError
from fairseq_stochattn.core.method import AttentionMethod, register_method
from fairseq_stochattn.core.settings import Settings

OURS = ("--arch", "transformer_deterministic", *sizes.TRANSFORMER, "--max-update", 1)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("flags", "cause"),
    [
        (("--attention", "magic"), "--attention: unknown method 'magic' (known: alignment, asa, "),
        (("--attention", ","), "--attention is empty"),
        (("--attention", "toy,toy"), "a method is named twice in 'toy,toy'"),
        (("--attention-sites", "mind"), "unknown site 'mind' (known: all, encoder, decoder, cross"),
        (("--attention-sites", ","), "--attention-sites is empty"),
        (
            ("--attention-layers", "second"),
            "expected all, first, last, or indices such as 0,2, not 'second'",
        ),
        (
            ("--attention-layers", "0,2"),
            "--attention-layers 2: out of range, the encoder stack has layers 0",
        ),
        (("--attention-layers=-1",), "--attention-layers -1: out of range"),
        (("--attention", "toy", "--checkpoint-activations"), "--checkpoint-activations runs every"),
        (
            ("--criterion", "attention_losses", "--task-criterion", "hope"),
            "--task-criterion: unknown criterion 'hope' (known: label_smoothed_cross_entropy, ",
        ),
    ],
)
def test_bad_flags(flags: tuple, cause: str, translation_data: Path, tmp_path: Path) -> None:
    message = complaint(runner.train, translation_data, tmp_path / "run", *OURS, *flags)
    assert cause in message
    assert not list(tmp_path.glob("run/*"))


@pytest.mark.parametrize(
    ("arch", "data", "flags", "cause"),
    [
        (
            "transformer_lm_deterministic",
            "lm_data",
            (*sizes.TRANSFORMER_LM, "--attention-sites", "encoder"),
            "this model has no encoder attention (it has: decoder)",
        ),
        (
            "lstm_deterministic",
            "translation_data",
            (*sizes.LSTM, "--attention-sites", "decoder"),
            "this model has no decoder attention (it has: cross)",
        ),
        (
            "lstm_deterministic",
            "translation_data",
            (*sizes.LSTM, "--decoder-attention", "False"),
            "leaves no attention for a method",
        ),
    ],
)
def test_sites_that_the_backbone_does_not_have(
    arch: str, data: str, flags: tuple, cause: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    folder = request.getfixturevalue(data)
    assert cause in complaint(runner.train, folder, tmp_path, "--arch", arch, *flags)


def test_the_installed_command_prints_one_line(translation_data: Path, tmp_path: Path) -> None:
    flags = ("--user-dir", runner.USER_DIR, *runner.TRAIN, *OURS, "--attention", "magic")
    result = runner.run("fairseq-train", translation_data, *flags, "--save-dir", tmp_path / "run")
    assert result.returncode == 1
    assert "Traceback" not in result.stdout + result.stderr
    assert (
        result.stderr.strip()
        .splitlines()[-1]
        .startswith("fairseq_stochattn: --attention: unknown method 'magic'")
    )


@pytest.mark.parametrize("flag", ["--finetune-from-model", "--restore-file", None])
def test_checkpoint_with_other_sizes(
    flag: str | None, translation_data: Path, tmp_path: Path
) -> None:
    runner.train(translation_data, tmp_path / "small", *OURS)
    checkpoint = tmp_path / "small" / "checkpoint_last.pt"
    before = digest(checkpoint)
    wide = (*OURS, "--encoder-ffn-embed-dim", 64)
    save = tmp_path / "small" if flag is None else tmp_path / "wide"
    given = () if flag is None else (flag, checkpoint)
    message = complaint(runner.train, translation_data, save, *wide, *given)
    assert "does not fit this model: size mismatch for encoder.layers.0.fc1.weight" in message
    assert digest(checkpoint) == before
    assert flag is None or not list(save.glob("*.pt"))


def test_checkpoint_with_more_layers(translation_data: Path, tmp_path: Path) -> None:
    runner.train(translation_data, tmp_path / "deep", *OURS, "--encoder-layers", 3)
    checkpoint = tmp_path / "deep" / "checkpoint_last.pt"
    flags = (*OURS, "--finetune-from-model", checkpoint)
    message = complaint(runner.train, translation_data, tmp_path / "shallow", *flags)
    assert "encoder.layers.2" in message


def test_checkpoint_that_lacks_some_parameters_of_a_method(
    translation_data: Path, tmp_path: Path
) -> None:
    """Such a checkpoint is damaged; only one that lacks all of them is of another method."""
    runner.train(translation_data, tmp_path / "run", *OURS, "--arch", "transformer_toy")
    checkpoint = tmp_path / "run" / "checkpoint_last.pt"
    state = torch.load(checkpoint, weights_only=True)
    state["model"]["decoder.layers.0.self_attn.attention_methods.toy.foreign"] = torch.zeros(1)
    del state["model"]["decoder.layers.0.self_attn.attention_methods.toy.log_scale"]
    torch.save(state, checkpoint)
    message = complaint(runner.generate, translation_data, checkpoint)
    assert "decoder.layers.0.self_attn.attention_methods.toy.log_scale" in message


@pytest.mark.parametrize("how", ["torch zip", "plain pickle"])
def test_checkpoint_with_code_is_refused(how: str, translation_data: Path, tmp_path: Path) -> None:
    runner.train(translation_data, tmp_path / "run", *OURS)
    good = torch.load(tmp_path / "run" / "checkpoint_last.pt", weights_only=True)
    bad, written_by_code = tmp_path / "bad.pt", tmp_path / "written"
    good["extra_state"]["payload"] = Malicious(written_by_code)
    if how == "torch zip":
        torch.save(good, bad)
    else:
        bad.write_bytes(pickle.dumps(good["extra_state"]))
    finetune = (*OURS, "--finetune-from-model", bad)
    for function, *args in (
        (runner.generate, translation_data, bad),
        (runner.train, translation_data, tmp_path / "fine", *finetune),
        (export.main, [str(bad), str(tmp_path / "out.pt")]),
    ):
        message = complaint(function, *args)
        assert "bad.pt is refused" in message
        if how == "torch zip":
            assert "posix.system" in message
    assert not written_by_code.exists()
    assert not (tmp_path / "out.pt").exists()


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"PK\x03\x04 cut off"])
def test_damaged_checkpoint(content: bytes, translation_data: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.pt").write_bytes(content)
    message = complaint(runner.generate, translation_data, tmp_path / "bad.pt")
    assert "bad.pt" in message


def test_file_with_weights_only(translation_data: Path, tmp_path: Path) -> None:
    torch.save({"weight": torch.zeros(2)}, tmp_path / "bad.pt")
    message = complaint(runner.generate, translation_data, tmp_path / "bad.pt")
    assert "is not a fairseq checkpoint" in message


@pytest.mark.parametrize("empty", ["train", "valid"])
def test_empty_data_set(empty: str, text: Path, tmp_path: Path) -> None:
    folder = tmp_path / "text"
    folder.mkdir()
    for split in ("train", "valid"):
        for side in ("src", "tgt"):
            content = "" if split == empty else (text / f"{split}.{side}").read_text()
            (folder / f"{split}.{side}").write_text(content)
    pairs = ("-s", "src", "-t", "tgt", "--joined-dictionary")
    splits = ("--trainpref", folder / "train", "--validpref", folder / "valid")
    runner.preprocess(*pairs, *splits, out=tmp_path / "data")
    message = complaint(runner.train, tmp_path / "data", tmp_path / "run", *OURS)
    assert f"the {empty} set is empty: {tmp_path / 'data'}" in message
    assert not list(tmp_path.glob("run/*.pt"))


def test_bad_input_of_export(translation_data: Path, tmp_path: Path) -> None:
    runner.train(translation_data, tmp_path / "ours", *OURS)
    runner.train(translation_data, tmp_path / "toy", *OURS, "--arch", "transformer_toy")
    runner.train(translation_data, tmp_path / "plain", *OURS, "--arch", "transformer")
    ours, toy, plain = (tmp_path / n / "checkpoint_last.pt" for n in ("ours", "toy", "plain"))
    existing = tmp_path / "existing.pt"
    existing.write_text("precious")
    for args, cause in (
        ((ours, existing), "existing.pt exists already (--force overwrites it)"),
        ((ours, tmp_path / "nowhere" / "out.pt"), "is not a directory"),
        ((toy, tmp_path / "out.pt"), "toy attention is not plain attention at test time"),
        (
            (plain, tmp_path / "out.pt"),
            "nothing to export: the arch 'transformer' has no attention methods",
        ),
        ((tmp_path / "no.pt", tmp_path / "out.pt"), "no.pt does not exist"),
    ):
        assert cause in complaint(export.main, [str(arg) for arg in args])
    assert existing.read_text() == "precious"
    assert not (tmp_path / "out.pt").exists()
    export.main([str(ours), str(existing), "--force"])
    assert compat.load_checkpoint(str(existing))["cfg"]["model"].arch == "transformer"
    assert sorted(p.name for p in tmp_path.glob(".*")) == []


def test_registering_a_method_twice_or_with_an_unknown_site() -> None:
    with pytest.raises(InputError, match="registered twice"):
        register_method("toy", settings=Settings)(AttentionMethod)
    with pytest.raises(InputError, match="unknown sites"):
        register_method("lost", settings=Settings)(
            type("Lost", (AttentionMethod,), {"sites": ("moon",)})
        )
