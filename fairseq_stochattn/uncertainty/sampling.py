"""Draws K samples of a model's output: runs copies of a batch together, each with its own noise.

The model is in eval mode. Only its attention is random; dropout can be switched on too. The whole
model runs for every sample, since the attention of every layer may be random.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import InputError
from ..core.method import AttentionMethod
from ..core.paired_batch import map_rows

# Keyword inputs that are the same for every row of a batch.
SHARED_INPUTS = ("mask", "src_mask", "tgt_mask", "memory_mask", "attn_mask")


@contextmanager
def switched(modules: Sequence[nn.Module], name: str, value: Any) -> Iterator[None]:
    """Within the block, the attribute ``name`` of the modules is ``value``."""
    previous = [getattr(module, name) for module in modules]
    for module in modules:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, old in zip(modules, previous, strict=True):
            setattr(module, name, old)


def _is_dropout(module: nn.Module) -> bool:
    """Whether a module is torch's dropout, an LSTM with dropout, or fairseq's dropout."""
    if isinstance(module, nn.RNNBase):
        return module.dropout > 0
    kind = isinstance(module, nn.modules.dropout._DropoutNd)
    return (kind or hasattr(module, "apply_during_inference")) and module.p > 0


def _random_modules(
    models: Sequence[nn.Module], dropout: bool
) -> tuple[list[AttentionMethod], list[nn.Module]]:
    modules = [module for model in models for module in model.modules()]
    methods = [m for m in modules if isinstance(m, AttentionMethod) and m.samples_at_test]
    dropouts = [m for m in modules if dropout and _is_dropout(m)]
    return methods, dropouts


def is_random(model: nn.Module, dropout: bool = False) -> bool:
    """Whether the model has attention that can be sampled at test time.

    With ``dropout``, a model that has only dropout modules counts too.
    """
    return any(_random_modules([model], dropout))


@contextmanager
def sampled_attention(models: Sequence[nn.Module], dropout: bool = False) -> Iterator[None]:
    """Within the block, attention is sampled; after the block, the mean attention is used again.

    ``models`` is a list, also for one model. With ``dropout``, dropout is active too (MC dropout,
    fairseq's ``--retain-dropout``).
    """
    methods, dropouts = _random_modules(models, dropout)
    if not (methods or dropouts):
        raise InputError("this model's attention is not random: there is nothing to sample")
    fairseqs = [m for m in dropouts if hasattr(m, "apply_during_inference")]
    plain = [m for m in dropouts if not hasattr(m, "apply_during_inference")]
    with (
        switched(methods, "sample_in_eval", True),
        switched(fairseqs, "apply_during_inference", True),
        switched(plain, "training", True),
    ):
        yield


def repeated(sample: dict[str, Any], copies: int) -> dict[str, Any]:
    """The inputs of a fairseq batch with every row ``copies`` times.

    Copies of a row are adjacent, which keeps the batch sorted by length, as fairseq's LSTM needs.
    """
    copy = partial(torch.repeat_interleave, repeats=copies, dim=0)
    inputs = {name: x for name, x in sample.items() if name.startswith("net_input")}
    return map_rows(inputs, copy, size=len(sample["id"]))


def sampled_passes(
    forward: Callable[[dict[str, Any]], Tensor],
    sample: dict[str, Any],
    samples: int,
    max_tokens: int | None = None,
) -> Iterator[Tensor]:
    """Yield the outputs of ``forward`` for ``samples`` copies of a fairseq batch.

    As many copies run together as ``max_tokens`` allows. Each output is a tensor (copies, B, …).
    """
    inputs = [x for name, x in sample.items() if name.startswith("net_input")]
    # Of features (B, R, width), rows count as tokens, and not single numbers.
    tensors = [x for part in inputs for x in part.values() if isinstance(x, Tensor)]
    tokens = max(x.shape[:2].numel() for x in tensors)
    together = samples if max_tokens is None else max(1, min(samples, max_tokens // tokens))
    for start in range(0, samples, together):
        copies = min(together, samples - start)
        found = forward(repeated(sample, copies))
        yield found.unflatten(0, (-1, copies)).transpose(0, 1)


@dataclass(frozen=True)
class Draws:
    """K outputs of a model for the same batch, under K samples of its attention."""

    outputs: Tensor  # (K, B, …): logits where the model classifies

    def __len__(self) -> int:
        return len(self.outputs)

    @property
    def probabilities(self) -> Tensor:
        """softmax of the outputs over their last axis, (K, B, …, classes)."""
        return self.outputs.softmax(dim=-1)

    @property
    def mean(self) -> Tensor:
        """(B, …): the mean of the outputs."""
        return self.outputs.mean(dim=0)

    @property
    def std(self) -> Tensor:
        """(B, …): the standard deviation of the outputs over the samples."""
        return self.outputs.std(dim=0)


@torch.no_grad()
def sample(
    model: nn.Module,
    samples: int,
    *inputs: Any,
    batch_dim: int = 0,
    max_rows: int | None = None,
    dropout: bool = False,
    shared: Collection[str] = SHARED_INPUTS,
    **named_inputs: Any,
) -> Draws:
    """Run the model ``samples`` times on one batch, each time with newly sampled attention.

    ``sample(model, 20, x).outputs`` has the shape (20, B, …).

    Copies of the batch run together, at most ``max_rows`` rows in one pass (default: all). The
    model runs in eval mode and is left as it was. ``batch_dim`` is the axis of the batch in inputs
    and output. Keyword inputs in ``shared`` are the same for every row, such as a causal mask.
    With ``dropout``, dropout is sampled too. A model may return a tensor, a tuple (its first entry
    is used) or an object with ``logits``.
    """
    if samples < 1:
        raise InputError(f"samples must be at least 1, not {samples}")
    rows = _batch_size([*inputs, *named_inputs.values()], batch_dim)
    together = samples if max_rows is None else max(1, min(samples, max_rows // rows))
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    found = []
    try:
        with sampled_attention([model], dropout):
            for start in range(0, samples, together):
                copies = min(together, samples - start)

                def copy(x: Any, copies: int = copies) -> Any:
                    if isinstance(x, Tensor) and x.dim() > batch_dim and x.size(batch_dim) == rows:
                        return x.repeat_interleave(copies, dim=batch_dim)
                    return x

                named = {k: x if k in shared else copy(x) for k, x in named_inputs.items()}
                output = _first_tensor(model(*map(copy, inputs), **named)).movedim(batch_dim, 0)
                found.append(output.unflatten(0, (rows, copies)).transpose(0, 1))
    finally:
        for module, training in modes:
            module.training = training
    return Draws(torch.cat(found))


def _batch_size(inputs: Sequence[Any], batch_dim: int) -> int:
    for value in inputs:
        if isinstance(value, Tensor) and value.dim() > batch_dim:
            return value.size(batch_dim)
    raise InputError("sample needs at least one tensor with a batch axis among the inputs")


def _first_tensor(output: Any) -> Tensor:
    if isinstance(output, Tensor):
        return output
    for name in ("logits", "last_hidden_state"):
        if isinstance(getattr(output, name, None), Tensor):
            return getattr(output, name)
    if isinstance(output, (tuple, list)) and output and isinstance(output[0], Tensor):
        return output[0]
    raise InputError(f"the model returns {type(output).__name__}, which holds no logits to sample")
