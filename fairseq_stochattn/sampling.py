"""K samples of the attention in batched passes: copies of a batch, each with noise of its own.

The model is in eval mode and nothing but the attention is random (``--retain-dropout`` adds what it
adds). Encoder and decoder are run anew for every sample, since both may attend at random.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from fairseq.data import data_utils
from fairseq.modules import FairseqDropout
from torch import Tensor, nn

from fairseq_stochattn.attention.method import AttentionMethod
from fairseq_stochattn.errors import UsageError


@contextmanager
def _switched(modules: Sequence[nn.Module], name: str, value: Any) -> Iterator[None]:
    """Within, this attribute of the modules has another value."""
    before = [getattr(module, name) for module in modules]
    for module in modules:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, old in zip(modules, before, strict=True):
            setattr(module, name, old)


def _random_modules(
    models: Sequence[nn.Module], dropout: bool
) -> tuple[list[AttentionMethod], list[FairseqDropout]]:
    modules = [module for model in models for module in model.modules()]
    methods = [m for m in modules if isinstance(m, AttentionMethod) and m.samples_at_test]
    dropouts = [m for m in modules if dropout and isinstance(m, FairseqDropout) and m.p > 0]
    return methods, dropouts


def is_random(model: nn.Module, dropout: bool = False) -> bool:
    """Whether the model has a distribution at test time: over its attention, or by its dropout."""
    return any(_random_modules([model], dropout))


@contextmanager
def sampled_attention(models: Sequence[nn.Module], dropout: bool = False) -> Iterator[None]:
    """Within, attention is sampled; outside it is the mean again.

    With ``dropout``, what fairseq's --retain-dropout would keep is on too (MC dropout).
    """
    methods, dropouts = _random_modules(models, dropout)
    if not (methods or dropouts):
        raise UsageError(
            "--samples: this model's attention is not random, there is nothing to sample"
        )
    with (
        _switched(methods, "sample_in_eval", True),
        _switched(dropouts, "apply_during_inference", True),
    ):
        yield


def repeated(sample: dict[str, Any], copies: int) -> dict[str, Any]:
    """The inputs of a batch with every row ``copies`` times, one after the other.

    So the order by length, which fairseq's LSTM needs, stays.
    """
    size = len(sample["id"])

    def rows(inputs: dict[str, Any]) -> dict[str, Any]:
        return {
            name: value.repeat_interleave(copies, dim=0)
            if isinstance(value, Tensor) and value.dim() and len(value) == size
            else value
            for name, value in inputs.items()
        }

    return {name: rows(x) for name, x in sample.items() if name.startswith("net_input")}


def sampled_passes(
    forward: Callable[[dict[str, Any]], Tensor],
    sample: dict[str, Any],
    samples: int,
    max_tokens: int | None = None,
) -> Iterator[Tensor]:
    """What ``forward`` says of a batch (B, …), (copies, B, …) at a time, ``samples`` in all.

    As many copies are run together as ``max_tokens`` allows.
    """
    inputs = [x for name, x in sample.items() if name.startswith("net_input")]
    tokens = max(x.numel() for part in inputs for x in part.values() if isinstance(x, Tensor))
    together = samples if max_tokens is None else max(1, min(samples, max_tokens // tokens))
    for start in range(0, samples, together):
        copies = min(together, samples - start)
        found = forward(repeated(sample, copies))
        yield found.unflatten(0, (-1, copies)).transpose(0, 1)


@dataclass(frozen=True)
class Spread:
    """Log-probabilities (base e) of one output under K samples."""

    tokens: Tensor  # (K, N): of every token

    @property
    def sentences(self) -> Tensor:
        """(K,): of the whole output."""
        return self.tokens.sum(dim=1)

    @property
    def mean(self) -> float:
        return self.sentences.mean().item()

    @property
    def std(self) -> float:
        """Sample standard deviation; of a single sample 0."""
        return self.sentences.std().item() if len(self.tokens) > 1 else 0.0

    @property
    def token_std(self) -> Tensor:
        return self.tokens.std(dim=0) if len(self.tokens) > 1 else torch.zeros_like(self.tokens[0])


@torch.no_grad()
def score_outputs(
    models: Sequence[nn.Module],
    net_input: dict[str, Any],
    outputs: Sequence[tuple[int, Tensor]],
    samples: int,
    pad: int,
    eos: int,
    max_tokens: int,
) -> list[Spread]:
    """Score ``outputs``, pairs of (row of the batch, tokens up to the end of the sentence).

    Copies of the batch, one a sample, are run together as far as ``max_tokens`` allows. An ensemble
    is scored by the mean of its probabilities, each model under samples of its own.
    """
    rows = torch.tensor([row for row, _ in outputs], device=outputs[0][1].device)
    target = data_utils.collate_tokens([tokens for _, tokens in outputs], pad)  # (N, T)
    previous = data_utils.collate_tokens(
        [tokens for _, tokens in outputs], pad, eos, move_eos_to_beginning=True
    )
    source = net_input.get("src_tokens")
    width = target.size(1) + (0 if source is None else source.size(1))
    together = max(1, min(samples, max_tokens // (len(outputs) * width)))
    found = []
    with sampled_attention(models), one_query_row_a_source(models):
        for start in range(0, samples, together):
            copies = min(together, samples - start)
            scores = [
                _log_probs(model, net_input, rows, previous, target, copies) for model in models
            ]
            mean = torch.stack(scores).logsumexp(dim=0) - torch.tensor(float(len(models))).log()
            found.append(mean.view(copies, len(outputs), -1))  # (copies, N, T)
    tokens = torch.cat(found)
    return [Spread(tokens[:, i, : len(x)].cpu()) for i, (_, x) in enumerate(outputs)]


def one_query_row_a_source(models: Sequence[nn.Module]) -> AbstractContextManager[None]:
    """Beam search tells attention how many hypotheses share a source; here each has its own."""
    modules = [m for model in models for m in model.modules() if hasattr(m, "beam_size")]
    return _switched(modules, "beam_size", 1)


def _log_probs(
    model: nn.Module,
    net_input: dict[str, Any],
    rows: Tensor,
    previous: Tensor,
    target: Tensor,
    copies: int,
) -> Tensor:
    """(copies · N, T): log-probabilities of the target tokens, fp32."""
    previous, wanted = previous.repeat(copies, 1), target.repeat(copies, 1)
    if not (hasattr(model, "encoder") and "src_lengths" in net_input):
        return _gathered(model, model(previous), wanted)
    rows = rows.repeat(copies)
    # fairseq's LSTM packs its sources, which must then come longest first.
    order = net_input["src_lengths"][rows].argsort(descending=True, stable=True)
    given = {
        name: value.index_select(0, rows[order]) if isinstance(value, Tensor) else value
        for name, value in net_input.items()
        if name != "prev_output_tokens"
    }
    scores = _gathered(model, model(**given, prev_output_tokens=previous[order]), wanted[order])
    return torch.empty_like(scores).index_copy_(0, order, scores)


def _gathered(model: nn.Module, out: Any, wanted: Tensor) -> Tensor:
    scores = model.get_normalized_probs(out, log_probs=True, sample=None).float()
    return scores.gather(-1, wanted.unsqueeze(-1)).squeeze(-1)
