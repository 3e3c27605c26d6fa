"""Masked language models and sentence encoders for attacks, from any library that runs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .text import WORD

SPACES = ("Ġ", "▁")  # how byte-level BPE and sentencepiece write the space in front of a word


@dataclass(frozen=True)
class TextModel:
    """A pretrained encoder with its tokenizer."""

    encode: Callable[[str], list[int]]  # token ids without special tokens
    first: int  # the special tokens
    last: int
    mask: int
    pad: int
    longest: int  # number of tokens that the model takes
    symbols: Sequence[str]  # by token id
    # (tokens (B, T), non-padding (B, T), place of the mask) → logits (B, V) at that place.
    predict: Callable[[Tensor, Tensor, int], Tensor] | None = None
    # (tokens (B, T), non-padding (B, T)) → hidden states (B, T, d).
    hidden: Callable[[Tensor, Tensor], Tensor] | None = None


class FillMask:
    """Proposes the most probable words between two pieces of text, as BAE does."""

    def __init__(self, model: TextModel) -> None:
        self.model = model
        special = {model.first, model.last, model.mask, model.pad}
        pieces = [None if i in special else x for i, x in enumerate(model.symbols)]
        self.words = whole_words(pieces)
        self.allowed = torch.tensor([word is not None for word in self.words])

    @torch.no_grad()
    def __call__(self, before: str, after: str, count: int) -> list[str]:
        """At most ``count`` words, the most probable first. Parts of words are not proposed."""
        model = self.model
        left, right = model.encode(before), model.encode(after)
        room = model.longest - 3
        # If the text is too long, the mask keeps as much context on both sides as there is.
        keep_left = min(len(left), max(room // 2, room - len(right)))
        left, right = left[len(left) - keep_left :], right[: room - keep_left]
        tokens = torch.tensor([[model.first, *left, model.mask, *right, model.last]])
        (logits,) = model.predict(tokens, torch.ones_like(tokens, dtype=torch.bool), 1 + len(left))
        logits = logits[: len(self.words)].float().cpu()
        best = logits.masked_fill(~self.allowed, -torch.inf).topk(min(count, len(logits)))
        found = zip(best.values.tolist(), best.indices.tolist(), strict=True)
        return [self.words[i] for value, i in found if value > -torch.inf]


def whole_words(pieces: Sequence[str | None]) -> list[str | None]:
    """The word that each piece of a tokenizer stands for; None for parts of words and for signs.

    WordPiece marks pieces inside words by ##; other tokenizers mark the beginning of words.
    """
    wordpiece = any(piece is not None and piece.startswith("##") for piece in pieces)
    words: list[str | None] = []
    for piece in pieces:
        begins = piece is not None and (wordpiece or piece.startswith(SPACES))
        word = piece if wordpiece else piece[1:] if begins else None
        words.append(word if begins and WORD.fullmatch(word) else None)
    return words


class MeanPooling:
    """Maps texts to the means of their hidden states, scaled to length 1."""

    def __init__(self, model: TextModel, batch_size: int = 64) -> None:
        self.model, self.batch_size = model, batch_size

    @torch.no_grad()
    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Vectors (n, d) of n texts."""
        model = self.model
        rows = [
            torch.tensor([model.first, *model.encode(text)[: model.longest - 2], model.last])
            for text in texts
        ]
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        vectors: list[Tensor | None] = [None] * len(rows)
        for start in range(0, len(order), self.batch_size):
            part = order[start : start + self.batch_size]
            tokens = nn.utils.rnn.pad_sequence(
                [rows[i] for i in part], batch_first=True, padding_value=model.pad
            )
            lengths = torch.tensor([len(rows[i]) for i in part])
            valid = torch.arange(tokens.size(1)) < lengths[:, None]  # (B, T)
            hidden = model.hidden(tokens, valid).float().cpu()  # (B, T, d)
            means = (hidden * valid[:, :, None]).sum(dim=1) / lengths[:, None]
            for i, vector in zip(part, nn.functional.normalize(means, dim=1), strict=True):
                vectors[i] = vector
        return torch.stack(vectors)
