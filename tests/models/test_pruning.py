"""``--encoder-layers-to-keep`` and ``--decoder-layers-to-keep``: some layers of a trained model."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fairseq import checkpoint_utils
from torch import Tensor, nn

import runner
import sizes
import zoo
from bad_input import complaint
from fairseq_stochattn.commands import evaluate
from fairseq_stochattn.compat import UsageError
from fairseq_stochattn.core.losses import take_losses
from fairseq_stochattn.core.pruning import KeptLayers, keep_modules
from fairseq_stochattn.models.pruning import part_of
from fairseq_stochattn.pretrained.export_fairseq import export

SOURCES, TARGETS = zoo.sentences(9, 7, 4), zoo.sentences(8, 5, 3, seed=1)
BOTH = {"encoder_layers_to_keep": "0,2", "decoder_layers_to_keep": "1"}
FLAGS = {
    "transformer": BOTH,
    "transformer_lm": {"decoder_layers_to_keep": "0,2"},
    "roberta": {"encoder_layers_to_keep": "0,2"},
    "electra": {"encoder_layers_to_keep": "0,2"},
    "albert": {"encoder_layers_to_keep": "1,2"},
}
PAIRS = [pair for pair in zoo.all_pairs() if pair[0] in FLAGS]
# Settings for which a pruned model is wrong if it confuses the layers.
VARIANTS = [
    ("transformer_babn", {"babn_sigma": 0.5}),
    ("transformer_babn", {"babn_sigma": 0.5, "babn_share_layers": True}),
    ("transformer_babn", {"babn_sigma": 0.5, "babn_upward": "heads", "attention_layers": "1,2"}),
    ("transformer_alignment", {"alignment": "gan", "alignment_share_layers": True}),
    ("transformer_bernoulli", {"attention_sites": "decoder", "attention_layers": "1"}),
    ("transformer_attendout", {"attention_layers": "1,2"}),
    ("roberta_babn", {"babn_sigma": 0.5, "attention_layers": "last"}),
    ("albert_babn", {"babn_sigma": 0.5, "babn_share_layers": False, "attention_layers": "1,2"}),
    ("albert_asa", {"attention_layers": "0,1"}),
]


def trained(arch: str, **flags: Any) -> nn.Module:
    """Return a full model in which no two layers, and no two shared parts, are equal."""
    model = zoo.build(arch, **flags)
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def without_layers(model: nn.Module, kept: dict[str, str]) -> nn.Module:
    """Return a copy of a full model from which all other layers are deleted."""
    model = copy.deepcopy(model)
    for module in list(model.modules()):
        spec = kept.get(f"{part_of(module)}_layers_to_keep")
        if spec is not None:
            for layer in sorted(set(range(3)) - set(map(int, spec.split(","))), reverse=True):
                del module.layers[layer]
    return model


def results(model: nn.Module, backbone: str, training: bool) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the outputs and the losses of a batch, with a fixed seed."""
    model.train(training)
    torch.manual_seed(11)
    out = zoo.run(model, backbone, SOURCES, TARGETS)
    losses: dict[str, Tensor] = {}
    for name, term in take_losses(model):
        losses[name] = losses.get(name, 0) + term.value
    return out, losses


def assert_same(model: nn.Module, expected: nn.Module, backbone: str) -> None:
    """Check outputs in eval, and outputs and losses in training."""
    for training in (False, True):
        found, wanted = results(model, backbone, training), results(expected, backbone, training)
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("backbone", "method"), PAIRS)
def test_a_pruned_model_is_the_full_model_without_the_other_layers(
    backbone: str, method: str
) -> None:
    full, flags = trained(f"{backbone}_{method}"), FLAGS[backbone]
    pruned = zoo.build(f"{backbone}_{method}", **flags)
    pruned.load_state_dict(full.state_dict(), strict=True)
    assert_same(pruned, without_layers(full, flags), backbone)
    whole, part = results(full, backbone, False)[0], results(pruned, backbone, False)[0]
    assert (whole - part).abs().max() > 1e-3


@pytest.mark.parametrize(("arch", "settings"), VARIANTS)
def test_methods_stay_with_the_layers_that_they_were_trained_in(
    arch: str, settings: dict[str, Any]
) -> None:
    """``--attention-layers`` and shared parts refer to the layers of the full model."""
    backbone = zoo.backbone_of(arch)
    full, flags = trained(arch, **settings), FLAGS[backbone]
    pruned = zoo.build(arch, **settings, **flags)
    pruned.load_state_dict(full.state_dict(), strict=True)
    assert_same(pruned, without_layers(full, flags), backbone)


def test_a_schedule_stays_with_its_layer() -> None:
    settings = {"scheduled_shares": "0.1/0.2/0.3"}
    pruned = zoo.build("roberta_scheduled", **settings, encoder_layers_to_keep="0,2")
    layers = pruned.encoder.sentence_encoder.layers
    shares = [layer.self_attn.attention_methods["scheduled"].share(0) for layer in layers]
    assert shares == [0.1, 0.3]


@pytest.mark.parametrize(
    ("selected", "kept", "expected"),
    [
        ("all", "0,2", [True, True]),
        ("2", "0,2", [False, True]),
        ("last", "0,1", [False, False]),
        ("first", "1,2", [False, False]),
        ("0,1", "2,1", [True, False]),  # fairseq sorts the layers to keep
    ],
)
def test_attention_layers_are_numbers_of_the_full_model(
    selected: str, kept: str, expected: list[bool]
) -> None:
    flags = {"attention_layers": selected, "encoder_layers_to_keep": kept}
    model = zoo.build("roberta_babn", **flags)
    model.load_state_dict(zoo.build("roberta_babn", attention_layers=selected).state_dict())
    layers = model.encoder.sentence_encoder.layers
    assert [len(layer.self_attn.attention_methods) == 1 for layer in layers] == expected


def test_only_the_encoder_is_pruned() -> None:
    """fairseq's own pruning would drop all layers of the decoder."""
    full, flags = trained("transformer_babn"), {"encoder_layers_to_keep": "1"}
    pruned = zoo.build("transformer_babn", **flags)
    pruned.load_state_dict(full.state_dict(), strict=True)
    assert (len(pruned.encoder.layers), len(pruned.decoder.layers)) == (1, 3)
    assert_same(pruned, without_layers(full, flags), "transformer")


def test_electra_without_methods_is_pruned_too() -> None:
    full, flags = trained("electra"), FLAGS["electra"]
    pruned = zoo.build("electra", **flags)
    pruned.load_state_dict(full.state_dict(), strict=True)
    assert_same(pruned, without_layers(full, flags), "electra")


def test_plain_checkpoints_can_be_pruned() -> None:
    full, flags = trained("transformer"), BOTH
    pruned = zoo.build("transformer_babn", **flags)
    pruned.load_state_dict(full.state_dict(), strict=True)
    expected = results(without_layers(full, flags), "transformer", False)[0]
    found = results(pruned, "transformer", False)[0]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


def test_a_state_of_another_size_is_not_changed() -> None:
    state = {f"encoder.layers.{n}.weight": torch.zeros(1) for n in range(12)}
    state["encoder.layers_norm"] = torch.ones(1)
    assert keep_modules(state, "encoder.layers.", KeptLayers((0, 2), 3)) == state
    kept = keep_modules(state, "encoder.layers.", KeptLayers((1, 10, 11), 12))
    assert list(kept) == [*(f"encoder.layers.{n}.weight" for n in range(3)), "encoder.layers_norm"]
    assert kept["encoder.layers.1.weight"] is state["encoder.layers.10.weight"]


@pytest.mark.parametrize(
    ("flags", "cause"),
    [
        ({"encoder_layers_to_keep": "0,3"}, "--encoder-layers-to-keep 3: out of range"),
        ({"encoder_layers_to_keep": "0,x"}, "--encoder-layers-to-keep: expected all, first"),
        ({"encoder_layers_to_keep": [0, 2]}, "indices such as 0,2, not '[0, 2]'"),
        ({"decoder_layers_to_keep": -1}, "--decoder-layers-to-keep -1: out of range"),
    ],
)
def test_impossible_layers_are_refused(flags: dict[str, Any], cause: str) -> None:
    assert cause in complaint(lambda: zoo.build("transformer_babn", **flags))


def test_a_checkpoint_with_another_number_of_layers_is_refused() -> None:
    full = zoo.build("roberta_babn", encoder_layers=4)
    pruned = zoo.build("roberta_babn", encoder_layers_to_keep="0,2")
    message = complaint(pruned.load_state_dict, full.state_dict())
    assert "the checkpoint does not fit this model" in message


@pytest.mark.parametrize("arch", ["electra", "electra_babn"])
def test_pretraining_of_electra_is_refused(arch: str) -> None:
    task = zoo.task(needs_generator=True)
    with pytest.raises(UsageError, match="cannot be used with --task electra"):
        zoo.build(arch, for_task=task, generator_size=0.5, encoder_layers_to_keep="0")


SHORT = ("--beam", 1, "--max-len-b", 10)  # a barely trained model hardly ends a sentence
THREE = ("--encoder-layers", 3, "--decoder-layers", 3, "--max-update", 2)


@pytest.fixture(scope="module")
def translator(translation_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("translator")
    flags = ("--arch", "transformer_babn", *sizes.TRANSFORMER, *THREE, "--babn-sigma", 0.5)
    runner.train(translation_data, folder, *flags, "--criterion", "elbo")
    return folder / "checkpoint_last.pt"


def loaded(path: Path, **overrides: str) -> SimpleNamespace:
    (model,), config = checkpoint_utils.load_model_ensemble([str(path)], overrides)
    return SimpleNamespace(model=model, config=config)


def translate(model: nn.Module) -> Tensor:
    """Return the outputs for tokens that the dictionary of the toy corpus has."""
    rows = [row.clamp(max=20) for row in (SOURCES[0], TARGETS[0])]
    return zoo.run(model.eval(), "transformer", rows[:1], rows[1:])


def test_fairseqs_commands_load_a_part_of_the_layers(
    translator: Path, translation_data: Path, tmp_path: Path
) -> None:
    full, pruned = loaded(translator).model, loaded(translator, **BOTH).model
    assert (len(pruned.encoder.layers), len(pruned.decoder.layers)) == (2, 1)
    torch.testing.assert_close(translate(pruned), translate(without_layers(full, BOTH)))
    overrides = ("--model-overrides", str(BOTH))
    scores = [
        [line for line in output.text.splitlines() if line.startswith("P-")]
        for output in (
            runner.generate(translation_data, translator, *SHORT),
            runner.generate(translation_data, translator, *SHORT, *overrides),
        )
    ]
    assert len(scores[0]) == len(scores[1]) > 0
    assert scores[0] != scores[1]
    nll = []
    for number, more in enumerate(((), overrides)):
        out = tmp_path / f"{number}.json"
        given = (translation_data, "--path", translator, "--cpu", "--json", out, "--limit", 8)
        given = (*given, *more)
        assert evaluate.main([str(x) for x in given]) == 0
        nll.append(json.loads(out.read_text())["checkpoints"][0]["metrics"]["nll"])
    assert nll[0] != nll[1]


def test_commands_refuse_layers_in_one_line(translator: Path, translation_data: Path) -> None:
    overrides = ("--model-overrides", "{'encoder_layers_to_keep': '7'}")
    cause = "--encoder-layers-to-keep 7: out of range, the encoder stack has layers 0 to 2"
    assert cause in complaint(runner.generate, translation_data, translator, *overrides)


def test_a_pruned_model_is_trained_further_resumed_and_exported(
    translation_data: Path, tmp_path: Path
) -> None:
    flags = ("--arch", "transformer_bam", *sizes.TRANSFORMER, *THREE[:4], "--criterion", "elbo")
    runner.train(translation_data, tmp_path / "full", *flags, "--max-update", 1)
    full, last = (tmp_path / name / "checkpoint_last.pt" for name in ("full", "pruned"))
    keep = ("--encoder-layers-to-keep", "0,2", "--decoder-layers-to-keep", "1")
    start = (*flags, *keep, "--finetune-from-model", full, "--lr", 1e-9)
    runner.train(translation_data, tmp_path / "pruned", *start, "--max-update", 1)
    expected = translate(loaded(full, **BOTH).model)
    again = loaded(last)
    assert again.config.model.encoder_layers_to_keep == "0,2"
    torch.testing.assert_close(translate(again.model), expected, rtol=0, atol=1e-4)
    output = runner.train(translation_data, tmp_path / "pruned", *start, "--max-update", 2)
    assert "@ 1 updates" in output.text  # resumed from checkpoint_last.pt
    resumed = translate(loaded(last).model)
    assert export(last, tmp_path / "plain.pt") == "transformer"
    plain = loaded(tmp_path / "plain.pt").model
    assert type(plain).__module__.startswith("fairseq.")
    torch.testing.assert_close(translate(plain), resumed, rtol=0, atol=1e-5)
