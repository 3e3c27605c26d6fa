"""``--compile-attention``: compiled formulas equal the hand-written ones, their fallback."""

from __future__ import annotations

import logging
import shutil
from typing import Any

import pytest
import torch
from scipy import special
from torch import Tensor

from fairseq_stochattn.core.compiling import Compiled
from fairseq_stochattn.core.distributions import weibull_noise
from fairseq_stochattn.methods.babn import compiled, inference

CONSTANTS = {"rho": 1.5, "k_min": 0.05, "beta": 10.0}


def arguments(
    shape: tuple[int, ...], dtype: torch.dtype, f2: bool = True, alpha_rows: int = 1
) -> dict[str, Any]:
    """Random tensor arguments of ``weibull_attention`` with some masked and invalid pairs."""
    torch.manual_seed(0)
    batch, _, rows, keys = shape
    scores = 3 * torch.randn(shape, dtype=dtype)
    scores[..., -1] = -torch.inf  # masked keys
    valid = torch.rand(batch, 1, rows, keys) > 0.2
    valid[..., -1] = False
    alpha = torch.rand(shape, dtype=dtype)[:, :, :alpha_rows] + 0.01
    return {
        "scores": scores,
        "f1": torch.randn(shape, dtype=dtype),
        "f2": torch.randn(shape, dtype=dtype) if f2 else None,
        "alpha": alpha,
        "noise": weibull_noise(scores),
        "valid": valid,
    }


def run(given: dict[str, Any], compile: bool, **more: Any) -> dict[str, Tensor]:
    """The results of ``weibull_attention``, and the gradients of its inputs."""
    leaves = {
        name: given[name].clone().requires_grad_()
        for name in ("scores", "f1", "f2", "alpha")
        if given[name] is not None
    }
    inputs = {**given, **leaves}
    log_s, kl, k = inference.weibull_attention(**inputs, **CONSTANTS, **more, compile=compile)
    real = given["valid"].to(log_s.dtype)
    ((log_s * real).square().sum() + 0.3 * kl).backward()
    grads = {f"grad of {name}": leaf.grad for name, leaf in leaves.items()}
    return {"log_s": log_s, "kl": kl, "k": k, **grads}


@pytest.mark.parametrize("x", [0.0, 1e-4, 0.3, 1.0, 4.0, 20.0])
def test_series_of_the_gamma_function(x: float) -> None:
    exact = torch.tensor(x, dtype=torch.float64)
    assert compiled.log_gamma_1p(exact).item() == pytest.approx(special.gammaln(1 + x), abs=2e-8)
    assert compiled.digamma_1p(exact).item() == pytest.approx(special.digamma(1 + x), abs=2e-8)
    assert compiled.log_gamma_1p(exact.float()).item() == pytest.approx(
        special.gammaln(1 + x), abs=2e-6, rel=1e-6
    )


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("f2", [True, False])
@pytest.mark.parametrize("alpha_rows", [1, 5])
def test_formulas_equal_the_hand_written_ones(
    normalize: bool, f2: bool, alpha_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In double precision, as functions that are not compiled."""
    given = arguments((3, 2, 5, 7), torch.float64, f2, alpha_rows)
    if not normalize:
        given["scores"] = given["scores"].clamp(min=-30).clone()
        given["scores"][0, 0, 0, :2] = torch.tensor([16.0, 40.0])  # beyond the bound of exp(Φ)
    more = {"sigma": 0.3, "normalize": normalize}
    expected = run(given, compile=False, **more)
    plain = lambda constants: compiled.Formulas(  # noqa: E731
        *(x.function for x in compiled.formulas(
            constants, inference.MAX_MEAN, inference.CLAMPED_ABOVE
        ))
    )  # fmt: skip
    monkeypatch.setattr(inference, "_formulas", plain)
    monkeypatch.setattr(inference, "runs_compiled", lambda *_: True)
    torch.testing.assert_close(run(given, compile=True, **more), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="no compiler")
def test_compiled_once_for_all_shapes() -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    for shape in ((8, 4, 13, 16), (9, 4, 16, 11), (7, 4, 20, 20)):
        given = arguments(shape, torch.float32)
        expected, found = (
            run(given, compile, sigma=1e-6, normalize=True) for compile in (False, True)
        )
        torch.testing.assert_close(found, expected, rtol=3e-4, atol=3e-4)
    assert not Compiled.failed
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2  # forward and backward
    few = inference.Inputs(**arguments((2, 2, 3, 4), torch.float32))
    constants = inference.Constants(1.5, 1e-6, 0.05, 10.0, True, True)
    assert not inference.runs_compiled(few, constants)
    assert inference.runs_compiled(inference.Inputs(**given), constants)
    assert not inference.runs_compiled(inference.Inputs(**given)._replace(noise=None), constants)


def test_without_a_compiler_one_line_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_compiler(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no compiler\nwith a long explanation")

    monkeypatch.setattr(torch, "compile", no_compiler)
    monkeypatch.setattr(Compiled, "failed", False)
    double = Compiled(lambda x: 2 * x)
    with caplog.at_level(logging.WARNING):
        assert [double(1), Compiled(lambda x: x)(3), double(2)] == [2, 3, 4]
    assert len(caplog.messages) == 1
    assert "no compiler" in caplog.text
    assert "long explanation" not in caplog.text
    given = arguments((8, 4, 13, 16), torch.float32)
    constants = inference.Constants(1.5, 1e-6, 0.05, 10.0, True, True)
    assert not inference.runs_compiled(inference.Inputs(**given), constants)
