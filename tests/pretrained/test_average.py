"""Averaged checkpoints: the mean of all parameters, and one line for files that do not fit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fairseq_stochattn.core.errors import InputError
from fairseq_stochattn.pretrained.average import average_checkpoints, main


def write(path: Path, **parameters: torch.Tensor) -> Path:
    torch.save({"model": parameters, "last_optimizer_state": {"step": 3}, "cfg": None}, path)
    return path


def test_parameters_are_means_without_optimizer_state(tmp_path: Path) -> None:
    first = write(tmp_path / "1.pt", w=torch.tensor([1.0, 2.0]), count=torch.tensor(7))
    second = write(tmp_path / "2.pt", w=torch.tensor([3.0, 6.0]), count=torch.tensor(9))
    main([str(tmp_path / "mean.pt"), str(first), str(second)])
    found = torch.load(tmp_path / "mean.pt", weights_only=True)
    assert torch.equal(found["model"]["w"], torch.tensor([2.0, 4.0]))
    assert found["model"]["count"] == 7  # integers are not averaged
    assert "last_optimizer_state" not in found


def test_bad_input_is_refused(tmp_path: Path) -> None:
    first = write(tmp_path / "1.pt", w=torch.zeros(2))
    other = write(tmp_path / "2.pt", v=torch.zeros(2))
    with pytest.raises(InputError, match="its parameters differ"):
        average_checkpoints([first, other], tmp_path / "mean.pt")
    with pytest.raises(SystemExit, match="does not exist"):
        main([str(tmp_path / "mean.pt"), str(tmp_path / "3.pt")])
    assert not (tmp_path / "mean.pt").exists()
