"""A structured self-attentive sentence classifier (Lin et al. 2017): ``--arch self_attentive``.

A BiLSTM reads a sentence, M heads of additive attention make it a matrix Z (M, 2h), an MLP
classifies Z. Trained by ``--task sentence_prediction --criterion sentence_prediction``; the model
of An et al. 2020 (Repulsive attention), §5.1.
"""

from argparse import Namespace
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

import torch
from fairseq.data import Dictionary
from fairseq.dataclass import FairseqDataclass
from fairseq.models import (
    ARCH_CONFIG_REGISTRY,
    FairseqEncoder,
    FairseqEncoderModel,
    register_model,
    register_model_architecture,
)
from fairseq.models.lstm import Embedding
from fairseq.modules import FairseqDropout
from omegaconf import II
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from fairseq_stochattn.attention.additive import AdditiveAttention
from fairseq_stochattn.errors import UsageError, require_positive
from fairseq_stochattn.models.backbone import TellsMismatch, refuse_empty_data
from fairseq_stochattn.models.config import complete, set_defaults
from fairseq_stochattn.models.vectors import load_vectors


@dataclass
class SelfAttentiveConfig(FairseqDataclass):
    """Sizes of Lin et al., with the GloVe vectors of An et al.; None where the arch decides."""

    encoder_embed_dim: int = field(default=300, metadata={"help": "dimension of the word vectors"})
    encoder_embed_path: Optional[str] = field(
        default=None,
        metadata={
            "help": "text file of word vectors (GloVe, word2vec, fastText) to start from; words "
            "that it lacks start at random"
        },
    )
    encoder_freeze_embed: bool = field(
        default=False, metadata={"help": "do not train the word vectors"}
    )
    encoder_hidden_size: int = field(
        default=300, metadata={"help": "h, units of the LSTM in each direction"}
    )
    encoder_attention_heads: int = field(default=30, metadata={"help": "M, number of heads"})
    attention_hidden_size: Optional[int] = field(
        default=None,
        metadata={"help": "d_a, hidden units of the additive attention: 350, of _snli 150"},
    )
    mlp_hidden_size: Optional[int] = field(
        default=None,
        metadata={"help": "hidden units of the output MLP: 2000, of _yelp 3000, of _snli 4000"},
    )
    dropout: Optional[float] = field(
        default=None,
        metadata={"help": "dropout before each of the two layers of the MLP: 0.5, of _snli 0"},
    )
    sentence_pairs: Optional[bool] = field(
        default=None,
        metadata={
            "help": "read the two sentences of an example apart and combine them by the factored "
            "multiplicative interaction (_snli does); without it they are read as one text"
        },
    )
    # Set by the task, which checks lengths; the LSTM itself has no limit.
    max_positions: int = II("task.max_positions")


class SelfAttentiveEncoder(FairseqEncoder):
    """Tokens → Z: word vectors, BiLSTM, additive attention."""

    def __init__(self, dictionary: Dictionary, embed_tokens: nn.Embedding, cfg: Namespace) -> None:
        super().__init__(dictionary)
        self.embed_tokens = embed_tokens
        self.lstm = nn.LSTM(
            cfg.encoder_embed_dim, cfg.encoder_hidden_size, batch_first=True, bidirectional=True
        )
        self.attention = AdditiveAttention(
            2 * cfg.encoder_hidden_size, cfg.attention_hidden_size, cfg.encoder_attention_heads
        )

    def forward(self, tokens: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """tokens (B, T), of which the ``chosen`` (B, T) are read → Z (B, M, 2h), A (B, M, n).

        The n columns of A are the chosen tokens in their order, then 0.
        """
        lengths = chosen.sum(dim=1)
        order = chosen.long().argsort(dim=1, descending=True, stable=True)
        width = max(1, int(lengths.max()))
        pad = self.dictionary.pad()
        tokens = tokens.masked_fill(~chosen, pad).gather(1, order)[:, :width]  # (B, n)
        # A sentence of nothing but padding is read as one padding, and attended to not at all.
        packed = pack_padded_sequence(
            self.embed_tokens(tokens),
            lengths.clamp(min=1).cpu(),
            batch_first=True,
            enforce_sorted=False,
        )
        h, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)  # (B, n, 2h)
        return self.attention(h, tokens.eq(pad))


class FactoredInteraction(nn.Module):
    """F = (Z_1 W_1) ⊙ (Z_2 W_2), every head with matrices of its own (Lin et al., App. B)."""

    def __init__(self, num_heads: int, dim: int) -> None:
        super().__init__()
        self.factors = nn.Parameter(torch.empty(2, num_heads, dim, dim))
        nn.init.uniform_(self.factors, -(dim**-0.5), dim**-0.5)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """(B, M, d), (B, M, d) → (B, M, d): row i depends on head i alone."""
        left, right = (
            torch.einsum("bmd,mde->bme", z, w)
            for z, w in zip((first, second), self.factors, strict=True)
        )
        return left * right


class OutputMLP(nn.Module):
    """The 2-layer ReLU classifier; it reads head i by columns i·2h to (i + 1)·2h of ``dense``."""

    def __init__(self, dim: int, hidden: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.dropout = FairseqDropout(dropout, module_name=type(self).__name__)
        self.dense = nn.Linear(dim, hidden)
        self.out_proj = nn.Linear(hidden, classes)

    def forward(self, features: Tensor) -> Tensor:
        """(B, M, 2h) → (B, classes)."""
        x = self.dense(self.dropout(features.flatten(1)))
        return self.out_proj(self.dropout(x.relu()))


@register_model("self_attentive", dataclass=SelfAttentiveConfig)
class SelfAttentiveModel(TellsMismatch, FairseqEncoderModel):
    """BiLSTM and multi-head additive attention for sentences and pairs of them (Lin et al. 2017).

    The task joins a pair as ``a </s> b </s>``, with ``--separator-token`` one symbol more before b.
    ``--sentence-pairs`` takes it apart again behind the first ``</s>`` and drops the separator, so
    each sentence is encoded as if it were alone.
    """

    def __init__(
        self, encoder: SelfAttentiveEncoder, cfg: Namespace, separated: bool = False
    ) -> None:
        super().__init__(encoder)
        self.cfg = cfg
        self.separated = separated  # whether a symbol stands between the sentences of a pair
        self.interaction = None
        if cfg.sentence_pairs:
            self.interaction = FactoredInteraction(
                cfg.encoder_attention_heads, 2 * cfg.encoder_hidden_size
            )
        self.classification_heads = nn.ModuleDict()

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "SelfAttentiveModel":
        arch = getattr(cfg, "_name", None) or getattr(cfg, "arch", None) or "self_attentive"
        args = complete(cfg, SelfAttentiveConfig, ARCH_CONFIG_REGISTRY[arch], typed=True)
        require_positive(
            args,
            *("encoder_embed_dim", "encoder_hidden_size", "encoder_attention_heads"),
            *("attention_hidden_size", "mlp_hidden_size"),
        )
        refuse_empty_data(task)
        dictionary = task.source_dictionary
        embed_tokens = Embedding(len(dictionary), args.encoder_embed_dim, dictionary.pad())
        if args.encoder_embed_path:
            load_vectors(Path(args.encoder_embed_path), dictionary, embed_tokens)
        embed_tokens.weight.requires_grad = not args.encoder_freeze_embed
        encoder = SelfAttentiveEncoder(dictionary, embed_tokens, args)
        return cls(encoder, args, getattr(task.cfg, "separator_token", None) is not None)

    def register_classification_head(self, name: str, num_classes: int, **unused: Any) -> None:
        """Called by the task."""
        cfg = self.cfg
        dim = cfg.encoder_attention_heads * 2 * cfg.encoder_hidden_size
        self.classification_heads[name] = OutputMLP(
            dim, cfg.mlp_hidden_size, num_classes, cfg.dropout
        )

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        features_only: bool = False,
        classification_head_name: str | None = None,
        **unused: Any,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Classes (B, C), or without a head's name what it would read, (B, M, 2h)."""
        features, extra = self.extract_features(src_tokens)
        if classification_head_name is not None:
            features = self.classification_heads[classification_head_name](features)
        return features, extra

    def extract_features(self, src_tokens: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """(B, M, 2h), and of every sentence read its ``head_features`` Z and ``attention`` A.

        The sentences of pairs are 2B rows: all first ones, then all second ones.
        """
        real = src_tokens.ne(self.encoder.dictionary.pad())
        if self.interaction is None:
            z, a = self.encoder(src_tokens, real)
            return z, {"head_features": z, "attention": a}
        z, a = self.encoder(src_tokens.repeat(2, 1), torch.cat(self.sentences(src_tokens, real)))
        return self.interaction(*z.chunk(2)), {"head_features": z, "attention": a}

    def sentences(self, tokens: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """Which tokens are of the first, which of the second sentence of a pair, (B, T) each."""
        ends = tokens.eq(self.encoder.dictionary.eos())
        behind = ends.cumsum(dim=1) > ends.long()  # some sentence has ended before this token
        first, second = real & ~behind, real & behind
        if self.separated:
            second = second & (second.cumsum(dim=1) > 1)
        if (real.any(dim=1) & ~second.any(dim=1)).any():
            raise UsageError(
                "--sentence-pairs: an example has no second sentence; leave the flag out for "
                "single sentences, and --shorten-method for pairs"
            )
        return first, second

    def get_normalized_probs(
        self, net_output: tuple[Tensor, Any], log_probs: bool, sample: Any = None
    ) -> Tensor:
        logits = net_output[0].float()
        return logits.log_softmax(dim=-1) if log_probs else logits.softmax(dim=-1)


@register_model_architecture("self_attentive", "self_attentive_age")
def self_attentive_age(args: Any) -> None:
    """Lin et al., §4.1: SGD with lr 0.06, 16 sentences a batch, clip norm 0.5, L2 0.0001."""
    set_defaults(
        args, attention_hidden_size=350, mlp_hidden_size=2000, dropout=0.5, sentence_pairs=False
    )


@register_model_architecture("self_attentive", "self_attentive_yelp")
def self_attentive_yelp(args: Any) -> None:
    """Lin et al., §4.2: as Age, 32 sentences a batch."""
    set_defaults(args, mlp_hidden_size=3000)
    self_attentive_age(args)


@register_model_architecture("self_attentive", "self_attentive_snli")
def self_attentive_snli(args: Any) -> None:
    """Lin et al., §4.3: AdaGrad with lr 0.01, no dropout; the penalty's weight is 0.3."""
    set_defaults(args, attention_hidden_size=150, mlp_hidden_size=4000)
    set_defaults(args, dropout=0.0, sentence_pairs=True)


# register_model has put an empty preset there.
ARCH_CONFIG_REGISTRY["self_attentive"] = self_attentive_age
