"""Two comparisons below the size of a model: the attention module, and ELECTRA's gathering."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import fields
from pathlib import Path

import torch
import torch.nn.functional as F
from fairseq.data import Dictionary
from fairseq.modules import MultiheadAttention
from fairseq.trainer import Trainer
from timing import Ratio, paired_ratio, paired_ratios
from torch import Tensor
from workload import make_trainer, training_step, write_dictionaries

from fairseq_stochattn.attention.method import METHODS, collect_losses, collecting_losses
from fairseq_stochattn.attention.multihead import StochasticMultiheadAttention
from fairseq_stochattn.attention.stack import build_stacks

# The shape at which the released module of BABN was measured.
BATCH, LENGTH, WIDTH, HEADS = 16, 100, 512, 8
# BERT's vocabulary and ELECTRA-small's length. Its batches have 128 such sentences, these 16:
# enough for the optimizer, which is not what is compared, to be two parts in a hundred of a step.
ELECTRA_WORDS, ELECTRA_LENGTH, ELECTRA_TOKENS = 30_000, 128, 16 * 128


def attention_module_ratio(pairs: int, method: str = "babn") -> Ratio:
    """Forward and backward of one self-attention with the method, its loss included, over plain."""
    torch.manual_seed(0)
    plain, ours = (MultiheadAttention(WIDTH, HEADS, self_attention=True) for _ in range(2))
    StochasticMultiheadAttention.adopt(ours)
    config = Namespace(attention=method, attention_sites="all", attention_layers="all")
    for entry in fields(METHODS[method].Config):
        setattr(config, entry.name, entry.default)
    stack = build_stacks(config, {"encoder": [ours]}, {"encoder": Dictionary()})["encoder"]
    x = torch.randn(LENGTH, BATCH, WIDTH, requires_grad=True)
    tokens = torch.full((BATCH, LENGTH), 5)

    def of_plain() -> None:
        plain(x, x, x, need_weights=False)[0].sum().backward()

    def of_ours() -> None:
        with collecting_losses():
            stack.begin(tokens, padding_idx=1)
            out = ours(x, x, x, need_weights=False)[0].sum()
        losses = [loss.value for _, loss in collect_losses(ours) if loss.weight is not None]
        (out + sum(losses)).backward()

    return paired_ratio(of_plain, of_ours, pairs)


def electra_gathering_ratios(data: Path, pairs: int) -> dict[str, Ratio]:
    """A step of ELECTRA-small that projects all positions on the vocabulary, over one that gathers
    the masked ones before. What is done with all these logits is said by the key:

    - ``ignored``: the loss goes over all of them with the other targets ignored, as in the
      ElectraForMaskedLM of transformers;
    - ``picked``: the masked ones are picked, and all that follows is the same.
    """
    folder = data / "electra"
    folder.mkdir()
    write_dictionaries(folder, words=ELECTRA_WORDS)
    flags = ["--task", "electra", "--arch", "electra_small", "--criterion", "electra"]
    gathering, picking, ignoring = (make_trainer(folder, flags) for _ in range(3))
    project_all(picking)
    logits = project_all(ignoring)

    def loss_of_all(extra: dict, targets: Tensor, masked: Tensor) -> Tensor:
        return F.cross_entropy(
            logits.pop().flatten(0, 1), targets.flatten(), ignore_index=pad, reduction="sum"
        )

    pad = ignoring.task.source_dictionary.pad()
    ignoring.criterion.mlm_loss = loss_of_all
    gather, pick, ignore = (
        training_step(trainer, ELECTRA_LENGTH, tokens=ELECTRA_TOKENS)
        for trainer in (gathering, picking, ignoring)
    )
    return paired_ratios(gather, {"ignored": ignore, "picked": pick}, pairs, warm_up=1)


def project_all(trainer: Trainer) -> list[Tensor]:
    """Let its generator project all positions (B, T, V); the latest of them lie in the list."""
    latest: list[Tensor] = []
    of_positions = trainer.model.generator.forward

    def forward(src_tokens: Tensor, masked_tokens: Tensor) -> Tensor:
        latest[:] = [of_positions(src_tokens)]
        return latest[0][masked_tokens]

    trainer.model.generator.forward = forward
    return latest
