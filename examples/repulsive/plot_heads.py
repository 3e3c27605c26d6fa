"""Draw accuracy over the number of heads (An et al. 2020, Fig. 3) from the runs of heads.sh.

Example: python examples/repulsive/plot_heads.py OUT SST-2
It reads OUT/<heads>/<task>/<method>.<seed>.accuracy and writes OUT/<task>.heads.png.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import fmean, stdev

from fairseq_stochattn.analysis.drawing import house_style, save

Points = dict[int, list[float]]  # number of heads → accuracy of every seed


def read_accuracies(folder: Path, task: str) -> dict[str, Points]:
    """The accuracies by method and number of heads; exits if there are none."""
    found: dict[str, Points] = {}
    for path in sorted(folder.glob(f"*/{task}/*.accuracy")):
        heads, method = path.parts[-3], path.name.split(".")[0]
        if heads.isdigit():
            found.setdefault(method, {}).setdefault(int(heads), []).append(float(path.read_text()))
    if not found:
        raise SystemExit(f"{folder}/<heads>/{task}/*.accuracy: no such files; run heads.sh first")
    return found


def draw(accuracies: dict[str, Points], path: Path, title: str) -> None:
    """One line per method: the mean over seeds, with the standard deviation as error bars."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3.4), layout="constrained")
    ax = figure.subplots()
    for (method, points), marker in zip(accuracies.items(), "osD^v", strict=False):
        heads = sorted(points)
        spread = [stdev(points[n]) if len(points[n]) > 1 else 0.0 for n in heads]
        means = [fmean(points[n]) for n in heads]
        ax.errorbar(heads, means, yerr=spread, marker=marker, capsize=3, label=method)
    ax.set(xlabel="number of heads", ylabel="test accuracy (%)", title=title)
    ax.legend()
    save(figure, path)


def main(folder: Path, task: str) -> None:
    path = folder / f"{task}.heads.png"
    with house_style():
        draw(read_accuracies(folder, task), path, task)
    print(path)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit("usage: plot_heads.py OUT TASK")
    main(Path(sys.argv[1]), sys.argv[2])
