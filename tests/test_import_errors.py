"""Folders that cannot be imported, checkpoints that cannot be exported: one line, no output."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

import commands
import hub
import sizes
from fairseq_stochattn import cli
from test_bad_input import Malicious, complaint

Change = Callable[[Path], object]
OURS = "roberta_deterministic"


@pytest.fixture(scope="module")
def good(transformers: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good") / "source"
    hub.write_model(folder, "BertForMaskedLM")
    return folder


@pytest.fixture
def source(good: Path, tmp_path: Path) -> Path:
    """A copy of a folder in which all is well."""
    return shutil.copytree(good, tmp_path / "source")


@pytest.fixture(scope="module")
def imported(good: Path) -> Path:
    out = good.with_name("imported")
    cli.import_main([str(good), str(out), "--arch", OURS])
    return out


def bring(source: Path, *more: object, arch: str = OURS) -> str:
    """What an import that cannot be says; it leaves nothing behind."""
    before = sorted(source.parent.rglob("*"))
    arguments = [source, source.parent / "out", "--arch", arch, *more]
    message = complaint(cli.import_main, [str(x) for x in arguments])
    assert sorted(source.parent.rglob("*")) == before
    return message


def without(name: str) -> Change:
    return lambda folder: (folder / name).unlink()


def writing(name: str, content: str) -> Change:
    return lambda folder: (folder / name).write_text(content)


def configured(**settings: object) -> Change:
    return lambda folder: hub.change_config(folder, **settings)


def changed(change: Callable[[dict[str, Tensor]], object]) -> Change:
    return lambda folder: hub.change_tensors(folder, change)


def truncated(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def a_shard_missing(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def a_tensor_of_a_shard_missing(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    index = {"weight_map": {"x": "a.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def a_pickle_that_runs_code(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"x": Malicious(folder / "owned")}, folder / "pytorch_model.bin")


def a_pickle_of_something_else(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"x": "weights"}, folder / "pytorch_model.bin")


def vocabulary(*more: str, cut: int = 0) -> Change:
    def change(folder: Path) -> None:
        (folder / "tokenizer.json").unlink()
        lines = (folder / "vocab.txt").read_text().split()
        (folder / "vocab.txt").write_text("\n".join([*lines[cut:], *more]))

    return change


def wide_embedding(tensors: dict[str, Tensor]) -> None:
    """Another 200 rows, as the configuration below has them."""
    for name in ("bert.embeddings.word_embeddings.weight", "cls.predictions.bias"):
        rows = tensors[name].new_zeros(200, *tensors[name].shape[1:])
        tensors[name] = torch.cat([tensors[name], rows])


def too_few_tokens(folder: Path) -> None:
    hub.change_tensors(folder, wide_embedding)
    hub.change_config(folder, vocab_size=276)


LAYER = "bert.encoder.layer.1.output.dense.weight"


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (without("config.json"), "config.json does not exist"),
        (writing("config.json", "{"), "config.json cannot be read: "),
        (writing("config.json", "[]"), "config.json is no JSON object"),
        (writing("config.json", "{}"), "has no model_type (known: bert, roberta, xlm-roberta, "),
        (configured(model_type="gpt2"), "model_type 'gpt2' cannot be imported (known: bert, "),
        (configured(hidden_size=None), "hidden_size is missing or no positive number"),
        (configured(num_attention_heads=5), "5 heads do not divide the width 24"),
        (configured(hidden_act="silu"), "hidden_act 'silu' is not known (known: gelu, "),
        (configured(position_embedding_type="relative_key"), "no position_embedding_type relative"),
        (configured(is_decoder=True), "fairseq's encoders have no is_decoder True"),
        (without("model.safetensors"), "has no weights: neither model.safetensors nor pytorch_mo"),
        (writing("model.safetensors", "nonsense"), "model.safetensors cannot be read: "),
        (truncated, "model.safetensors cannot be read: "),
        (a_shard_missing, "index.json names b.safetensors, which is not beside it"),
        (a_tensor_of_a_shard_missing, "lists x, but a.safetensors does not have it"),
        (a_pickle_that_runs_code, "pytorch_model.bin is refused: it holds more than weights"),
        (a_pickle_of_something_else, "pytorch_model.bin holds more than tensors"),
        (changed(lambda x: x.pop(LAYER)), f"lacks the tensor {LAYER.removeprefix('bert.')}"),
        (configured(num_hidden_layers=4), "lacks the tensor encoder.layer.3.attention.self.query."),
        (
            configured(num_hidden_layers=2),
            "a tensor that fairseq has no place for: encoder.layer.2.attention.output.",
        ),
        (changed(lambda x: x.update(foo=torch.ones(1))), "fairseq has no place for: foo"),
        (changed(lambda x: x.update({LAYER: x[LAYER].int()})), "holds quantised weights"),
        (
            changed(lambda x: x.update({LAYER: x[LAYER][1:]})),
            "of shape (24, 40), there is (23, 40)",
        ),
        (configured(tie_word_embeddings=False), "lacks the tensor cls.predictions.decoder.weight"),
        (configured(vocab_size=80), "an embedding of 76 rows, but vocab_size 80"),
        (vocabulary("more"), "the tokenizer has numbers up to 76, the embedding 76 rows"),
        (too_few_tokens, "76 tokens, the embedding 276 rows: they are of different models"),
        (vocabulary(cut=1), "the tokenizer lacks a special token: [PAD]"),
        (vocabulary(cut=76), "vocab.txt holds no vocabulary"),
        (writing("tokenizer.json", "{}"), "tokenizer.json cannot be read: "),
        (
            lambda folder: [(folder / x).unlink() for x in ("tokenizer.json", "vocab.txt")],
            "has no tokenizer: none of tokenizer.json, vocab.txt, vocab.json",
        ),
    ],
)
def test_folders(change: Change, cause: str, source: Path) -> None:
    change(source)
    assert cause in bring(source)


@pytest.mark.parametrize(
    ("arch", "cause"),
    [
        ("roberta_magic", "--arch: no arch 'roberta_magic' (stochattn-methods --archs lists"),
        ("transformer_lm_deterministic", "is no encoder of this kind, use roberta_<method>"),
        ("lstm_babn", "lstm_babn is no encoder of this kind"),
        ("transformer", "transformer is no encoder of this kind"),
        ("roberta_babn_prenorm", "differs from the pretrained model in encoder_normalize_before"),
        ("roberta", "plain fairseq has no --segment-embeddings 2 --layer-norm-eps 1e-12; use "),
    ],
)
def test_archs(arch: str, cause: str, source: Path) -> None:
    assert cause in bring(source, arch=arch)


def test_plain_fairseq_has_one_epsilon(source: Path) -> None:
    name = "bert.embeddings.token_type_embeddings.weight"
    hub.change_tensors(source, lambda x: x.update({name: torch.zeros_like(x[name])}))
    assert "plain fairseq has no --layer-norm-eps 1e-12" in bring(source, arch="roberta_base")


def test_outputs_that_exist(source: Path, imported: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "precious").write_text("yes")
    assert "out exists already (--force makes it anew)" in bring(source)
    assert "out holds something else: name a new folder" in bring(source, "--force")
    shutil.rmtree(out)
    shutil.copytree(imported, out)
    (out / "dict.txt").write_text("")
    assert "exists already" in bring(source)
    assert cli.import_main([str(source), str(out), "--arch", OURS, "--force"]) == 0
    assert (out / "dict.txt").read_bytes() == (imported / "dict.txt").read_bytes()
    assert not list(tmp_path.glob(".*"))
    assert "nowhere is no folder" in bring(tmp_path / "nowhere", "--force")


def test_a_full_disk_leaves_nothing(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", fail)
    assert "out: No space left on device" in bring(source)


def test_export(imported: Path, good: Path, translation_data: Path, tmp_path: Path) -> None:
    small = (*sizes.TRANSFORMER, "--max-update", 1)
    commands.train(translation_data, tmp_path / "mt", "--arch", "transformer", *small)
    cli.import_main([str(good), str(tmp_path / "babn"), "--arch", "roberta_babn"])
    bert, translator = imported / "model.pt", tmp_path / "mt" / "checkpoint_last.pt"
    (tmp_path / "empty").mkdir()
    other = shutil.copytree(imported, tmp_path / "other")
    (other / "dict.txt").write_text("the 1\n")
    hf = ("--to", "huggingface")
    before = sorted(tmp_path.rglob("*"))
    for arguments, cause in (
        ((bert, tmp_path / "out"), "plain fairseq has no --segment-embeddings 2 --layer-norm-eps"),
        ((bert, tmp_path / "out", "--like", good), "--like goes with --to huggingface"),
        ((bert, imported, *hf), "imported exists already (--force makes it anew)"),
        ((bert, tmp_path / "empty", *hf, "--force"), "empty holds something else"),
        ((bert, tmp_path / "out", *hf, "--like", tmp_path / "empty"), "there is no tokenizer"),
        ((other / "model.pt", tmp_path / "out", *hf), "dict.txt is not the dictionary of the tok"),
        ((translator, tmp_path / "out", *hf), "'transformer' is no encoder that Hugging Face has"),
        ((tmp_path / "babn/model.pt", tmp_path / "out", *hf), "babn attention is not plain"),
        ((tmp_path / "no.pt", tmp_path / "out", *hf), "no.pt does not exist"),
    ):
        assert cause in complaint(cli.export_main, [str(x) for x in arguments])
    assert sorted(tmp_path.rglob("*")) == before
