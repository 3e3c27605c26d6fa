"""Every ordered pair of methods on three backbones trains without NaN, or is refused.

Here all pairs train in a loop of a few lines, and a sample trains with fairseq-train. ``make
pairs`` trains all of them with fairseq-train and writes docs/pairs.md.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

import pairs
import zoo
from fairseq_stochattn.compat import UsageError
from fairseq_stochattn.core.losses import collecting_losses, take_losses, weighted_sum
from fairseq_stochattn.core.masking import MaskingMethod
from fairseq_stochattn.core.method import METHODS
from fairseq_stochattn.core.paired_batch import paired_batch
from fairseq_stochattn.methods.attendout.training_loop import LoopSettings, TwoPlayerLoop
from fairseq_stochattn.optim.copy_parameters import copy_parameters
from pairs import BACKBONES, NAMES, PAIRS, own_flags

SOURCES, TARGETS = zoo.sentences(9, 7, 4, 1), zoo.sentences(8, 5, 3, 1, seed=1)


def build(backbone: str, *methods: str) -> nn.Module:
    own = own_flags(methods)
    arch = f"{backbone}_deterministic"
    return zoo.build(arch, attention=",".join(methods), kl_weight=0.1, kl_anneal_updates=0, **own)


def is_refused(first: str, second: str) -> bool:
    """A mask that is not last, or dropped scores in front of Bayesian attention."""
    masks = issubclass(METHODS[first], MaskingMethod)
    drops = first in ("attendout", "cell_dropout") and METHODS[second].samples_at_test
    return masks or drops


def train(model: nn.Module, backbone: str, updates: int = 3) -> None:
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 0.01)
    for update in range(updates):
        model.train().set_num_updates(update)
        with paired_batch(), collecting_losses():
            out = zoo.run(model, backbone, SOURCES * 2, TARGETS * 2)
        extra, _ = weighted_sum(take_losses(model), sample_size=1)
        loss = out.float().logsumexp(dim=-1).mean() + (0 if extra is None else extra)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert torch.isfinite(loss)
    for name, parameter in model.named_parameters():
        assert torch.isfinite(parameter).all(), name


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("first", NAMES)
def test_every_ordered_pair_trains_or_is_refused(first: str, backbone: str) -> None:
    for second in [name for one, name in PAIRS if one == first]:
        if is_refused(first, second):
            with pytest.raises(UsageError, match=r"name (it last|\w+ first)") as caught:
                build(backbone, first, second)
            assert "\n" not in str(caught.value)
        else:
            train(build(backbone, first, second), backbone)


# One pair for each criterion, with two methods that sample, share parts or have losses.
SAMPLE = [
    *(("transformer", "babn", "asa"), ("transformer", "layerdrop", "bam")),
    *(("roberta", "bam", "attendout"), ("transformer_lm", "alignment", "cell_dropout")),
]


@pytest.mark.parametrize(("backbone", "first", "second"), SAMPLE)
def test_a_sample_of_pairs_in_fairseq_train(
    backbone: str, first: str, second: str, translation_data: Path, lm_data: Path
) -> None:
    data = translation_data if backbone == "transformer" else lm_data
    assert pairs.refusal(data, backbone, first, second) is None
    assert "name it last" in pairs.refusal(data, backbone, "asa", first)


def test_the_page_says_what_is_refused() -> None:
    """docs/pairs.md, which ``make pairs`` writes, names every pair and refuses the same ones."""
    text = (pairs.runner.ROOT / "docs" / "pairs.md").read_text()
    tables = dict(zip(BACKBONES, re.split(r"^## ", text, flags=re.M)[1:], strict=False))
    assert len(tables) == len(BACKBONES)
    for backbone, section in tables.items():
        assert section.startswith(f"{backbone}\n")
        rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", section, re.M)
        assert [name for name, _ in rows] == NAMES
        for first, cells in rows:
            for second, cell in zip(NAMES, cells.split(" | "), strict=True):
                expected = "refused" if is_refused(first, second) else "trains"
                assert cell.startswith("–" if first == second else expected), (first, second)


@pytest.mark.parametrize("second", ["babn", "bam", "alignment"])
def test_the_defender_of_attendout_keeps_all_other_methods(second: str) -> None:
    """The training loop copies a model whose other methods have shared parts of their own."""
    model = build("roberta", second, "attendout")
    copy = partial(copy_parameters, with_state=False)
    defender = TwoPlayerLoop(model, LoopSettings(), seed=1, copy_parameters=copy).defender
    found = {type(m).name for m in defender.modules() if isinstance(m, tuple(METHODS.values()))}
    assert found == {second}
    train(defender, "roberta")


def test_dropped_weights_may_stand_in_front_of_bayesian_attention() -> None:
    for name in ("attendout", "cell_dropout"):
        model = zoo.build(
            "roberta_deterministic",
            attention=f"{name},bam",
            cell_dropout="0.3" if name == "cell_dropout" else None,
            **{f"{name}_on": "weights"},
        )
        train(model, "roberta")
