"""stochattn-plot layer-shares: the quantity of each layer at the end of several runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairseq_stochattn.analysis.curves import late_means, shares_figure
from fairseq_stochattn.analysis.training_log import read_log
from fairseq_stochattn.commands import plot


def write(path: Path, factor: float) -> Path:
    """Eight logged updates; layer n has the share factor·(n + 1)·update/100."""
    rows = []
    for update in range(1, 9):
        shares = {f"masked_share_encoder_{n}": factor * (n + 1) * update / 100 for n in range(3)}
        rows.append(json.dumps({"loss": "1", "num_updates": str(update), **shares}))
    path.write_text("\n".join(rows))
    return path


def test_means_of_the_last_quarter(tmp_path: Path) -> None:
    log = read_log([write(tmp_path / "MRPC.log", 1.0)])
    assert late_means(log, "masked_share", "encoder") == pytest.approx(
        {0: 0.075, 1: 0.15, 2: 0.225}
    )
    figure = shares_figure({"MRPC": log})
    (line,) = figure.axes[0].lines
    assert list(line.get_ydata()) == pytest.approx([0.075, 0.15, 0.225])


def test_the_command_draws_one_line_per_log(tmp_path: Path) -> None:
    logs = [str(write(tmp_path / f"{name}.log", x)) for name, x in (("MRPC", 1.0), ("RTE", 0.5))]
    out = tmp_path / "shares.svg"
    assert plot.main(["layer-shares", *logs, "--output", str(out)]) == 0
    drawn = out.read_text()
    assert "MRPC" in drawn
    assert "RTE" in drawn
    with pytest.raises(SystemExit, match="no drop per layer of encoder attention"):
        plot.main(["layer-shares", *logs, "--name", "drop", "--output", str(out)])
