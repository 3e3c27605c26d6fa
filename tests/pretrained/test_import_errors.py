"""A failing import or export prints one line and writes nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

import hub
import runner
import sizes
from bad_input import Malicious, complaint
from fairseq_stochattn.commands import export, import_model

Change = Callable[[Path], object]
OURS = "roberta_deterministic"


@pytest.fixture(scope="module")
def good(transformers: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that can be imported."""
    folder = tmp_path_factory.mktemp("good") / "source"
    hub.write_model(folder, "BertForMaskedLM")
    return folder


@pytest.fixture
def source(good: Path, tmp_path: Path) -> Path:
    """A copy of ``good``, which a test may damage."""
    return shutil.copytree(good, tmp_path / "source")


@pytest.fixture(scope="module")
def imported(good: Path) -> Path:
    """The import of ``good``."""
    out = good.with_name("imported")
    import_model.main([str(good), str(out), "--arch", OURS])
    return out


def import_error(source: Path, *more: object, arch: str = OURS) -> str:
    """The error message of an import that fails and writes nothing."""
    before = sorted(source.parent.rglob("*"))
    arguments = [source, source.parent / "out", "--arch", arch, *more]
    message = complaint(import_model.main, [str(x) for x in arguments])
    assert sorted(source.parent.rglob("*")) == before
    return message


def remove(name: str) -> Change:
    return lambda folder: (folder / name).unlink()


def write(name: str, content: str) -> Change:
    return lambda folder: (folder / name).write_text(content)


def set_config(**settings: object) -> Change:
    return lambda folder: hub.change_config(folder, **settings)


def edit_tensors(change: Callable[[dict[str, Tensor]], object]) -> Change:
    return lambda folder: hub.change_tensors(folder, change)


def truncate_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def remove_a_shard(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def remove_a_tensor_from_a_shard(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    index = {"weight_map": {"x": "a.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def write_a_pickle_that_runs_code(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"x": Malicious(folder / "owned")}, folder / "pytorch_model.bin")


def write_a_pickle_without_tensors(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"x": "weights"}, folder / "pytorch_model.bin")


def edit_vocabulary(*appended: str, removed: int = 0) -> Change:
    """Remove the first tokens of vocab.txt and append others."""

    def change(folder: Path) -> None:
        (folder / "tokenizer.json").unlink()
        lines = (folder / "vocab.txt").read_text().split()
        (folder / "vocab.txt").write_text("\n".join([*lines[removed:], *appended]))

    return change


def append_embedding_rows(tensors: dict[str, Tensor]) -> None:
    """Append 200 rows of zeros to the token embedding and to the output bias."""
    for name in ("bert.embeddings.word_embeddings.weight", "cls.predictions.bias"):
        rows = tensors[name].new_zeros(200, *tensors[name].shape[1:])
        tensors[name] = torch.cat([tensors[name], rows])


def add_rows_without_tokens(folder: Path) -> None:
    hub.change_tensors(folder, append_embedding_rows)
    hub.change_config(folder, vocab_size=276)


LAYER = "bert.encoder.layer.1.output.dense.weight"


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (remove("config.json"), "config.json does not exist"),
        (write("config.json", "{"), "config.json cannot be read: "),
        (write("config.json", "[]"), "config.json does not contain a JSON object"),
        (write("config.json", "{}"), "has no model_type (known: bert, roberta, xlm-roberta, "),
        (set_config(model_type="gpt2"), "model_type 'gpt2' cannot be imported (known: bert, "),
        (set_config(hidden_size=None), "hidden_size is missing or not a positive integer"),
        (
            set_config(num_hidden_layers=10**7),
            "num_hidden_layers 10000000 is too large (at most 1000)",
        ),
        (set_config(hidden_size=True), "hidden_size is missing or not a positive integer"),
        (set_config(hidden_dropout_prob=7.0), "hidden_dropout_prob must be at least 0 and below 1"),
        (set_config(hidden_dropout_prob="x"), "hidden_dropout_prob must be at least 0 and below 1"),
        (set_config(layer_norm_eps=-1), "layer_norm_eps must be above 0 and below 1, not -1"),
        (set_config(max_position_embeddings=0), "max_position_embeddings 0 is not a number of"),
        (set_config(pad_token_id=99), "pad_token_id 99 is not one of the 76 rows"),
        (
            edit_tensors(lambda x: x.update({LAYER: x[LAYER] * float("nan")})),
            "contains NaN or infinite numbers",
        ),
        (set_config(num_attention_heads=5), "hidden_size 24 is not divisible by 5 heads"),
        (set_config(hidden_act="silu"), "hidden_act 'silu' is not supported (known: gelu, "),
        (
            set_config(position_embedding_type="relative_key"),
            "not support position_embedding_type relative",
        ),
        (set_config(is_decoder=True), "fairseq's encoders do not support is_decoder True"),
        (remove("model.safetensors"), "has no weights: neither model.safetensors nor pytorch_mo"),
        (write("model.safetensors", "nonsense"), "model.safetensors cannot be read: "),
        (truncate_weights, "model.safetensors cannot be read: "),
        (remove_a_shard, "index.json lists b.safetensors, which is not in the same folder"),
        (remove_a_tensor_from_a_shard, "lists the tensor x, but a.safetensors lacks it"),
        (write_a_pickle_that_runs_code, "pytorch_model.bin is refused: it holds more than weights"),
        (write_a_pickle_without_tensors, "pytorch_model.bin contains something other than tensors"),
        (edit_tensors(lambda x: x.pop(LAYER)), f"lacks the tensor {LAYER.removeprefix('bert.')}"),
        (set_config(num_hidden_layers=4), "lacks the tensor encoder.layer.3.attention.self.query."),
        (
            set_config(num_hidden_layers=2),
            "a tensor without a counterpart in fairseq: encoder.layer.2.attention.output.",
        ),
        (
            edit_tensors(lambda x: x.update(foo=torch.ones(1))),
            "without a counterpart in fairseq: foo",
        ),
        (edit_tensors(lambda x: x.update({LAYER: x[LAYER].int()})), "contains quantised weights"),
        (
            edit_tensors(lambda x: x.update({LAYER: x[LAYER][1:]})),
            "is (23, 40), but according to config.json it should be (24, 40)",
        ),
        (set_config(tie_word_embeddings=False), "lacks the tensor cls.predictions.decoder.weight"),
        (set_config(vocab_size=80), "the embedding has 76 rows, but vocab_size is 80"),
        (
            edit_vocabulary("more"),
            "the tokenizer has ids up to 76, but the embedding has only 76 rows",
        ),
        (
            add_rows_without_tokens,
            "76 tokens, but the embedding has 276 rows: they belong to different models",
        ),
        (edit_vocabulary(removed=1), "the tokenizer lacks a special token: [PAD]"),
        (edit_vocabulary(removed=76), "vocab.txt does not contain a vocabulary"),
        (write("tokenizer.json", "{}"), "tokenizer.json cannot be read: "),
        (
            lambda folder: [(folder / x).unlink() for x in ("tokenizer.json", "vocab.txt")],
            "has no tokenizer: none of tokenizer.json, vocab.txt, vocab.json",
        ),
    ],
)
def test_import_refuses_bad_folders(change: Change, cause: str, source: Path) -> None:
    change(source)
    assert cause in import_error(source)


@pytest.mark.parametrize(
    ("arch", "cause"),
    [
        ("roberta_magic", "--arch: unknown arch 'roberta_magic' (stochattn-methods --archs lists"),
        ("transformer_lm_deterministic", "cannot load this encoder, use roberta_<method>"),
        ("lstm_babn", "lstm_babn cannot load this encoder"),
        ("transformer", "transformer cannot load this encoder"),
        (
            "roberta_babn_prenorm",
            "has encoder_normalize_before True, but the pretrained model needs False",
        ),
        ("roberta", "plain fairseq has no --segment-embeddings 2 --layer-norm-eps 1e-12; use "),
    ],
)
def test_import_refuses_other_archs(arch: str, cause: str, source: Path) -> None:
    assert cause in import_error(source, arch=arch)


def test_plain_fairseq_cannot_change_the_epsilon(source: Path) -> None:
    """For a BERT without segments, plain fairseq only lacks the flag for LayerNorm's ε."""
    name = "bert.embeddings.token_type_embeddings.weight"
    hub.change_tensors(source, lambda x: x.update({name: torch.zeros_like(x[name])}))
    assert "plain fairseq has no --layer-norm-eps 1e-12" in import_error(
        source, arch="roberta_base"
    )


def test_force_overwrites_only_an_earlier_import(
    source: Path, imported: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "precious").write_text("yes")
    assert "out exists already (--force overwrites it)" in import_error(source)
    message = import_error(source, "--force")
    assert "out is not overwritten, because it is not an earlier output" in message
    assert "(it has no model.pt and no dict.txt): choose a new folder" in message
    shutil.rmtree(out)
    shutil.copytree(imported, out)
    (out / "dict.txt").write_text("")
    assert "exists already" in import_error(source)
    assert import_model.main([str(source), str(out), "--arch", OURS, "--force"]) == 0
    assert (out / "dict.txt").read_bytes() == (imported / "dict.txt").read_bytes()
    assert not list(tmp_path.glob(".*"))
    assert "nowhere is not a folder" in import_error(tmp_path / "nowhere", "--force")


def test_a_full_disk_leaves_no_partial_output(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", fail)
    assert "out: No space left on device" in import_error(source)


def test_export_refuses(imported: Path, good: Path, translation_data: Path, tmp_path: Path) -> None:
    small = (*sizes.TRANSFORMER, "--max-update", 1)
    runner.train(translation_data, tmp_path / "mt", "--arch", "transformer", *small)
    import_model.main([str(good), str(tmp_path / "babn"), "--arch", "roberta_babn"])
    bert, translator = imported / "model.pt", tmp_path / "mt" / "checkpoint_last.pt"
    (tmp_path / "empty").mkdir()
    other = shutil.copytree(imported, tmp_path / "other")
    (other / "dict.txt").write_text("the 1\n")
    hf = ("--to", "huggingface")
    before = sorted(tmp_path.rglob("*"))
    for arguments, cause in (
        ((bert, tmp_path / "out"), "plain fairseq has no --segment-embeddings 2 --layer-norm-eps"),
        ((bert, tmp_path / "out", "--like", good), "--like goes with --to huggingface"),
        ((bert, imported, *hf), "imported exists already (--force overwrites it)"),
        ((bert, tmp_path / "empty", *hf, "--force"), "empty is not overwritten"),
        (
            (bert, tmp_path / "out", *hf, "--like", tmp_path / "empty"),
            "empty: the folder has no tokenizer",
        ),
        ((other / "model.pt", tmp_path / "out", *hf), "dict.txt is not the dictionary of the tok"),
        ((translator, tmp_path / "out", *hf), "'transformer' cannot be exported to Hugging Face"),
        ((tmp_path / "babn/model.pt", tmp_path / "out", *hf), "babn attention is not plain"),
        ((tmp_path / "no.pt", tmp_path / "out", *hf), "no.pt does not exist"),
    ):
        assert cause in complaint(export.main, [str(x) for x in arguments])
    assert sorted(tmp_path.rglob("*")) == before
