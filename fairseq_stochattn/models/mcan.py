"""MCAN, the co-attention network for visual question answering: ``--arch mcan``, ``mcan_<method>``.

A question attends to itself (site encoder), the regions of an image attend to each other (site
decoder) and to the question (site cross). Both sequences are reduced to one vector by attention
pooling; their normalised sum gives a logit per answer (Yu et al. 2019). The BABN paper (§5.3) and
the alignment paper (§4.3) use four layers. Used with ``--task vqa --criterion vqa``.
"""

from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.models import (
    ARCH_CONFIG_REGISTRY,
    BaseFairseqModel,
    register_model,
    register_model_architecture,
)
from fairseq.models.lstm import Embedding
from torch import Tensor, nn

from ..compat import UsageError, require_positive
from .backbone import Backbone, RefusesMismatch, refuse_empty_data, register_backbone
from .config import complete, set_defaults
from .mcan_layers import AttentionPooling, ImageDecoder, QuestionEncoder, layer_config
from .word_vectors import load_vectors


@dataclass
class MCANConfig(FairseqDataclass):
    """The flags of the model. Defaults that are None depend on the arch."""

    encoder_embed_dim: Optional[int] = field(
        default=None,
        metadata={"help": "dimension of the word vectors (default: 300; in _tiny 64)"},
    )
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
    mcan_layers: Optional[int] = field(
        default=None,
        metadata={
            "help": "number of layers of question and image each (default: 6; in _papers 4, in "
            "_tiny 2)"
        },
    )
    mcan_dim: Optional[int] = field(
        default=None, metadata={"help": "width of all layers (default: 512; in _tiny 64)"}
    )
    mcan_heads: Optional[int] = field(
        default=None, metadata={"help": "heads per attention (default: 8; in _tiny 4)"}
    )
    mcan_ffn_dim: Optional[int] = field(
        default=None,
        metadata={"help": "width of the feed-forward networks (default: 2048; in _tiny 128)"},
    )
    mcan_pooling_dim: Optional[int] = field(
        default=None,
        metadata={"help": "hidden units of the attention pooling (default: 512; in _tiny 64)"},
    )
    mcan_output_dim: Optional[int] = field(
        default=None,
        metadata={
            "help": "width of the vector that the answers are predicted from (default: 1024; in "
            "_tiny 128)"
        },
    )
    dropout: float = field(default=0.1, metadata={"help": "dropout after each sublayer"})
    attention_dropout: float = field(
        default=0.1, metadata={"help": "dropout of the attention weights"}
    )
    activation_dropout: float = field(
        default=0.1, metadata={"help": "dropout inside the feed-forward networks"}
    )


@register_model("mcan", dataclass=MCANConfig)
class MCANModel(RefusesMismatch, BaseFairseqModel):
    """Predicts the answer to a question about an image (Yu et al. 2019)."""

    reads_images = True

    def __init__(
        self, encoder: QuestionEncoder, decoder: ImageDecoder, answers: int, args: Namespace
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        sizes = args.mcan_dim, args.mcan_pooling_dim, args.mcan_output_dim, args.dropout
        self.question_pooling = AttentionPooling(*sizes)
        self.image_pooling = AttentionPooling(*sizes)
        self.norm = nn.LayerNorm(args.mcan_output_dim)
        self.out_proj = nn.Linear(args.mcan_output_dim, answers)

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "MCANModel":
        arch = getattr(cfg, "_name", None) or getattr(cfg, "arch", None) or "mcan"
        args = complete(cfg, MCANConfig, ARCH_CONFIG_REGISTRY[arch], typed=True)
        require_positive(args, "encoder_embed_dim", *(x for x in SIZES["mcan"] if "mcan" in x))
        if args.mcan_dim % args.mcan_heads:
            raise UsageError(
                f"--mcan-dim {args.mcan_dim} is not a multiple of --mcan-heads {args.mcan_heads}"
            )
        if not hasattr(task, "feature_width"):
            raise UsageError("--arch mcan needs images: use --task vqa")
        refuse_empty_data(task)
        dictionary = task.source_dictionary
        embed_tokens = Embedding(len(dictionary), args.encoder_embed_dim, dictionary.pad())
        if args.encoder_embed_path:
            load_vectors(Path(args.encoder_embed_path), dictionary, embed_tokens)
        embed_tokens.weight.requires_grad = not args.encoder_freeze_embed
        config = layer_config(args)
        encoder = QuestionEncoder(dictionary, embed_tokens, config)
        return cls(encoder, ImageDecoder(task.feature_width, config), len(task.answers), args)

    def forward(
        self, src_tokens: Tensor, regions: Tensor, num_regions: Tensor, **unused: Any
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the logits (B, answers) and a dictionary of the pooling weights.

        ``src_tokens`` (B, T) are questions, padded on the right; ``regions`` (B, R, width) are
        features, of which the first ``num_regions`` (B,) belong to the image. The dictionary has
        ``question_weights`` (B, T) and ``image_weights`` (B, R).
        """
        number = torch.arange(regions.size(1), device=regions.device)
        padding = number >= num_regions.unsqueeze(1)  # (B, R)
        words, word_padding = self.encoder(src_tokens)
        x = self.decoder(regions, padding, words, word_padding)
        question, question_weights = self.question_pooling(words, word_padding)
        image, image_weights = self.image_pooling(x, padding)
        logits = self.out_proj(self.norm(question + image))
        return logits, {"question_weights": question_weights, "image_weights": image_weights}

    def max_positions(self) -> None:
        """There is no limit: neither words nor regions have positions."""
        return None

    def get_normalized_probs(
        self, net_output: tuple[Tensor, Any], log_probs: bool, sample: Any = None
    ) -> Tensor:
        """The probabilities (B, answers): the sigmoids of the logits, divided by their sum."""
        # The criterion trains one sigmoid per answer, so a softmax of the logits themselves would
        # be more confident than the model.
        scores = nn.functional.logsigmoid(net_output[0].float())
        return scores.log_softmax(dim=-1) if log_probs else scores.softmax(dim=-1)


# MCAN-small of Yu et al., whose code calls it "small"; "papers" has the four layers of the papers
# of BABN and of alignment attention; "tiny" trains on a CPU.
_SMALL = {
    "encoder_embed_dim": 300,
    "mcan_layers": 6,
    "mcan_dim": 512,
    "mcan_heads": 8,
    "mcan_ffn_dim": 2048,
    "mcan_pooling_dim": 512,
    "mcan_output_dim": 1024,
}
_TINY = {
    "encoder_embed_dim": 64,
    "mcan_layers": 2,
    "mcan_dim": 64,
    "mcan_heads": 4,
    "mcan_ffn_dim": 128,
    "mcan_pooling_dim": 64,
    "mcan_output_dim": 128,
}
SIZES = {
    "mcan": _SMALL,
    "mcan_small": _SMALL,
    "mcan_papers": {**_SMALL, "mcan_layers": 4},
    "mcan_tiny": _TINY,
}


def _preset(sizes: dict[str, int]) -> Callable[[Any], None]:
    """Return the function that sets the defaults of an arch with these sizes."""
    return lambda args: set_defaults(args, **sizes)


for _arch, _sizes in SIZES.items():
    if _arch == "mcan":
        # register_model has registered an empty preset under this name, which is replaced here.
        ARCH_CONFIG_REGISTRY[_arch] = _preset(_sizes)
    else:
        register_model_architecture("mcan", _arch)(_preset(_sizes))

register_backbone(
    Backbone(
        name="mcan",
        model=MCANModel,
        sites=("encoder", "decoder", "cross"),
        owners=lambda model: (model.encoder, model.decoder),
        # Regions have no order, so the upward network of BABN must not mix them by position.
        defaults={"babn_upward": "heads"},
    )
)
