"""The self-attentive sentence classifier of Lin et al. 2017: ``--arch self_attentive``.

A BiLSTM encodes a sentence, M heads of additive attention reduce it to a matrix Z (M, 2h), and an
MLP classifies Z; h is the number of LSTM units in each direction. The model is trained with
``--task sentence_prediction --criterion sentence_prediction``. An et al. 2020 (Repulsive attention)
use it in §5.1.
"""

from argparse import Namespace
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.models import (
    ARCH_CONFIG_REGISTRY,
    FairseqEncoderModel,
    register_model,
    register_model_architecture,
)
from fairseq.models.lstm import Embedding
from omegaconf import II
from torch import Tensor, nn

from ..compat import UsageError, require_positive
from .backbone import RefusesMismatch, refuse_empty_data
from .config import complete, set_defaults
from .self_attentive_layers import FactoredInteraction, OutputMLP, SelfAttentiveEncoder
from .word_vectors import load_vectors


@dataclass
class SelfAttentiveConfig(FairseqDataclass):
    """The flags of the model. Defaults that are None depend on the arch (Lin et al. 2017).

    The default width of the word vectors, 300, is that of the GloVe vectors in An et al. 2020.
    """

    encoder_embed_dim: int = field(default=300, metadata={"help": "dimension of the word vectors"})
    encoder_embed_path: Optional[str] = field(
        default=None,
        metadata={
            "help": "text file of word vectors (GloVe, word2vec, fastText) that initialise the "
            "embeddings; words that the file lacks are initialised at random"
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
        metadata={
            "help": "d_a, hidden units of the additive attention (default: 350; in _snli 150)"
        },
    )
    mlp_hidden_size: Optional[int] = field(
        default=None,
        metadata={
            "help": "hidden units of the output MLP (default: 2000; in _yelp 3000, in _snli 4000)"
        },
    )
    dropout: Optional[float] = field(
        default=None,
        metadata={
            "help": "dropout before each of the two layers of the MLP (default: 0.5; in _snli 0)"
        },
    )
    sentence_pairs: Optional[bool] = field(
        default=None,
        metadata={
            "help": "encode the two sentences of an example separately and combine them by the "
            "factored multiplicative interaction (default in _snli); without this flag the two are "
            "read as one text"
        },
    )
    # Copied from the task, which checks the length of sentences. The LSTM itself has no limit.
    max_positions: int = II("task.max_positions")


@register_model("self_attentive", dataclass=SelfAttentiveConfig)
class SelfAttentiveModel(RefusesMismatch, FairseqEncoderModel):
    """BiLSTM with multi-head additive attention for sentences and sentence pairs (Lin et al. 2017).

    The task joins a pair as ``a </s> b </s>``, and ``--separator-token`` adds one symbol in front
    of b. With ``--sentence-pairs`` the model splits the pair after the first ``</s>`` and removes
    the separator, so that each sentence is encoded separately.
    """

    def __init__(
        self, encoder: SelfAttentiveEncoder, cfg: Namespace, separated: bool = False
    ) -> None:
        super().__init__(encoder)
        self.cfg = cfg
        self.separated = separated  # whether the task puts a separator between the two sentences
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
        """Add an output MLP with ``num_classes`` classes. fairseq's tasks call this."""
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
        """Return the logits (B, classes) of the named head.

        Without a name, the method returns the features (B, M, 2h), the input of the heads.
        """
        features, extra = self.extract_features(src_tokens)
        if classification_head_name is not None:
            features = self.classification_heads[classification_head_name](features)
        return features, extra

    def extract_features(self, src_tokens: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the features (B, M, 2h) and a dictionary of Z and the attention weights A.

        ``head_features`` is Z (B, M, 2h), ``attention`` is A (B, M, n) as in
        ``SelfAttentiveEncoder``. For pairs, Z and A have 2B rows: all first sentences, then all
        second sentences.
        """
        not_padding = src_tokens.ne(self.encoder.dictionary.pad())
        if self.interaction is None:
            z, a = self.encoder(src_tokens, not_padding)
            return z, {"head_features": z, "attention": a}
        both = torch.cat(self.sentences(src_tokens, not_padding))
        z, a = self.encoder(src_tokens.repeat(2, 1), both)
        return self.interaction(*z.chunk(2)), {"head_features": z, "attention": a}

    def sentences(self, tokens: Tensor, not_padding: Tensor) -> tuple[Tensor, Tensor]:
        """Return two masks (B, T): the tokens of the first and of the second sentence of a pair."""
        ends = tokens.eq(self.encoder.dictionary.eos())
        after_first = ends.cumsum(dim=1) > ends.long()  # an earlier token is </s>
        first, second = not_padding & ~after_first, not_padding & after_first
        if self.separated:
            second = second & (second.cumsum(dim=1) > 1)
        if (not_padding.any(dim=1) & ~second.any(dim=1)).any():
            raise UsageError(
                "--sentence-pairs: an example has no second sentence; leave the flag out for "
                "single sentences, and leave out --shorten-method for pairs"
            )
        return first, second

    def get_normalized_probs(
        self, net_output: tuple[Tensor, Any], log_probs: bool, sample: Any = None
    ) -> Tensor:
        logits = net_output[0].float()
        return logits.log_softmax(dim=-1) if log_probs else logits.softmax(dim=-1)


@register_model_architecture("self_attentive", "self_attentive_age")
def self_attentive_age(args: Any) -> None:
    """Set the sizes of Lin et al., §4.1.

    The paper trains with SGD: learning rate 0.06, batch size 16, clip norm 0.5, L2 penalty 0.0001.
    """
    set_defaults(
        args, attention_hidden_size=350, mlp_hidden_size=2000, dropout=0.5, sentence_pairs=False
    )


@register_model_architecture("self_attentive", "self_attentive_yelp")
def self_attentive_yelp(args: Any) -> None:
    """Set the sizes of Lin et al., §4.2. The paper trains as for Age, but with batch size 32."""
    set_defaults(args, mlp_hidden_size=3000)
    self_attentive_age(args)


@register_model_architecture("self_attentive", "self_attentive_snli")
def self_attentive_snli(args: Any) -> None:
    """Set the sizes of Lin et al., §4.3.

    The paper trains with AdaGrad: learning rate 0.01, no dropout, weight 0.3 for the diversity
    penalty.
    """
    set_defaults(args, attention_hidden_size=150, mlp_hidden_size=4000)
    set_defaults(args, dropout=0.0, sentence_pairs=True)


# register_model has registered an empty preset under this name, which is replaced here.
ARCH_CONFIG_REGISTRY["self_attentive"] = self_attentive_age
