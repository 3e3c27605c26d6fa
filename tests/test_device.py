"""Training steps fit a GPU: nothing waits for a value, and no tensor of the CPU is mixed in.

Every method runs a step on the meta device, whose tensors have shapes but no values, so that code
takes the path for GPUs. Reading a value there fails, unless this test answers in its place: fairseq
itself reads a few. A dispatcher mode counts who reads. It also counts operators, without a clock.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import zoo
from fairseq_stochattn.core import device
from fairseq_stochattn.core.losses import collecting_losses, take_losses, weighted_sum
from fairseq_stochattn.core.meters import measuring
from fairseq_stochattn.methods.alignment import tokens, transport
from fairseq_stochattn.methods.babn import upward

PACKAGE = Path(device.__file__).resolve().parents[1]
SOURCES, TARGETS = zoo.sentences(9, 7, 4, 2), zoo.sentences(8, 5, 3, 2, seed=1)
WAITS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal"}
# Operators of a training step of babn per attention layer, relative to the identity method.
MOST_OPERATORS = 3.0


class Watch(TorchDispatchMode):
    """Counts operators, and notes which lines of this package wait for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.operators = 0
        self.waits: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        self.operators += 1
        name, tensors = func._schema.name, [x for x in args if isinstance(x, Tensor)]
        masks = name == "aten::index" and any(
            x is not None and x.dtype in (torch.bool, torch.uint8) for x in args[1]
        )
        copied = name in ("aten::_to_copy", "aten::copy_") and self.crosses(tensors, kwargs or {})
        if (name in WAITS and tensors[0].is_meta) or masks or copied:
            self.note(name)
        if name == "aten::_local_scalar_dense" and tensors[0].is_meta:
            return 1  # what fairseq asks: whether there is padding
        return func(*args, **(kwargs or {}))

    @staticmethod
    def crosses(tensors: list[Tensor], kwargs: dict[str, Any]) -> bool:
        """Whether values are copied between the devices."""
        kinds = {x.device.type for x in tensors if x.dim()}
        target = kwargs.get("device")
        return len(kinds | ({torch.device(target).type} if target is not None else set())) > 1

    def note(self, name: str) -> None:
        own = [f for f in traceback.extract_stack() if Path(f.filename).is_relative_to(PACKAGE)]
        inner = [f for f in traceback.extract_stack() if "site-packages/fairseq/" in f.filename]
        # The innermost of both: fairseq is called by this package and calls it.
        stack = [f for f in traceback.extract_stack() if f in own or f in inner]
        if stack and stack[-1] in own:
            self.waits.append(f"{name} in {stack[-1].filename}:{stack[-1].lineno}")


def step(
    model: nn.Module, backbone: str, like: Callable[[Tensor], Tensor] = lambda x: x
) -> tuple[Tensor, list[str]]:
    """A training step with all losses and meters; returns the loss and the names of its terms."""
    sources, targets = zoo.pad(SOURCES, left=True), zoo.pad(TARGETS)
    previous, lengths = zoo.pad(zoo.shift(TARGETS)), torch.tensor([len(row) for row in SOURCES])
    # fairseq's LSTM reads the lengths on the CPU.
    sources, previous = like(sources), like(previous)
    with collecting_losses(), measuring():
        if backbone == "transformer_lm":
            out = model(previous)[0]
        elif backbone in zoo.ENCODERS:
            out = model(sources, features_only=backbone == "electra")[0]
        else:
            out = model(sources, lengths, previous)[0]
    losses = list(take_losses(model))
    extra, _ = weighted_sum(losses, float(targets.numel()))
    loss = out.float().logsumexp(-1).sum()
    loss = loss if extra is None else loss + extra
    loss.backward()
    return loss, [name for name, _ in losses]


# Not covered: ELECTRA, which draws samples, and the models that do not read a sentence alone.
OTHERS = ("electra", "graph_writer", "mcan")
ALIGNMENTS = [("transformer", "alignment", {"alignment": x}) for x in ("gan", "ot", "ct")]
CASES = [
    *((backbone, method, {}) for backbone, method in zoo.all_pairs() if backbone not in OTHERS),
    *ALIGNMENTS,
    ("roberta", "babn", {"babn_upward": "heads", "babn_noise": "cut"}),
    ("transformer", "bam", {"bam_distribution": "lognormal"}),
]


@pytest.mark.parametrize(("backbone", "method", "flags"), CASES)
def test_a_training_step_waits_for_nothing(
    backbone: str, method: str, flags: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "autocast", lambda *args, **kwargs: nullcontext())  # not on meta
    model = zoo.build(f"{backbone}_{method}", dropout=0.1, **flags).train().to("meta")
    with Watch() as watch:
        loss, _ = step(model, backbone, lambda x: x.to("meta"))
    assert loss.is_meta
    assert watch.waits == []


def test_waits_are_found() -> None:
    """The test above can fail."""
    padding = torch.ones(2, 3, dtype=torch.bool, device="meta")
    with pytest.MonkeyPatch.context() as patch, Watch() as watch:
        patch.setattr(upward, "reading_is_free", lambda x: True)
        upward.KeyShift(upward.AttentionMask(padding, None))
    assert len(watch.waits) == 1
    assert "upward.py" in watch.waits[0]


@pytest.mark.parametrize(
    ("backbone", "method", "flags"), [("transformer", "babn", {}), *ALIGNMENTS]
)
def test_paths_of_cpu_and_gpu_agree(
    backbone: str, method: str, flags: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the CPU, the loss and its gradient do not depend on whether reading a value is free."""
    if flags.get("alignment") == "gan":
        flags = {**flags, "alignment_gan_penalty": 0.0}  # it takes other tokens as its sample
    if flags.get("alignment") == "ot":
        flags = {**flags, "alignment_ot_iterations": 400}  # one path stops when it has converged
    results = []
    for free in (True, False):
        for module in (tokens, transport, upward):
            monkeypatch.setattr(module, "reading_is_free", lambda x, free=free: free)
        model = zoo.build(f"{backbone}_{method}", **flags).double().train()
        torch.manual_seed(5)
        loss, names = step(model, backbone)
        results.append((loss, names, {n: p.grad for n, p in model.named_parameters()}))
    assert results[0][1] == results[1][1]
    torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(results[0][2], results[1][2], rtol=1e-3, atol=1e-4)


def test_operators_of_babn() -> None:
    """The number of operators of a step, forward and backward, per attention layer."""
    counts = {}
    for method in ("deterministic", "babn"):
        model = zoo.build(f"transformer_{method}", dropout=0.1).train()
        # Dropout keeps the identity method from the fused kernel of attention.
        step(model, "transformer")
        model.zero_grad()
        with Watch() as watch:
            step(model, "transformer")
        counts[method] = watch.operators
    assert counts["babn"] / counts["deterministic"] < MOST_OPERATORS, counts
