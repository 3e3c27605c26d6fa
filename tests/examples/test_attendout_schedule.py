"""examples/attendout/schedule.py: the curves of a log become a flag that cell_dropout accepts."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from fairseq_stochattn.core.schedule import parse_schedules

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "attendout"))

import schedule


def write(folder: Path, layers: int) -> tuple[Path, list]:
    """A log of piecewise linear curves with a bend at update 500."""
    curves = [
        lambda x, n=n: np.interp(x, [0, 500, 1000], [0.6, 0.1 + 0.1 * n, 0.2]) for n in (0, 1)
    ]
    lines = []
    for update in range(0, 1001, 50):
        row = {f"drop_encoder_{n}": f"{curves[n](update):.6f}" for n in range(layers)}
        lines.append(json.dumps({"epoch": 1, "loss": "1.0", "num_updates": str(update), **row}))
    log = folder / "train.log"
    log.write_text("\n".join(lines))
    return log, curves


def test_the_schedule_is_the_curve(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    log, curves = write(tmp_path, 2)
    assert schedule.main([str(log)]) == 0
    flag, value = capsys.readouterr().out.split()
    assert flag == "--cell-dropout"
    for found, expected in zip(parse_schedules(value, 2), curves, strict=True):
        for update in (0, 123, 500, 777, 1000):
            assert found(update) == pytest.approx(expected(update), abs=2e-3)


def test_other_logs_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    log, _ = write(tmp_path, 0)
    with pytest.raises(SystemExit, match="it is not attendout's"):
        schedule.main([str(log)])
