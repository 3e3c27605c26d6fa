"""Tensors are written to a file, and a full disk gives the error of the operating system."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bad_input import full_disk
from fairseq_stochattn.core.tensor_file import save_tensors


@pytest.mark.parametrize("size", [0, 64, 5_000, 39_000])
def test_full_disk(size: int, tmp_path: Path) -> None:
    with full_disk(size), pytest.raises(OSError, match="File too large"):
        save_tensors({"weight": torch.zeros(10_000)}, tmp_path / "x.pt")


def test_what_is_written_can_be_read(tmp_path: Path) -> None:
    content = {"weight": torch.arange(5.0), "name": "x"}
    save_tensors(content, tmp_path / "x.pt")
    found = torch.load(tmp_path / "x.pt", weights_only=True)
    assert torch.equal(found["weight"], content["weight"])
    assert found["name"] == "x"


def test_other_errors_of_torch_pass(tmp_path: Path) -> None:
    with pytest.raises((AttributeError, TypeError)):
        save_tensors({"function": lambda: 0}, tmp_path / "x.pt")
