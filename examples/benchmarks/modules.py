"""Two comparisons of parts of a model: the attention module, and the output layer of ELECTRA."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from fairseq.modules import MultiheadAttention
from fairseq.trainer import Trainer
from timing import Ratio, paired_ratio, paired_ratios
from torch import Tensor
from workload import make_trainer, training_step, write_dictionaries

from fairseq_stochattn.core.losses import collecting_losses, take_losses
from fairseq_stochattn.core.method import METHODS
from fairseq_stochattn.core.stack import build_stacks
from fairseq_stochattn.models.multihead_attention import StochasticMultiheadAttention

# The sizes at which the released module of BABN was measured.
BATCH, LENGTH, WIDTH, HEADS = 16, 100, 512, 8
# BERT's vocabulary and ELECTRA-small's length. 16 sentences instead of its 128 are enough: the
# optimizer, which is the same in all variants, takes 2 % of a step.
ELECTRA_WORDS, ELECTRA_LENGTH, ELECTRA_TOKENS = 30_000, 128, 16 * 128


def attention_module_ratio(pairs: int, method: str = "babn") -> Ratio:
    """Return the time of one self-attention module with the method over a plain one.

    Both run forward and backward; the method's losses are included.
    """
    torch.manual_seed(0)
    plain, converted = (MultiheadAttention(WIDTH, HEADS, self_attention=True) for _ in range(2))
    StochasticMultiheadAttention.adopt(converted)
    chain = {method: METHODS[method].Settings()}
    stack = build_stacks(chain, {"encoder": [converted]})["encoder"]
    x = torch.randn(LENGTH, BATCH, WIDTH, requires_grad=True)
    tokens = torch.full((BATCH, LENGTH), 5)

    def run_plain() -> None:
        plain(x, x, x, need_weights=False)[0].sum().backward()

    def run_method() -> None:
        with collecting_losses():
            stack.begin(tokens, padding_idx=1)
            out = converted(x, x, x, need_weights=False)[0].sum()
        losses = [loss.value for _, loss in take_losses(converted) if loss.weight is not None]
        (out + sum(losses)).backward()

    return paired_ratio(run_plain, run_method, pairs)


def electra_gathering_ratios(data: Path, pairs: int) -> dict[str, Ratio]:
    """Return the times of two ELECTRA-small steps over the one that gathers masked positions first.

    Both project all positions on the vocabulary, then:

    - ``ignored``: the loss ignores the targets of unmasked positions, as ElectraForMaskedLM of
      transformers does;
    - ``picked``: the logits of masked positions are picked, and the rest of the step is the same.
    """
    folder = data / "electra"
    folder.mkdir()
    write_dictionaries(folder, words=ELECTRA_WORDS)
    flags = ["--task", "electra", "--arch", "electra_small", "--criterion", "electra"]
    gathering, picking, ignoring = (make_trainer(folder, flags) for _ in range(3))
    project_all_positions(picking)
    logits = project_all_positions(ignoring)

    def loss_over_all_positions(extra: dict, targets: Tensor, masked: Tensor) -> Tensor:
        return F.cross_entropy(
            logits.pop().flatten(0, 1), targets.flatten(), ignore_index=pad, reduction="sum"
        )

    pad = ignoring.task.source_dictionary.pad()
    ignoring.criterion.mlm_loss = loss_over_all_positions
    gather, pick, ignore = (
        training_step(trainer, ELECTRA_LENGTH, tokens=ELECTRA_TOKENS)
        for trainer in (gathering, picking, ignoring)
    )
    return paired_ratios(gather, {"ignored": ignore, "picked": pick}, pairs, warm_up=1)


def project_all_positions(trainer: Trainer) -> list[Tensor]:
    """Make the generator project all positions; return a list with its last logits."""
    latest: list[Tensor] = []  # (B, T, V)
    project = trainer.model.generator.forward

    def forward(src_tokens: Tensor, masked_tokens: Tensor) -> Tensor:
        latest[:] = [project(src_tokens)]
        return latest[0][masked_tokens]

    trainer.model.generator.forward = forward
    return latest
