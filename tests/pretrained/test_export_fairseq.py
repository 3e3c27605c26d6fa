"""Export to plain fairseq: the same output without this plugin's parameters and flags."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.models.roberta import RobertaModel

import hub
from fairseq_stochattn import compat
from fairseq_stochattn.core.errors import InputError
from fairseq_stochattn.pretrained.export_fairseq import (
    as_dict,
    export,
    is_plugin_parameter,
    to_plain,
)
from fairseq_stochattn.pretrained.import_huggingface import import_folder

PLUGIN_FLAGS = {"attention", "attention_layers", "babn_sigma", "alignment", "layer_lr_decay"}


@pytest.fixture(scope="module")
def roberta(transformers: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small RoBERTa in ``hf`` whose settings plain fairseq supports."""
    folder = tmp_path_factory.mktemp("roberta")
    settings = {"segments": False, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
    hub.write_model(folder / "hf", "RobertaForMaskedLM", **settings)
    return folder


def checkpoint(folder: Path, arch: str) -> Path:
    """The import of the small RoBERTa to an arch."""
    if not (folder / arch).exists():
        import_folder(folder / "hf", folder / arch, arch)
    return folder / arch / "model.pt"


def state_of(folder: Path, arch: str, **flags: Any) -> dict[str, Any]:
    """The checkpoint of an import as a dictionary, with some model flags changed."""
    state = compat.load_checkpoint(str(checkpoint(folder, arch)))
    if flags:
        state["cfg"]["model"].update(flags)
    return state


@pytest.mark.parametrize("arch", ["roberta_deterministic", "roberta_alignment"])
def test_the_exported_model_is_plain_and_has_the_same_output(
    arch: str, roberta: Path, tmp_path: Path
) -> None:
    source, destination = checkpoint(roberta, arch), tmp_path / "plain.pt"
    assert export(source, destination) == "roberta"
    exported = compat.load_checkpoint(str(destination))
    assert not any(is_plugin_parameter(name) for name in exported["model"])
    stored = as_dict(compat.load_checkpoint(str(source))["cfg"]["model"])
    plain = as_dict(exported["cfg"]["model"])
    assert set(stored) >= PLUGIN_FLAGS
    assert PLUGIN_FLAGS.isdisjoint(plain)
    (before, after), _ = checkpoint_utils.load_model_ensemble([str(source), str(destination)])
    assert type(after) is RobertaModel
    tokens = torch.tensor([[0, 5, 6, 7, 2], [0, 9, 2, 1, 1]])
    with torch.no_grad():
        expected = before.eval()(tokens)[0]
        torch.testing.assert_close(after.eval()(tokens)[0], expected, rtol=0, atol=1e-5)


def test_babn_is_exported_only_without_sigma(roberta: Path) -> None:
    """If babn's setting ``sigma`` is above 0, the mean attention differs from plain attention."""
    with pytest.raises(InputError, match="babn attention is not plain attention at test time"):
        to_plain(state_of(roberta, "roberta_babn"))
    assert to_plain(state_of(roberta, "roberta_babn", babn_sigma=0.0))["cfg"]["model"].arch


def test_python_errors_are_input_errors(roberta: Path, tmp_path: Path) -> None:
    source = checkpoint(roberta, "roberta_deterministic")
    own_task = state_of(roberta, "roberta_deterministic")
    own_task["cfg"]["task"] = {"_name": "token_tagging"}
    existing = tmp_path / "existing.pt"
    existing.write_text("unchanged")
    for call, cause in (
        (lambda: export(source, existing), "exists already"),
        (lambda: to_plain(state_of(roberta, "roberta")), "'roberta' has no attention methods"),
        (lambda: to_plain({"model": {}}), "not a fairseq checkpoint"),
        (lambda: to_plain(own_task), "token_tagging belongs to fairseq_stochattn"),
        (
            lambda: to_plain(state_of(roberta, "roberta_deterministic", segment_embeddings=2)),
            "plain fairseq has no --segment-embeddings 2",
        ),
    ):
        with pytest.raises(InputError, match=cause):
            call()
    assert existing.read_text() == "unchanged"
