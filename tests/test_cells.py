"""What is made of a mask once and kept: never for another batch, and not again at every step."""

from __future__ import annotations

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator
from torch import nn

import zoo
from fairseq_stochattn.attention import multihead, recurrent, upward
from fairseq_stochattn.attention.cells import Hidden, Remembered

BACKBONES = ["transformer", "lstm"]


class Counted:
    """A maker, and how often it was called."""

    def __init__(self, make) -> None:
        self.make, self.calls = make, 0

    def __call__(self, given):
        self.calls += 1
        return self.make(given)


def test_made_again_for_every_other_tensor() -> None:
    make = Counted(lambda mask: None if mask is None else mask.clone())
    remembered, mask = Remembered(make), torch.zeros(2, 3)
    assert remembered(None) is remembered(None) is None
    assert make.calls == 1
    first = remembered(mask)
    assert remembered(mask) is first
    assert make.calls == 2
    assert remembered(mask.clone()) is not first  # equal, but another one
    assert make.calls == 3


def test_barrier_and_rows() -> None:
    padding = torch.tensor([[False, True], [False, False]])
    hidden = Hidden(padding, padding[:, None, None, :])
    barrier = hidden.barrier(torch.float32)
    assert hidden.barrier(torch.float32) is barrier
    assert barrier[:, 0, 0].tolist() == [[0, -torch.inf], [0, 0]]
    assert hidden.barrier(torch.float64).dtype == torch.float64
    assert hidden.rows(slice(1, None)).barrier(torch.float32).eq(0).all()


def search(model: nn.Module, lengths: tuple[int, ...], seed: int = 0) -> list:
    """Beam search over left-padded sources; sentences end at different steps."""
    tokens = zoo.pad(zoo.sentences(*lengths, seed=seed), left=True)
    net_input = {"src_tokens": tokens, "src_lengths": tokens.ne(zoo.PAD).sum(1)}
    generator = SequenceGenerator(
        [model], zoo.dictionary(), beam_size=3, max_len_a=1, max_len_b=1, match_source_len=False
    )
    found = generator.generate([model], {"net_input": net_input})
    return [[(h["tokens"].tolist(), h["positional_scores"]) for h in beams] for beams in found]


def build(backbone: str, **flags: object) -> nn.Module:
    torch.manual_seed(0)
    return zoo.build(f"{backbone}_babn", babn_sigma=0.5, **flags).eval()


@pytest.mark.parametrize("backbone", BACKBONES)
def test_one_batch_after_another(backbone: str) -> None:
    """Of the same shapes with other padding: as by a model that has seen nothing before."""
    model = build(backbone)
    batches = [((9, 7, 4, 1), 0), ((9, 9, 3, 1), 1), ((9, 9, 2, 2), 2)]  # an LSTM wants them sorted
    for lengths, seed in batches:
        torch.testing.assert_close(
            search(model, lengths, seed), search(build(backbone), lengths, seed), rtol=0, atol=0
        )


@pytest.mark.parametrize("backbone", BACKBONES)
def test_a_search_finds_the_same_without_memory(
    backbone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = search(build(backbone), (9, 7, 4, 1))
    with monkeypatch.context() as patch:
        for module in (multihead, recurrent, upward):
            patch.setattr(module, "Remembered", lambda make: make)
        forgetful = build(backbone)
    torch.testing.assert_close(kept, search(forgetful, (9, 7, 4, 1)), rtol=0, atol=0)


def test_the_source_mask_is_made_once_a_layer_and_not_once_a_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Again only where sentences that are finished leave the batch."""
    made = Counted(multihead.behind_padding)
    aligned = Counted(upward.Alignment)
    monkeypatch.setattr(multihead, "behind_padding", made)
    monkeypatch.setattr(upward, "Alignment", aligned)
    model = build("transformer", decoder_layers=1)
    model.decoder.set_beam_size(3)
    tokens = zoo.pad(zoo.sentences(9, 7, 4), left=True)
    memory = model.encoder(tokens, src_lengths=tokens.ne(zoo.PAD).sum(1))
    state: dict = {}
    counts = []
    for step in range(5):
        before = made.calls, aligned.calls
        prefix = torch.full((9, step + 1), 7)
        with torch.no_grad():
            model.decoder(prefix, encoder_out=memory, incremental_state=state)
        counts.append((made.calls - before[0], aligned.calls - before[1]))
    # Of two attentions, at the first step both; the mask of the cache is the second step's.
    assert counts[0] == (2, 2)
    assert counts[2:] == [(0, 0)] * 3
