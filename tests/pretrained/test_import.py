"""An imported encoder has the same outputs as in transformers, and the export restores its folder.

The tests use small models with random weights, and all-MiniLM-L6-v2 if its package is installed.
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
from fairseq_stochattn.pretrained.export_huggingface import export_folder
from fairseq_stochattn.pretrained.families import BERT
from fairseq_stochattn.pretrained.huggingface_folder import read_tensors
from fairseq_stochattn.pretrained.import_huggingface import import_folder
from fairseq_stochattn.pretrained.tensors import to_fairseq
from fairseq_stochattn.pretrained.vocabulary import read_vocabulary

CLOSE = {"rtol": 0, "atol": 1e-4}
OURS, PLAIN = "roberta_deterministic", "roberta_base"
ELECTRA = "electra_deterministic"
ALBERT = "albert_deterministic"
# Case → transformers' class, fairseq arch, settings.
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("BertForMaskedLM", OURS, {}),
    "bert, tanh approximation of gelu, untied": (
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
    "electra, embeddings as wide as layers": (
        *("ElectraForPreTraining", ELECTRA),
        {"embedding_size": 24, "hidden_act": "gelu_new", "segments": False},
    ),
    "albert": ("AlbertForMaskedLM", ALBERT, {"embedding_size": 16}),
    "albert, embeddings as wide as layers, untied": (
        *("AlbertForMaskedLM", ALBERT),
        {"embedding_size": 24, "hidden_act": "gelu", "tie_word_embeddings": False},
    ),
    "albert, plain, without head": ("AlbertModel", "albert", {"embedding_size": 8}),
    "electra, plain, without head": ("ElectraModel", "electra", {"embedding_size": 32}),
}
PAIRS = tuple(map(list, zip(*hub.PAIRS, strict=True)))


def load(folder: Path, **overrides: Any) -> nn.Module:
    path = str(folder / "model.pt")
    return checkpoint_utils.load_model_ensemble([path], overrides or None)[0][0].eval()


def stored_weights(folder: Path) -> dict[str, Tensor]:
    return torch.load(folder / "model.pt", weights_only=True)["model"]


@dataclass
class Case:
    """One model before and after its import."""

    name: str
    arch: str
    source: Path
    out: Path
    theirs: nn.Module  # the model in transformers
    ours: nn.Module  # the model in fairseq
    token_ids: list[int]  # the tokenizer's id of every embedding row in fairseq

    def tokens(self, batch: dict[str, Tensor]) -> Tensor:
        """Convert the token ids of a batch from the tokenizer's to fairseq's."""
        rows = torch.empty(len(self.token_ids), dtype=torch.long)
        rows[self.token_ids] = torch.arange(len(self.token_ids))
        return rows[batch["input_ids"]]


def make_case(name: str, arch: str, source: Path, out: Path, theirs: nn.Module) -> Case:
    import_folder(source, out, arch)
    token_ids = read_vocabulary(source, theirs.config.vocab_size).token_ids
    return Case(name, arch, source, out, theirs, load(out), token_ids)


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
def test_every_layer_has_the_same_output_as_in_transformers(case: Case) -> None:
    """This holds for single sentences and for pairs, in batches padded on the right."""
    for texts in ((hub.SENTENCES,), PAIRS):
        batch = hub.encode(case.source, *texts)
        valid = batch["attention_mask"].bool()
        assert not valid.all()
        theirs = case.theirs(**batch, output_hidden_states=True)
        out, extra = case.ours(case.tokens(batch), return_all_hiddens=True)
        assert len(extra["inner_states"]) == len(theirs.hidden_states)
        for found, expected in zip(extra["inner_states"], theirs.hidden_states, strict=True):
            torch.testing.assert_close(found.transpose(0, 1)[valid], expected[valid], **CLOSE)
        logits = getattr(theirs, "logits", getattr(theirs, "prediction_logits", None))
        if logits is not None:
            expected = logits[valid] if logits.dim() == 2 else logits[valid][:, case.token_ids]
            torch.testing.assert_close(out[valid], expected, **CLOSE)


def test_pairs_have_segments_or_two_separators(case: Case) -> None:
    """So the comparison with transformers covers BERT's segments and RoBERTa's two separators."""
    batch = hub.encode(case.source, *PAIRS)
    separators = case.tokens(batch).eq(2).sum(dim=1).tolist()
    if "token_type_ids" in batch:
        assert batch["token_type_ids"].any()
        assert separators == [2, 2, 2]
        encoder = case.ours.encoder.sentence_encoder
        if case.name == "electra, embeddings as wide as layers":  # its segments are zeros
            assert not hasattr(encoder, "embed_segments")
            return
        segments = encoder.embed_segments.weight
        assert (segments[0] - segments[1]).abs().max() > 1e-3
    else:
        assert separators == [3, 3, 3]


def test_export_inverts_the_import(case: Case, tmp_path: Path, transformers: ModuleType) -> None:
    from safetensors.torch import load_file

    export_folder(case.out / "model.pt", tmp_path / "back")
    before, after = (load_file(x / "model.safetensors") for x in (case.source, tmp_path / "back"))
    not_exported = {
        "embeddings.position_ids",
        "cls.seq_relationship.weight",
        "cls.seq_relationship.bias",
    }
    assert set(after) == set(before) - not_exported
    unused = {"cls.predictions.bias", "lm_head.bias", "predictions.bias"}
    unused = unused if "untied" in case.name else set()
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
        return  # without the next-sentence head, no class of transformers fits the model
    class_suffix = "".join(type(case.theirs).__name__.partition("For")[1:])
    auto = getattr(transformers, f"AutoModel{class_suffix}")
    again, report = auto.from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not any(report.values()), report
    assert type(again) is type(case.theirs)
    batch = hub.encode(tmp_path / "back", hub.SENTENCES)
    with torch.no_grad():
        assert torch.equal(again.eval()(**batch)[0], case.theirs(**batch)[0])


def test_the_mean_attention_of_babn_is_the_pretrained_attention(
    tmp_path: Path, transformers: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = hub.write_model(tmp_path / "source", "BertForMaskedLM")
    case = make_case("bert", "roberta_babn", tmp_path / "source", tmp_path / "out", theirs)
    assert "is new: keeping its initial parameters" in caplog.text
    batch = hub.encode(case.source, *PAIRS)
    valid = batch["attention_mask"].bool()
    with torch.no_grad():
        expected = theirs(**batch).logits[valid][:, case.token_ids]
        no_sigma = load(case.out, babn_sigma=0.0)(case.tokens(batch))[0][valid]
        torch.testing.assert_close(no_sigma, expected, **CLOSE)
        # babn's default ``sigma`` 1e-6 changes the mean by a similar amount.
        torch.testing.assert_close(
            case.ours(case.tokens(batch))[0][valid], expected, rtol=0, atol=1e-3
        )
        case.ours.train()
        assert not torch.allclose(case.ours(case.tokens(batch))[0][valid], expected, atol=1e-2)


def as_shards(folder: Path) -> None:
    """Split model.safetensors into three files and an index."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    shard_of = {}
    for number in range(3):
        name = f"model-{number}.safetensors"
        shard = {key: tensors[key] for key in list(tensors)[number::3]}
        save_file(shard, folder / name)
        shard_of |= dict.fromkeys(shard, name)
    index = json.dumps({"metadata": {}, "weight_map": shard_of})
    (folder / "model.safetensors.index.json").write_text(index)


def as_pickle(folder: Path) -> None:
    """Replace model.safetensors by pytorch_model.bin."""
    from safetensors.torch import load_file

    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def with_old_names(folder: Path) -> None:
    """Rename tensors as in the first release of BERT and in older versions of transformers."""

    def rename(tensors: dict[str, Tensor]) -> None:
        for name in [name for name in tensors if "LayerNorm" in name]:
            old = name.replace("LayerNorm.weight", "LayerNorm.gamma")
            tensors[old.replace("LayerNorm.bias", "LayerNorm.beta")] = tensors.pop(name)
        tensors["bert.embeddings.position_ids"] = torch.arange(66)[None]
        embedding = tensors["bert.embeddings.word_embeddings.weight"]
        tensors["cls.predictions.decoder.weight"] = embedding.clone()
        tensors["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"].clone()

    hub.change_tensors(folder, rename)


def test_all_storage_formats_give_the_same_weights(
    transformers: ModuleType, tmp_path: Path
) -> None:
    imported = []
    for store in (lambda folder: None, as_shards, as_pickle, with_old_names):
        source = tmp_path / f"source{len(imported)}"
        config = hub.write_model(source, "BertForMaskedLM").config.to_dict()
        store(source)
        vocabulary = read_vocabulary(source, config["vocab_size"])
        tensors = read_tensors(source)
        imported.append(to_fairseq(tensors, config, BERT, vocabulary, str(source)))
    for other in imported[1:]:
        assert set(other) == set(imported[0])
        assert all(torch.equal(other[name], value) for name, value in imported[0].items())


def test_half_precision_weights_are_converted_without_loss(
    transformers: ModuleType, tmp_path: Path
) -> None:
    hub.write_model(tmp_path / "source", "BertModel")
    hub.change_tensors(
        tmp_path / "source", lambda x: x.update({k: v.bfloat16() for k, v in x.items()})
    )
    import_folder(tmp_path / "source", tmp_path / "out", OURS)
    stored = stored_weights(tmp_path / "out")
    assert {value.dtype for value in stored.values()} == {torch.float32}
    theirs = transformers.AutoModel.from_pretrained(tmp_path / "source", dtype=torch.bfloat16)
    weight = theirs.encoder.layer[1].output.dense.weight
    assert torch.equal(stored["encoder.sentence_encoder.layers.1.fc2.weight"], weight.float())


def test_a_missing_head_is_initialised_randomly(
    transformers: ModuleType, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hub.write_model(tmp_path / "source", "BertModel")
    with caplog.at_level(logging.INFO):
        import_folder(tmp_path / "source", tmp_path / "out", OURS)
    assert (
        "the folder has no masked-language-modelling head: the head is initialised randomly"
        in caplog.text
    )
    stored = stored_weights(tmp_path / "out")
    assert 0.01 < stored["encoder.lm_head.dense.weight"].std() < 0.03
    tokens = stored["encoder.sentence_encoder.embed_tokens.weight"]
    assert torch.equal(stored["encoder.lm_head.weight"], tokens)


def test_unusual_tokens_keep_their_embedding_rows(tmp_path: Path) -> None:
    """The tokenizer has CamemBERT's order, a token with a space, a token that looks like a
    placeholder, and rows without a token.
    """
    names = ["<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<s>", "</s>", "a b", "▁x", "<mask>"]
    tokens = {token: token_id for token_id, token in enumerate([*names, "madeupword0010", "y"])}
    tokens = {token: token_id + (token_id > 9) for token, token_id in tokens.items()}
    (tmp_path / "vocab.json").write_text(json.dumps(tokens))
    found = read_vocabulary(tmp_path, 13)
    assert found.token_ids == [4, 1, 5, 3, 0, 2, 6, 7, 9, 10, 11, 12, 8]
    others = ["madeupword0006", "▁x", "madeupword0010", "madeupword0010_", "y", "madeupword0012"]
    assert found.symbols[4:-1] == ["<s>NOTUSED", "</s>NOTUSED", *others]
    found.dictionary().save(str(tmp_path / "dict.txt"))
    assert Dictionary.load(str(tmp_path / "dict.txt")).symbols == found.symbols
    rows = torch.arange(13)
    assert torch.equal(found.to_tokenizer(found.to_fairseq(rows)), rows)
