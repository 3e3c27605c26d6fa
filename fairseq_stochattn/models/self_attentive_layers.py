"""The layers of the self-attentive classifier (Lin et al. 2017): encoder, interaction, output MLP.

Shapes: B sentences, T tokens, M heads, h units of the LSTM in each direction.
"""

from __future__ import annotations

from argparse import Namespace

import torch
from fairseq.data import Dictionary
from fairseq.models import FairseqEncoder
from fairseq.modules import FairseqDropout
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from ..core.additive_attention import AdditiveAttention


class SelfAttentiveEncoder(FairseqEncoder):
    """Encodes each sentence as a matrix Z by word vectors, a BiLSTM and additive attention."""

    def __init__(self, dictionary: Dictionary, embed_tokens: nn.Embedding, cfg: Namespace) -> None:
        super().__init__(dictionary)
        self.embed_tokens = embed_tokens
        self.lstm = nn.LSTM(
            cfg.encoder_embed_dim, cfg.encoder_hidden_size, batch_first=True, bidirectional=True
        )
        self.attention = AdditiveAttention(
            2 * cfg.encoder_hidden_size, cfg.attention_hidden_size, cfg.encoder_attention_heads
        )

    def forward(self, tokens: Tensor, selected: Tensor) -> tuple[Tensor, Tensor]:
        """Return Z (B, M, 2h) and the attention weights A (B, M, n) of the selected tokens.

        Only those ``tokens`` (B, T) are read where ``selected`` (B, T) is True. n is the largest
        number of selected tokens in a sentence. Columns of A are the selected tokens in order;
        shorter rows end with zeros.
        """
        lengths = selected.sum(dim=1)
        order = selected.long().argsort(dim=1, descending=True, stable=True)
        width = max(1, int(lengths.max()))
        pad = self.dictionary.pad()
        tokens = tokens.masked_fill(~selected, pad).gather(1, order)[:, :width]  # (B, n)
        # Packing needs at least one token, so an empty sentence gets one padding token, whose
        # attention weight is 0.
        packed = pack_padded_sequence(
            self.embed_tokens(tokens),
            lengths.clamp(min=1).cpu(),
            batch_first=True,
            enforce_sorted=False,
        )
        h, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)  # (B, n, 2h)
        return self.attention(h, tokens.eq(pad))


class FactoredInteraction(nn.Module):
    """F = (Z_1 W_1) ⊙ (Z_2 W_2) with separate matrices for every head (Lin et al., App. B)."""

    def __init__(self, num_heads: int, dim: int) -> None:
        super().__init__()
        self.factors = nn.Parameter(torch.empty(2, num_heads, dim, dim))
        nn.init.uniform_(self.factors, -(dim**-0.5), dim**-0.5)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """Combine Z_1 and Z_2, (B, M, d) each, to F (B, M, d); row i depends only on head i."""
        left, right = (
            torch.einsum("bmd,mde->bme", z, w)
            for z, w in zip((first, second), self.factors, strict=True)
        )
        return left * right


class OutputMLP(nn.Module):
    """Classifies Z by an MLP with one hidden ReLU layer.

    Columns i·2h to (i + 1)·2h of the weight of ``dense`` multiply the features of head i.
    """

    def __init__(self, dim: int, hidden: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.dropout = FairseqDropout(dropout, module_name=type(self).__name__)
        self.dense = nn.Linear(dim, hidden)
        self.out_proj = nn.Linear(hidden, classes)

    def forward(self, features: Tensor) -> Tensor:
        """Convert features (B, M, 2h) to logits (B, classes)."""
        x = self.dense(self.dropout(features.flatten(1)))
        return self.out_proj(self.dropout(x.relu()))
