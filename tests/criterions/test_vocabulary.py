"""Criterions of this package compute the loss with the output layer; it equals fairseq's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fairseq.criterions.cross_entropy import CrossEntropyCriterion
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from torch import nn

import zoo
from fairseq_stochattn.criterions.vocabulary import criterion_pass
from fairseq_stochattn.models.output_layer import LossOutputLayer

SOURCES, TARGETS = zoo.sentences(9, 7, 4, 2), zoo.sentences(8, 5, 3, 2, seed=1)


def batch(arch: str) -> dict[str, Any]:
    if "lm" in arch:
        inputs = {"src_tokens": zoo.pad(zoo.shift(TARGETS)), "src_lengths": None}
    else:
        tokens = zoo.pad(SOURCES)
        inputs = {"src_tokens": tokens, "src_lengths": tokens.ne(zoo.PAD).sum(dim=1)}
        inputs["prev_output_tokens"] = zoo.pad(zoo.shift(TARGETS))
    count = sum(map(len, TARGETS))
    return {"net_input": inputs, "target": zoo.pad(TARGETS), "ntokens": count}


def smoothed(**more: Any) -> LabelSmoothedCrossEntropyCriterion:
    return LabelSmoothedCrossEntropyCriterion(zoo.task(), False, 0.1, **more)


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    found = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


@pytest.mark.parametrize(
    ("arch", "flags"),
    [
        ("transformer_deterministic", {}),
        ("transformer_deterministic", {"share_decoder_input_output_embed": True}),
        ("transformer_lm_babn", {}),
        ("lstm_deterministic", {}),
        ("lstm_deterministic", {"share_decoder_input_output_embed": True}),
    ],
)
@pytest.mark.parametrize("smoothing", [True, False])
def test_loss_gradient_and_log_equal_fairseqs(arch: str, flags: dict, smoothing: bool) -> None:
    model = zoo.build(arch, **flags).double().train()
    criterion = smoothed() if smoothing else CrossEntropyCriterion(zoo.task(), True)
    logits: list[tuple[int, ...]] = []
    model.register_forward_hook(lambda *args: logits.append(tuple(args[2][0].shape)))
    results = []
    for run in (criterion, lambda *args: criterion_pass(criterion, *args)):
        torch.manual_seed(3)
        loss, size, log = run(model, batch(arch))
        loss.backward()
        results.append((loss, size, log, gradients(model)))
    (loss, size, log, grads), ours = results
    assert [len(shape) for shape in logits] == [3, 0]  # the second pass returned no logits
    assert size == ours[1]
    assert list(log) == list(ours[2])
    tolerance = {"rtol": 1e-5, "atol": 1e-6, "check_dtype": False}  # fairseq's softmax is in fp32
    torch.testing.assert_close((loss, log, grads), (ours[0], *ours[2:]), **tolerance)
    assert model.decoder.loss_request is None


@pytest.mark.parametrize("reason", ["accuracy", "prefix", "not reduced", "plain arch", "half"])
def test_other_cases_are_left_to_fairseq(reason: str) -> None:
    arch = "transformer" if reason == "plain arch" else "transformer_deterministic"
    model = zoo.build(arch).eval()
    more = {"accuracy": {"report_accuracy": True}, "prefix": {"ignore_prefix_size": 1}}
    criterion = smoothed(**more.get(reason, {}))
    if reason == "half":
        model = model.bfloat16()
    outputs: list[int] = []
    model.register_forward_hook(lambda *args: outputs.append(args[2][0].dim()))
    args = model, batch(arch), reason != "not reduced"
    assert isinstance(model.decoder, LossOutputLayer) == (reason != "plain arch")
    torch.testing.assert_close(criterion_pass(criterion, *args), criterion(*args))
    assert outputs == [3, 3]
