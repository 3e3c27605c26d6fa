"""Fast dropout keeps the right share, scales by its inverse and follows the seed."""

from __future__ import annotations

import pytest
import torch

import zoo
from fairseq_stochattn.core.dropout import LEVELS, fast_dropout


@pytest.mark.parametrize("p", [1 / 16, 0.2, 0.5, 0.9])
def test_share_and_scale(p: float) -> None:
    torch.manual_seed(0)
    x = torch.ones(500, 1001, requires_grad=True)
    out = fast_dropout(x, p)
    kept = out != 0
    exact = round(p * LEVELS) / LEVELS
    torch.testing.assert_close(out[kept], torch.full_like(out[kept], 1 / (1 - exact)))
    deviation = (p * (1 - p) / x.numel()) ** 0.5
    assert abs(kept.float().mean().item() - (1 - p)) < 5 * deviation
    # Neighbours come from the same random number, but are independent.
    for lag in (1, 2, 3, 4):
        both = (kept.flatten()[lag:] & kept.flatten()[:-lag]).float().mean().item()
        assert abs(both - (1 - p) ** 2) < 8 * deviation
    out.sum().backward()
    assert torch.equal(x.grad, out)


def test_limits_dtypes_and_seed() -> None:
    x = torch.ones(7, 3, dtype=torch.float64)
    assert torch.equal(fast_dropout(x, 0.0), x)
    assert not fast_dropout(x, 1.0).any()
    assert fast_dropout(x.half(), 0.5).dtype == torch.float16
    draws = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        draws.append(fast_dropout(torch.ones(40), 0.5))
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_the_flag_converts_a_model_and_changes_nothing_in_evaluation() -> None:
    source, target = zoo.sentences(9, 7), zoo.sentences(8, 5, seed=1)
    plain, fast = (
        zoo.build("transformer_deterministic", dropout=0.3, fast_dropout=flag)
        for flag in (False, True)
    )
    for model in (plain, fast):
        model.eval()
    expected, found = (zoo.run(model, "transformer", source, target) for model in (plain, fast))
    torch.testing.assert_close(expected, found, rtol=0, atol=0)
    kinds = {type(module).__name__ for module in fast.modules()}
    assert "FastDropout" in kinds
    assert "FairseqDropout" not in kinds
    fast.train()
    first, second = (zoo.run(fast, "transformer", source, target) for _ in range(2))
    assert not torch.equal(first, second)
