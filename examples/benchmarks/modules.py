"""Two comparisons below the size of a model: the attention module, and ELECTRA's gathering."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import fields
from pathlib import Path

import torch
from fairseq.data import Dictionary
from fairseq.modules import MultiheadAttention
from timing import Ratio, paired_ratio
from torch import Tensor
from workload import make_trainer, training_step, write_dictionaries

from fairseq_stochattn.attention.method import METHODS, collect_losses, collecting_losses
from fairseq_stochattn.attention.multihead import StochasticMultiheadAttention
from fairseq_stochattn.attention.stack import build_stacks

# The shape at which the released module of BABN was measured.
BATCH, LENGTH, WIDTH, HEADS = 16, 100, 512, 8
# BERT's vocabulary and ELECTRA-small's length. Its batches have 128 such sentences, these 32: with
# fewer the optimizer, which is not what is compared, takes a larger part of a step.
ELECTRA_WORDS, ELECTRA_LENGTH, ELECTRA_TOKENS = 30_000, 128, 32 * 128


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


def electra_gathering_ratio(data: Path, pairs: int) -> Ratio:
    """A step of ELECTRA-small that projects all positions on the vocabulary, over one that gathers
    the masked ones before."""
    folder = data / "electra"
    folder.mkdir()
    write_dictionaries(folder, words=ELECTRA_WORDS)
    flags = ["--task", "electra", "--arch", "electra_small", "--criterion", "electra"]
    gathering, projecting = (make_trainer(folder, flags) for _ in range(2))
    generator = projecting.model.generator
    gathered = generator.forward

    def all_positions(src_tokens: Tensor, masked_tokens: Tensor) -> Tensor:
        return gathered(src_tokens)[masked_tokens]

    generator.forward = all_positions
    steps = [
        training_step(trainer, ELECTRA_LENGTH, tokens=ELECTRA_TOKENS)
        for trainer in (gathering, projecting)
    ]
    return paired_ratio(*steps, min(pairs, 5), warm_up=1)
