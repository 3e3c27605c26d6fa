"""Generates text with the mean attention and measures how much each token's probability varies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...core.errors import InputError
from ...core.meters import eval_mode
from ...uncertainty.sampling import sampled_attention


@dataclass(frozen=True)
class Generation:
    """Generated sequences and the probabilities of their tokens under K samples of attention."""

    sequences: Tensor  # (B, L), as ``model.generate`` returns them
    tokens: Tensor  # (B, N): the generated tokens, without prompt and start token
    real: Tensor  # (B, N): False after the end of a sequence
    probabilities: Tensor  # (K, B, N): the probability of each token, given those before it

    @property
    def mean(self) -> Tensor:
        """(B, N): the mean probability of each token; 0 after the end of a sequence."""
        return self.probabilities.mean(dim=0) * self.real

    @property
    def spread(self) -> Tensor:
        """(B, N): the standard deviation of each probability; 0 after the end of a sequence."""
        return self.probabilities.std(dim=0, correction=0) * self.real


@torch.no_grad()
def generate(model: nn.Module, samples: int, dropout: bool = False, **inputs: Any) -> Generation:
    """Generate with the mean attention, then score each token under ``samples`` samples.

    ``inputs`` are those of ``model.generate``: the batch (``input_ids``, ``attention_mask``) and
    options such as ``num_beams``. With ``dropout``, dropout is sampled too. Works for decoders and
    for encoder-decoder models. To generate with sampled attention itself, call ``model.generate``
    within ``sa.sampled_attention([model])``.
    """
    if samples < 1:
        raise InputError(f"samples must be at least 1, not {samples}")
    if "input_ids" not in inputs:
        raise InputError("generate needs input_ids")
    with eval_mode(model):
        sequences = model.generate(**inputs)
        if not isinstance(sequences, Tensor):
            sequences = sequences.sequences
        batch, first = _scoring_batch(model, inputs, sequences)
        tokens = sequences[:, first:]  # (B, N)
        with sampled_attention([model], dropout):
            found = [_probabilities(model, batch, tokens) for _ in range(samples)]
    return Generation(sequences, tokens, _real(model, tokens), torch.stack(found))


def _scoring_batch(
    model: nn.Module, inputs: dict[str, Any], sequences: Tensor
) -> tuple[dict[str, Tensor], int]:
    """The batch that scores the sequences in one forward pass, and the first generated token."""
    prompt, mask = inputs["input_ids"], inputs.get("attention_mask")
    mask = torch.ones_like(prompt) if mask is None else mask
    copies = sequences.size(0) // prompt.size(0)  # of num_return_sequences
    prompt, mask = (x.repeat_interleave(copies, dim=0) for x in (prompt, mask))
    if model.config.is_encoder_decoder:
        batch = {"input_ids": prompt, "attention_mask": mask}
        return {**batch, "decoder_input_ids": sequences[:, :-1]}, 1
    new = sequences.size(1) - prompt.size(1)
    mask = torch.cat([mask, mask.new_ones(len(mask), new)], dim=1)[:, :-1]
    # As in generation, positions do not count padding.
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
    batch = {"input_ids": sequences[:, :-1], "attention_mask": mask, "position_ids": positions}
    return batch, prompt.size(1)


def _probabilities(model: nn.Module, batch: dict[str, Tensor], tokens: Tensor) -> Tensor:
    """(B, N): the probability of each token, given those before it."""
    logits = model(**batch, use_cache=False).logits[:, -tokens.size(1) :]
    return logits.float().softmax(dim=-1).gather(2, tokens.unsqueeze(2)).squeeze(2)


def _real(model: nn.Module, tokens: Tensor) -> Tensor:
    """(B, N): True up to and including the first end-of-sequence token."""
    ends = model.generation_config.eos_token_id
    if ends is None:
        return torch.ones_like(tokens, dtype=torch.bool)
    ends = torch.as_tensor(ends, device=tokens.device).reshape(-1)
    ended = torch.isin(tokens, ends).long()
    return ended.cumsum(dim=1) - ended == 0
