"""TorchScript: models with methods raise one line; what this line advises works."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor, nn

import fairseq_stochattn as sa
import runner
import sizes
import zoo
from fairseq_stochattn.core.errors import InputError
from fairseq_stochattn.pretrained.export_fairseq import export

# Before it reaches an attention, tracing warns about code of fairseq and torch.
pytestmark = pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")

BACKBONES = ("transformer", "transformer_lm", "roberta", "lstm")
METHODS = ("deterministic", "babn", "bam")
# Packed sequences of the LSTM must be sorted by length.
SOURCES, TARGETS = zoo.sentences(7, 5, 3), zoo.sentences(4, 6, 2, seed=1)


def inputs(backbone: str, sources: list[Tensor], targets: list[Tensor]) -> tuple[Tensor, ...]:
    """Return the arguments of a model of this backbone."""
    if backbone == "transformer_lm":
        return (zoo.pad(zoo.shift(targets)),)
    if backbone == "roberta":
        return (zoo.pad(sources),)
    lengths = torch.tensor([len(row) for row in sources])
    return zoo.pad(sources, left=True), lengths, zoo.pad(zoo.shift(targets))


class Outputs(nn.Module):
    """A module of a user around a model, which returns only its first output."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *tokens: Tensor) -> Tensor:
        return self.model(*tokens)[0]


WAYS: dict[str, Callable[[nn.Module, tuple], Any]] = {
    "script": lambda model, given: torch.jit.script(model),
    "script within a module": lambda model, given: torch.jit.script(nn.Sequential(model)),
    "trace": lambda model, given: torch.jit.trace(model, given, strict=False),
    "trace within a module": lambda model, given: torch.jit.trace(Outputs(model), given),
    "trace of a function": lambda model, given: torch.jit.trace(lambda *x: model(*x)[0], given),
}


def refusal(call: Callable[[], Any]) -> str:
    """Return the message of the error that the call must raise: one line with advice."""
    with pytest.raises(InputError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    assert "stochattn-export" in message
    assert "revert(model)" in message
    return message


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("backbone", BACKBONES)
def test_models_with_methods_are_refused_in_one_line(backbone: str, method: str, way: str) -> None:
    model = zoo.build(f"{backbone}_{method}").eval().requires_grad_(False)
    given = inputs(backbone, SOURCES, TARGETS)
    before = model(*given)[0]
    message = refusal(lambda: WAYS[way](model, given))
    assert message.startswith(f"torch.jit.{way.split()[0]} cannot")
    torch.testing.assert_close(model(*given)[0], before, rtol=0, atol=0)  # the model still works


@pytest.mark.parametrize("backbone", BACKBONES)
def test_models_in_training_are_refused_too(backbone: str) -> None:
    """The fused kernel of training is a second way through the attention."""
    model = zoo.build(f"{backbone}_deterministic").train().requires_grad_(False)
    given = inputs(backbone, SOURCES, TARGETS)
    refusal(lambda: torch.jit.trace(lambda *x: model(*x)[0], given))


def test_parts_and_generators_are_refused() -> None:
    model = zoo.build("transformer_deterministic").eval()
    generator = SequenceGenerator([model], zoo.dictionary(), beam_size=2)
    for part in (model.encoder, model.decoder.layers[0], generator):
        refusal(lambda part=part: torch.jit.script(part))


def test_selected_layers_only() -> None:
    """A layer without a method is refused too, since it also runs this package's attention."""
    model = zoo.build("roberta_babn", attention_layers="0").eval()
    refusal(lambda: torch.jit.script(model.encoder.sentence_encoder.layers[1]))


def test_converted_torch_models_are_refused_until_they_are_reverted() -> None:
    torch.manual_seed(1)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x = torch.randn(2, 5, 16)
    sa.convert(model, sa.BAM())
    refusal(lambda: torch.jit.script(model))
    refusal(lambda: torch.jit.trace(model, x))
    refusal(lambda: torch.jit.trace(model.layers[0].self_attn, (x, x, x)))
    sa.revert(model)
    with torch.no_grad():
        expected = model(x)
        for compiled in (torch.jit.script(model), torch.jit.trace(model, x)):
            torch.testing.assert_close(compiled(x), expected, rtol=0, atol=1e-5)


def test_models_can_still_be_inspected() -> None:
    """The attribute by which tracing is noticed is harmless to everyone else."""
    model = zoo.build("roberta_babn")
    for module in model.modules():
        members = dict(inspect.getmembers(module))
        assert members.get("__jit_ignored_attributes__", []) == []


FLAGS = {
    "transformer": (*sizes.TRANSFORMER, "--encoder-layers", 1, "--decoder-layers", 1),
    "transformer_lm": (*sizes.TRANSFORMER_LM, "--decoder-layers", 1),
    "roberta": (*sizes.ROBERTA, *sizes.MASKED_LM, "--encoder-layers", 1),
    "lstm": sizes.LSTM,
}
# The part of a plain model that fairseq's own code lets TorchScript compile.
SCRIPTED: dict[str, Callable[[nn.Module], nn.Module]] = {
    "transformer": lambda model: model,
    "transformer_lm": lambda model: model.decoder,
    "roberta": lambda model: model.encoder.sentence_encoder,
    "lstm": lambda model: model,
}


def first_tensor(outputs: Any) -> Tensor:
    """Return the outputs of a decoder or the features of an encoder."""
    return outputs["encoder_out"][0] if isinstance(outputs, dict) else outputs[0]


@pytest.mark.parametrize(
    ("backbone", "method"),
    list(zip(BACKBONES, ["deterministic", "bam", "alignment", "bam"], strict=True)),
)
def test_an_exported_model_can_be_scripted_and_has_the_same_outputs(
    backbone: str, method: str, translation_data: Path, lm_data: Path, tmp_path: Path
) -> None:
    data = lm_data if backbone in ("transformer_lm", "roberta") else translation_data
    flags = ("--arch", f"{backbone}_{method}", *FLAGS[backbone])
    flags = (*flags, "--criterion", "attention_losses", "--max-update", 2)
    runner.train(data, tmp_path, *flags, "--disable-validation")
    ours = tmp_path / "checkpoint_last.pt"
    export(ours, tmp_path / "plain.pt")
    models, _ = checkpoint_utils.load_model_ensemble([str(ours), str(tmp_path / "plain.pt")])
    before, plain = (SCRIPTED[backbone](model.eval()) for model in models)
    refusal(lambda: torch.jit.script(before))
    scripted = torch.jit.script(plain)
    scripted.save(str(tmp_path / "scripted.pt"))
    scripted = torch.jit.load(str(tmp_path / "scripted.pt"))
    for batch in ((SOURCES, TARGETS), (zoo.sentences(9, 4, seed=5), zoo.sentences(3, 8, seed=6))):
        given = [x.clamp(max=20) for x in inputs(backbone, *batch)]
        with torch.no_grad(), torch.jit.optimized_execution(False):  # the optimizer takes seconds
            found, expected = first_tensor(scripted(*given)), first_tensor(before(*given))
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
