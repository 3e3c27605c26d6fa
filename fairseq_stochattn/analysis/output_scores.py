"""Scores generated outputs: their log-probabilities under K samples of the attention."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from fairseq.data import data_utils
from torch import Tensor, nn

from ..uncertainty.sampling import sampled_attention, switched


@dataclass(frozen=True)
class Spread:
    """The log-probabilities (base e) of one output of N tokens under K samples."""

    tokens: Tensor  # (K, N): log-probability of each token under each sample

    @property
    def sentences(self) -> Tensor:
        """The log-probability of the whole output under each sample, (K,)."""
        return self.tokens.sum(dim=1)

    @property
    def mean(self) -> float:
        return self.sentences.mean().item()

    @property
    def std(self) -> float:
        """The standard deviation of ``sentences``, or 0 if there is only one sample."""
        return self.sentences.std().item() if len(self.tokens) > 1 else 0.0

    @property
    def token_std(self) -> Tensor:
        """The standard deviation over the samples for every token, (N,)."""
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
    """Return the scores of all outputs, given as pairs (row of the batch, tokens including eos).

    Each sample needs one copy of the batch. The copies run in as few passes as ``max_tokens``
    allows. An ensemble is scored by the mean probability of its models, which are sampled
    independently.
    """
    rows = torch.tensor([row for row, _ in outputs], device=outputs[0][1].device)
    target = data_utils.collate_tokens([tokens for _, tokens in outputs], pad)  # (N, T)
    previous = data_utils.collate_tokens(
        [tokens for _, tokens in outputs], pad, eos, move_eos_to_beginning=True
    )
    source = net_input.get("src_tokens")
    width = target.size(1) + (0 if source is None else source.size(1))
    together = max(1, min(samples, max_tokens // (len(outputs) * width)))
    chunks = []
    with sampled_attention(models), one_query_row_per_source(models):
        for start in range(0, samples, together):
            copies = min(together, samples - start)
            scores = [
                _log_probs(model, net_input, rows, previous, target, copies) for model in models
            ]
            mean = torch.stack(scores).logsumexp(dim=0) - torch.tensor(float(len(models))).log()
            chunks.append(mean.view(copies, len(outputs), -1))  # (copies, N, T)
    tokens = torch.cat(chunks)
    return [Spread(tokens[:, i, : len(x)].cpu()) for i, (_, x) in enumerate(outputs)]


def one_query_row_per_source(models: Sequence[nn.Module]) -> AbstractContextManager[None]:
    """Within the block, set ``beam_size`` to 1 in all attention modules.

    It is the number of hypotheses that share the keys of one source, and would otherwise still have
    the value of the last beam search.
    """
    modules = [m for model in models for m in model.modules() if hasattr(m, "beam_size")]
    return switched(modules, "beam_size", 1)


def _log_probs(
    model: nn.Module,
    net_input: dict[str, Any],
    rows: Tensor,
    previous: Tensor,
    target: Tensor,
    copies: int,
) -> Tensor:
    """The log-probabilities of the target tokens, (copies · N, T), in fp32."""
    previous, target = previous.repeat(copies, 1), target.repeat(copies, 1)
    if not (hasattr(model, "encoder") and "src_lengths" in net_input):
        return _gather_target(model, model(previous), target)
    rows = rows.repeat(copies)
    # fairseq's LSTM packs its sources, which must be sorted by length, longest first.
    order = net_input["src_lengths"][rows].argsort(descending=True, stable=True)
    inputs = {
        name: value.index_select(0, rows[order]) if isinstance(value, Tensor) else value
        for name, value in net_input.items()
        if name != "prev_output_tokens"
    }
    output = model(**inputs, prev_output_tokens=previous[order])
    scores = _gather_target(model, output, target[order])
    return torch.empty_like(scores).index_copy_(0, order, scores)


def _gather_target(model: nn.Module, output: Any, target: Tensor) -> Tensor:
    """The log-probabilities of the target tokens (N, T) in the output of a model."""
    scores = model.get_normalized_probs(output, log_probs=True, sample=None).float()
    return scores.gather(-1, target.unsqueeze(-1)).squeeze(-1)
