"""ALBERT: L layers with the same parameters, each with attention methods of its own."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY, build_model
from fairseq.options import get_training_parser, parse_args_and_arch
from torch import nn

import fairseq_stochattn as sa
import hub
import runner
import sizes
import zoo
from fairseq_stochattn.core.method import AttentionMethod
from fairseq_stochattn.core.stack import AttentionStack
from fairseq_stochattn.methods.repulsive.systems import find_systems
from fairseq_stochattn.models.layer_decay import factor_of
from fairseq_stochattn.pretrained.export_huggingface import export_folder
from fairseq_stochattn.pretrained.import_huggingface import import_folder
from fairseq_stochattn.pretrained.vocabulary import read_vocabulary

# Preset → the parameters in millions that Lan et al. (2020), Table 1, state.
PUBLISHED = {"base": 12, "large": 18, "xlarge": 60, "xxlarge": 235}
VOCABULARY = 30000


def published(arch: str, **flags: Any) -> nn.Module:
    """A model of the published size with a classification head; it has shapes, but no numbers."""
    symbols = Dictionary()
    for number in range(VOCABULARY - len(symbols)):
        symbols.add_symbol(f"w{number}")
    task = SimpleNamespace(
        source_dictionary=symbols, max_positions=lambda: 512, cfg=SimpleNamespace()
    )
    args = Namespace(arch=arch, **flags)
    ARCH_CONFIG_REGISTRY[arch](args)
    name = "fairseq.models.roberta.model.init_bert_params"
    with torch.device("meta"), mock.patch(name, return_value=None):
        model = build_model(args, task)
        model.register_classification_head("head", num_classes=2)
    return model


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def head_parameters(model: nn.Module) -> int:
    """The parameters of the heads beyond transformers' pooler, and of fairseq's unused rows."""
    head, own = model.classification_heads["head"].out_proj, model.encoder.lm_head
    embedding = model.encoder.sentence_encoder.embed_tokens.weight
    own_parameters = sum(p.numel() for p in own.parameters() if p is not embedding)
    return count(head) + own_parameters + 2 * embedding.size(1)


@pytest.mark.parametrize("size", PUBLISHED)
def test_the_number_of_parameters_is_that_of_the_published_model(
    size: str, transformers: ModuleType
) -> None:
    model = published(f"albert_{size}")
    assert count(model) - head_parameters(model) == pytest.approx(PUBLISHED[size] * 1e6, rel=0.06)
    args = model.args
    config = transformers.AlbertConfig(
        hidden_size=args.encoder_embed_dim,
        intermediate_size=args.encoder_ffn_embed_dim,
        num_attention_heads=args.encoder_attention_heads,
        num_hidden_layers=args.encoder_layers,
        embedding_size=args.embedding_dim,
    )
    with torch.device("meta"):
        theirs = transformers.AlbertModel(config)
    assert count(model) - head_parameters(model) == count(theirs)


def test_babn_adds_as_many_parameters_as_in_its_paper() -> None:
    """11.7 and 12.4 million in Table 7: three maps of 512 positions, shared by all layers."""
    plain, babn = published("albert_deterministic_base"), published("albert_babn_base")
    base = count(plain) - head_parameters(plain)
    assert base == 11_683_584
    added = count(babn) - count(plain)
    maps, prior = 3 * (512 * 512 + 512), 12 * (64 * 32 + 32 + 32 + 1)
    assert added == maps + prior == 813_324
    assert abs(base + added - 12.4e6) < 0.1e6


def test_flags_turn_the_shared_maps_of_babn_off_again() -> None:
    def parsed(*flags: str) -> Namespace:
        return parse_args_and_arch(get_training_parser(), ["data", "--arch", *flags])

    for flags, expected in (
        ((), True),
        (("--babn-share-layers",), True),
        (("--babn-share-layers", "False"), False),
    ):
        args = parsed("albert_babn", "--encoder-layers", "2", "--encoder-embed-dim", "24", *flags)
        model = ARCH_MODEL_REGISTRY["albert_babn"].build_model(args, zoo.task())
        settings = methods_of(model)[0].settings
        assert (settings.share_layers, settings.max_positions) == (expected, 512)
    args = parsed("roberta_babn", "--encoder-layers", "2", "--encoder-embed-dim", "24")
    model = ARCH_MODEL_REGISTRY["roberta_babn"].build_model(args, zoo.task())
    assert not methods_of(model)[0].settings.share_layers


def methods_of(model: nn.Module) -> list[AttentionMethod]:
    return [m for m in model.modules() if isinstance(m, AttentionMethod)]


def layers_of(model: nn.Module) -> list[nn.Module]:
    return list(model.encoder.sentence_encoder.layers)


def test_layers_share_parameters_but_not_methods() -> None:
    model = zoo.build("albert_asa")
    methods = methods_of(model)
    assert len({id(m.b) for m in methods}) == len(methods) == 3
    adversaries = {id(p) for m in methods for p in m.parameters()}
    owned = [{id(p) for p in layer.parameters()} - adversaries for layer in layers_of(model)]
    assert owned[0] == owned[1] == owned[2]
    model.half().float()
    owned = [{id(p) for p in layer.parameters()} - adversaries for layer in layers_of(model)]
    assert owned[0] == owned[1] == owned[2]
    tokens = zoo.pad(zoo.sentences(9, 7))
    model.train()(tokens)[0].square().mean().backward()
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    weights = [layer.fc1.weight for layer in layers_of(model)]
    assert all(w is weights[0] for w in weights)


def test_checkpoints_contain_the_shared_parameters_once() -> None:
    model = zoo.build("albert_asa")
    state = model.state_dict()
    layers = [name for name in state if ".layers." in name and "attention_methods" not in name]
    assert layers
    assert all(".layers.0." in name for name in layers)
    other = zoo.build("albert_asa", seed=2)
    other.load_state_dict(state, strict=True)
    assert torch.equal(layers_of(other)[2].fc1.weight, layers_of(model)[0].fc1.weight)
    tokens = zoo.pad(zoo.sentences(9, 7))
    assert torch.equal(model.eval()(tokens)[0], other.eval()(tokens)[0])


@pytest.mark.parametrize("settings", [{}, {"babn_sigma": 0.5, "attention_layers": "1,2"}])
def test_a_pruned_model_loads_its_own_checkpoint(settings: dict[str, Any]) -> None:
    arch = "albert_babn" if settings else "albert_deterministic"
    pruned = zoo.build(arch, encoder_layers_to_keep="1", **settings)
    again = zoo.build(arch, encoder_layers_to_keep="1", seed=3, **settings)
    again.load_state_dict(pruned.state_dict(), strict=True)
    tokens = zoo.pad(zoo.sentences(9, 7))
    assert torch.equal(pruned.eval()(tokens)[0], again.eval()(tokens)[0])


def test_heads_are_repelled_once_and_layer_decay_spares_shared_layers() -> None:
    model = zoo.build("albert_babn", layer_lr_decay=0.5)
    held = {parameter: parameter for parameter in model.parameters()}
    assert len(find_systems(model, held, "all", "all", "all")) == 3
    encoder = model.encoder.sentence_encoder
    assert factor_of(encoder.layers[0].fc1.weight) == 1
    assert factor_of(encoder.embed_tokens.weight) == 0.5**3


def test_wrong_sizes_are_refused() -> None:
    with pytest.raises(SystemExit, match="embedding-dim"):
        zoo.build("albert_babn", embedding_dim=0)


@torch.no_grad()
@pytest.mark.parametrize("name", ["babn", "bam"])
def test_a_converted_albert_of_transformers_computes_the_same(
    name: str, transformers: ModuleType, tmp_path: Path
) -> None:
    """Both have one method per layer around shared projections: same parameters, same noise."""
    hub.write_model(tmp_path / "hf", "AlbertModel", embedding_size=16)
    import_folder(tmp_path / "hf", tmp_path / "out", f"albert_{name}")
    path = str(tmp_path / "out" / "model.pt")
    ours = checkpoint_utils.load_model_ensemble([path])[0][0].eval()
    theirs = transformers.AlbertModel.from_pretrained(tmp_path / "hf").eval()
    sa.convert(theirs, methods_of(ours)[0].settings)
    mine, other = (
        next(m for m in model.modules() if isinstance(m, AttentionStack))
        for model in (ours, theirs)
    )
    assert len(mine.methods) == len(other.methods) == 3
    other.shared.load_state_dict(mine.shared.state_dict())
    for found, expected in zip(other.methods, mine.methods, strict=True):
        found.load_state_dict(expected.state_dict())
    batch = hub.encode(tmp_path / "hf", hub.SENTENCES)
    ids = torch.tensor(read_vocabulary(tmp_path / "hf", theirs.config.vocab_size).token_ids)
    tokens, valid = ids.argsort()[batch["input_ids"]], batch["attention_mask"].bool()
    outputs = []
    with sa.sampled_attention([ours]), sa.sampled_attention([theirs]):
        torch.manual_seed(7)
        outputs.append(ours(tokens, features_only=True)[0][valid])
        torch.manual_seed(7)
        outputs.append(theirs(**batch).last_hidden_state[valid])
        repeated = theirs(**batch).last_hidden_state[valid]
    torch.testing.assert_close(outputs[0], outputs[1], rtol=0, atol=1e-5)
    assert (repeated - outputs[1]).abs().max() > 1e-3


def test_continued_pretraining_fine_tuning_and_export(
    transformers: ModuleType, lm_data: Path, classification_data: Path, tmp_path: Path
) -> None:
    """fairseq's commands train it, and transformers reads the export of the classifier."""
    small = (*sizes.ROBERTA, "--embedding-dim", 16, "--max-positions", 32)
    model = ("--arch", "albert_babn", *small, "--babn-sigma", 0)
    masked = (*sizes.MASKED_LM, "--criterion", "elbo", "--max-update", 3)
    runner.train(lm_data, tmp_path / "mlm", *model, *masked)
    start = tmp_path / "mlm" / "checkpoint_last.pt"
    tune = (*sizes.CLASSIFICATION, "--criterion", "elbo", "--max-update", 2)
    tune = (*tune, "--finetune-from-model", start)
    runner.train(classification_data, tmp_path / "cls", *model, *tune)
    last = tmp_path / "cls" / "checkpoint_last.pt"
    export_folder(last, tmp_path / "hf")
    auto = transformers.AutoModelForSequenceClassification
    theirs, report = auto.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not any(report.values()), report
    assert type(theirs).__name__ == "AlbertForSequenceClassification"
    (ours,), _ = checkpoint_utils.load_model_ensemble([str(last)])
    tokens = torch.randint(4, 10, (2, 7))
    with torch.no_grad():
        found = ours.eval()(tokens, classification_head_name="sentence_classification_head")[0]
        expected = theirs.eval()(tokens).logits
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
