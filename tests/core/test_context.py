"""Cached masks are recomputed for every new batch, but not at every step of beam search."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator
from torch import nn

import zoo
from fairseq_stochattn.core import context, stack
from fairseq_stochattn.core.context import AttentionMask, CacheLast, MaskCache
from fairseq_stochattn.methods.babn import upward
from fairseq_stochattn.models import lstm_attention

BACKBONES = ["transformer", "lstm"]


class Counted:
    """Wraps a function of one argument and counts its calls."""

    def __init__(self, function: Callable) -> None:
        self.function, self.calls = function, 0

    def __call__(self, x: object) -> object:
        self.calls += 1
        return self.function(x)


def test_cache_last_compares_by_identity() -> None:
    clone = Counted(lambda mask: None if mask is None else mask.clone())
    cached, mask = CacheLast(clone), torch.zeros(2, 3)
    assert cached(None) is cached(None) is None
    assert clone.calls == 1
    first = cached(mask)
    assert cached(mask) is first
    assert clone.calls == 2
    assert cached(mask.clone()) is not first  # equal values, but another tensor
    assert clone.calls == 3


def test_additive_mask_is_cached_and_rows_select_sentences() -> None:
    padding = torch.tensor([[False, True], [False, False]])
    mask = AttentionMask(padding, padding[:, None, None, :])
    additive = mask.additive(torch.float32)
    assert mask.additive(torch.float32) is additive
    assert additive[:, 0, 0].tolist() == [[0, -torch.inf], [0, 0]]
    assert mask.additive(torch.float64).dtype == torch.float64
    assert mask.rows(slice(1, None)).additive(torch.float32).eq(0).all()


def search(model: nn.Module, lengths: tuple[int, ...], seed: int = 0) -> list:
    """The result of beam search for left-padded sources of the given lengths."""
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


def test_layers_of_a_stack_share_one_mask() -> None:
    """It is recomputed for other tensors. A causal mask leaves no bias to add."""
    masks, padding = MaskCache(), torch.tensor([[False, True], [False, False]])
    causal = torch.full((2, 2), -torch.inf).triu(1)
    mask, bias = masks(padding, causal)
    assert masks(padding, causal)[0] is mask
    assert bias is None
    assert mask.blocked[1, 0].tolist() == [[False, True], [False, False]]
    assert masks(padding, None)[0] is not mask
    finite = causal + 0.5
    assert torch.equal(masks(padding, finite)[1], finite.masked_fill(finite.isinf(), 0.0))


def test_valid_pairs_are_computed_once_per_mask() -> None:
    padding, queries = torch.tensor([[False, True], [False, False]]), torch.zeros(2, 3).bool()
    mask, like = context.mask_from_padding(padding), torch.zeros(2, 1, 3, 2)
    valid = mask.valid(queries, False, like)
    assert mask.valid(queries, False, like) is valid
    assert mask.count(valid) is mask.count(valid)
    assert mask.count(valid) == 9
    assert mask.valid(queries.clone(), False, like) is not valid
    clean = mask.valid(queries, True, like)
    assert mask.count(clean) == 3  # the second sentence is adversarial
    assert mask.valid(None, True, torch.zeros(2, 1, 1, 2)).shape == (2, 1, 1, 2)


@pytest.mark.parametrize("backbone", BACKBONES)
def test_batches_of_one_shape_do_not_share_cached_masks(backbone: str) -> None:
    """For batches of equal shape but different padding, results equal those of a new model."""
    model = build(backbone)
    batches = [((9, 7, 4, 1), 0), ((9, 9, 3, 1), 1), ((9, 9, 2, 2), 2)]  # sorted, for the LSTM
    for lengths, seed in batches:
        torch.testing.assert_close(
            search(model, lengths, seed), search(build(backbone), lengths, seed), rtol=0, atol=0
        )


@pytest.mark.parametrize("backbone", BACKBONES)
def test_search_gives_the_same_result_without_cache(
    backbone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = search(build(backbone), (9, 7, 4, 1))
    with monkeypatch.context() as patch:
        for module in (lstm_attention, upward):
            patch.setattr(module, "CacheLast", lambda function: function)
        patch.setattr(stack, "MaskCache", lambda: lambda *masks: MaskCache()(*masks))
        uncached = build(backbone)
    torch.testing.assert_close(cached, search(uncached, (9, 7, 4, 1)), rtol=0, atol=0)


def test_source_mask_is_computed_once_per_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """In step-by-step decoding, masks are not computed again while the batch stays the same."""
    masks = Counted(context.mask_from_padding)
    shifts = Counted(upward.KeyShift)
    monkeypatch.setattr(context, "mask_from_padding", masks)
    monkeypatch.setattr(upward, "KeyShift", shifts)
    model = build("transformer", decoder_layers=1)
    model.decoder.set_beam_size(3)
    tokens = zoo.pad(zoo.sentences(9, 7, 4), left=True)
    memory = model.encoder(tokens, src_lengths=tokens.ne(zoo.PAD).sum(1))
    state: dict = {}
    counts = []
    for step in range(5):
        before = masks.calls, shifts.calls
        prefix = torch.full((9, step + 1), 7)
        with torch.no_grad():
            model.decoder(prefix, encoder_out=memory, incremental_state=state)
        counts.append((masks.calls - before[0], shifts.calls - before[1]))
    # Self-attention and cross-attention compute their masks at step 0. At step 1, fairseq passes
    # its cached mask, which is a new tensor; at all later steps it passes the same tensor.
    assert counts[0] == (2, 2)
    assert counts[2:] == [(0, 0)] * 3
