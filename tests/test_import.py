"""Pretrained encoders: imported, they compute what transformers computes; exported, they are back.

Small models with random weights, and all-MiniLM-L6-v2 where its package is installed.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from torch import Tensor, nn

import hub
from fairseq_stochattn.pretrained.exporting import export_folder
from fairseq_stochattn.pretrained.families import BERT
from fairseq_stochattn.pretrained.folders import read_tensors
from fairseq_stochattn.pretrained.importing import import_folder
from fairseq_stochattn.pretrained.tensors import to_fairseq
from fairseq_stochattn.pretrained.vocabulary import read_vocabulary

CLOSE = {"rtol": 0, "atol": 1e-4}
OURS, PLAIN = "roberta_deterministic", "roberta_base"
ELECTRA = "electra_deterministic"
# Case: transformers' class, our arch, settings.
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("BertForMaskedLM", OURS, {}),
    "bert, gelu by tanh, untied": (
        *("BertForMaskedLM", OURS),
        {"hidden_act": "gelu_new", "tie_word_embeddings": False},
    ),
    "bert without head": ("BertModel", OURS, {"hidden_act": "relu"}),
    "bert with all heads": ("BertForPreTraining", OURS, {"layer_norm_eps": 0.1}),
    "roberta": ("RobertaForMaskedLM", OURS, {}),
    "roberta in plain fairseq": (
        *("RobertaForMaskedLM", PLAIN),
        {"segments": False, "type_vocab_size": 1, "layer_norm_eps": 1e-5},
    ),
    "roberta with pooler": ("RobertaModel", OURS, {"segments": False}),
    "xlm-roberta, untied": ("XLMRobertaForMaskedLM", OURS, {"tie_word_embeddings": False}),
    "electra": ("ElectraForPreTraining", ELECTRA, {"embedding_size": 16}),
    "electra, embeddings as wide": (
        *("ElectraForPreTraining", ELECTRA),
        {"embedding_size": 24, "hidden_act": "gelu_new", "segments": False},
    ),
    "electra, plain, without head": ("ElectraModel", "electra", {"embedding_size": 32}),
}
PAIRS = tuple(map(list, zip(*hub.PAIRS, strict=True)))


def load(folder: Path, **overrides: Any) -> nn.Module:
    path = str(folder / "model.pt")
    return checkpoint_utils.load_model_ensemble([path], overrides or None)[0][0].eval()


def weights(folder: Path) -> dict[str, Tensor]:
    return torch.load(folder / "model.pt", weights_only=True)["model"]


@dataclass
class Case:
    name: str
    arch: str
    source: Path
    out: Path
    theirs: nn.Module
    ours: nn.Module
    numbers: list[int]  # the tokenizer's number of every row

    def tokens(self, batch: dict[str, Tensor]) -> Tensor:
        """A batch of the tokenizer's in our numbers."""
        rows = torch.empty(len(self.numbers), dtype=torch.long)
        rows[self.numbers] = torch.arange(len(self.numbers))
        return rows[batch["input_ids"]]


def make_case(name: str, arch: str, source: Path, out: Path, theirs: nn.Module) -> Case:
    import_folder(source, out, arch)
    numbers = read_vocabulary(source, theirs.config.vocab_size).numbers
    return Case(name, arch, source, out, theirs, load(out), numbers)


@pytest.fixture(scope="module", params=[*CASES, "minilm"])
def case(
    request: pytest.FixtureRequest,
    transformers: ModuleType,
    tmp_path_factory: pytest.TempPathFactory,
) -> Case:
    folder = tmp_path_factory.mktemp("case")
    if request.param == "minilm":
        source, arch = hub.minilm(), OURS
        theirs = transformers.AutoModel.from_pretrained(source).eval()
    else:
        name, arch, settings = CASES[request.param]
        source = folder / "source"
        theirs = hub.write_model(source, name, **settings)
    return make_case(request.param, arch, source, folder / "out", theirs)


@torch.no_grad()
def test_every_layer_computes_what_transformers_computes(case: Case) -> None:
    """Single sentences and pairs, in batches padded on the right."""
    for texts in ((hub.SENTENCES,), PAIRS):
        batch = hub.encode(case.source, *texts)
        real = batch["attention_mask"].bool()
        assert not real.all()
        theirs = case.theirs(**batch, output_hidden_states=True)
        out, extra = case.ours(case.tokens(batch), return_all_hiddens=True)
        assert len(extra["inner_states"]) == len(theirs.hidden_states)
        for found, wanted in zip(extra["inner_states"], theirs.hidden_states, strict=True):
            torch.testing.assert_close(found.transpose(0, 1)[real], wanted[real], **CLOSE)
        logits = getattr(theirs, "logits", getattr(theirs, "prediction_logits", None))
        if logits is not None:
            wanted = logits[real] if logits.dim() == 2 else logits[real][:, case.numbers]
            torch.testing.assert_close(out[real], wanted, **CLOSE)


def test_the_pair_is_seen(case: Case) -> None:
    """The second sentence's segment, or RoBERTa's doubled separator, is no accident above."""
    batch = hub.encode(case.source, *PAIRS)
    separators = case.tokens(batch).eq(2).sum(dim=1).tolist()
    if (case.source / "vocab.txt").is_file() or case.name == "minilm":
        assert batch["token_type_ids"].any()
        assert separators == [2, 2, 2]
        encoder = case.ours.encoder.sentence_encoder
        if "embeddings as wide" in case.name:  # whose segments are zeros
            assert not hasattr(encoder, "embed_segments")
            return
        segments = encoder.embed_segments.weight
        assert (segments[0] - segments[1]).abs().max() > 1e-3
    else:
        assert separators == [3, 3, 3]


def test_export_is_the_inverse(case: Case, tmp_path: Path, transformers: ModuleType) -> None:
    from safetensors.torch import load_file

    export_folder(case.out / "model.pt", tmp_path / "back")
    before, after = (load_file(x / "model.safetensors") for x in (case.source, tmp_path / "back"))
    dropped = {
        "embeddings.position_ids",
        "cls.seq_relationship.weight",
        "cls.seq_relationship.bias",
    }
    assert set(after) == set(before) - dropped
    unused = {"cls.predictions.bias", "lm_head.bias"} if "untied" in case.name else set()
    assert all(torch.equal(after[name], before[name]) for name in set(after) - unused)
    import_folder(tmp_path / "back", tmp_path / "again", case.arch)
    first, second = (
        torch.load(x / "model.pt", weights_only=True)["model"]
        for x in (case.out, tmp_path / "again")
    )
    assert list(first) == list(second)
    assert all(torch.equal(first[name], second[name]) for name in first)
    for name in ("dict.txt", "manifest.json"):
        assert (case.out / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    if case.name == "bert with all heads":
        return  # without that of next sentence prediction it is none of transformers' classes
    end = "".join(type(case.theirs).__name__.partition("For")[1:])
    auto = getattr(transformers, f"AutoModel{end}")
    again, report = auto.from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not any(report.values()), report
    assert type(again) is type(case.theirs)
    batch = hub.encode(tmp_path / "back", hub.SENTENCES)
    with torch.no_grad():
        assert torch.equal(again.eval()(**batch)[0], case.theirs(**batch)[0])


def test_the_attention_of_babn_has_this_mean(
    tmp_path: Path, transformers: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = hub.write_model(tmp_path / "source", "BertForMaskedLM")
    case = make_case("bert", "roberta_babn", tmp_path / "source", tmp_path / "out", theirs)
    assert "is new: keeping its initial parameters" in caplog.text
    batch = hub.encode(case.source, *PAIRS)
    real = batch["attention_mask"].bool()
    with torch.no_grad():
        wanted = theirs(**batch).logits[real][:, case.numbers]
        exact = load(case.out, babn_sigma=0.0)(case.tokens(batch))[0][real]
        torch.testing.assert_close(exact, wanted, **CLOSE)
        # σ = 1e-6 in the scale moves the mean by about as much.
        torch.testing.assert_close(
            case.ours(case.tokens(batch))[0][real], wanted, rtol=0, atol=1e-3
        )
        case.ours.train()
        assert not torch.allclose(case.ours(case.tokens(batch))[0][real], wanted, atol=1e-2)


def as_shards(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    listed = {}
    for number in range(3):
        name = f"model-{number}.safetensors"
        part = {key: tensors[key] for key in list(tensors)[number::3]}
        save_file(part, folder / name)
        listed |= dict.fromkeys(part, name)
    index = json.dumps({"metadata": {}, "weight_map": listed})
    (folder / "model.safetensors.index.json").write_text(index)


def as_pickle(folder: Path) -> None:
    from safetensors.torch import load_file

    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def with_old_names(folder: Path) -> None:
    """As Google's BERT was first converted, and as older versions of transformers saved."""

    def rename(tensors: dict[str, Tensor]) -> None:
        for name in [name for name in tensors if "LayerNorm" in name]:
            old = name.replace("LayerNorm.weight", "LayerNorm.gamma")
            tensors[old.replace("LayerNorm.bias", "LayerNorm.beta")] = tensors.pop(name)
        tensors["bert.embeddings.position_ids"] = torch.arange(66)[None]
        embedding = tensors["bert.embeddings.word_embeddings.weight"]
        tensors["cls.predictions.decoder.weight"] = embedding.clone()
        tensors["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"].clone()

    hub.change_tensors(folder, rename)


def test_however_the_weights_are_stored(transformers: ModuleType, tmp_path: Path) -> None:
    found = []
    for stored in (lambda folder: None, as_shards, as_pickle, with_old_names):
        source = tmp_path / f"source{len(found)}"
        config = hub.write_model(source, "BertForMaskedLM").config.to_dict()
        stored(source)
        rows = read_vocabulary(source, config["vocab_size"])
        found.append(to_fairseq(read_tensors(source), config, BERT, rows, str(source)))
    for other in found[1:]:
        assert set(other) == set(found[0])
        assert all(torch.equal(other[name], value) for name, value in found[0].items())


def test_half_precision_is_read_exactly(transformers: ModuleType, tmp_path: Path) -> None:
    hub.write_model(tmp_path / "source", "BertModel")
    hub.change_tensors(
        tmp_path / "source", lambda x: x.update({k: v.bfloat16() for k, v in x.items()})
    )
    import_folder(tmp_path / "source", tmp_path / "out", OURS)
    stored = weights(tmp_path / "out")
    assert {value.dtype for value in stored.values()} == {torch.float32}
    theirs = transformers.AutoModel.from_pretrained(tmp_path / "source", dtype=torch.bfloat16)
    weight = theirs.encoder.layer[1].output.dense.weight
    assert torch.equal(stored["encoder.sentence_encoder.layers.1.fc2.weight"], weight.float())


def test_a_missing_head_starts_fresh(
    transformers: ModuleType, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hub.write_model(tmp_path / "source", "BertModel")
    with caplog.at_level(logging.INFO):
        import_folder(tmp_path / "source", tmp_path / "out", OURS)
    assert "no head for masked language modelling: it starts fresh" in caplog.text
    stored = weights(tmp_path / "out")
    assert 0.01 < stored["encoder.lm_head.dense.weight"].std() < 0.03
    tokens = stored["encoder.sentence_encoder.embed_tokens.weight"]
    assert torch.equal(stored["encoder.lm_head.weight"], tokens)


def test_awkward_tokens_keep_their_rows(tmp_path: Path) -> None:
    """CamemBERT's order, a token with a space, one that looks like ours, rows without a token."""
    names = ["<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<s>", "</s>", "a b", "▁x", "<mask>"]
    tokens = {token: number for number, token in enumerate([*names, "madeupword0010", "y"])}
    tokens = {token: number + (number > 9) for token, number in tokens.items()}
    (tmp_path / "vocab.json").write_text(json.dumps(tokens))
    found = read_vocabulary(tmp_path, 13)
    assert found.numbers == [4, 1, 5, 3, 0, 2, 6, 7, 9, 10, 11, 12, 8]
    odd = ["madeupword0006", "▁x", "madeupword0010", "madeupword0010_", "y", "madeupword0012"]
    assert found.symbols[4:-1] == ["<s>NOTUSED", "</s>NOTUSED", *odd]
    found.dictionary().save(str(tmp_path / "dict.txt"))
    assert Dictionary.load(str(tmp_path / "dict.txt")).symbols == found.symbols
    rows = torch.arange(13)
    assert torch.equal(found.to_tokenizer(found.to_fairseq(rows)), rows)
