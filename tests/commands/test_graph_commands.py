"""Graph attention through the commands: train, evaluate, and one line for bad data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import graphs
import runner
from bad_input import refusal
from evaluating import evaluate
from fairseq_stochattn.commands import evaluate as evaluate_command

FLAGS = (
    *("--task", "node_classification", "--optimizer", "adam", "--lr", "0.02", "--batch-size", 1),
    *("--dropout", 0.1, "--attention-dropout", 0.1),
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return graphs.write_graph(tmp_path_factory.mktemp("graph") / "data", nodes=90, edges=60)


def train(data: Path, out: Path, arch: str, criterion: str, *more: object) -> runner.Output:
    method = ("--arch", arch, "--criterion", criterion, "--max-update", 40)
    return runner.train(data, out, *FLAGS, *method, "--no-epoch-checkpoints", *more)


@pytest.mark.parametrize(
    ("arch", "criterion", "loss"),
    [
        ("gat", "node_classification", None),
        ("gat_alignment", "alignment", "align"),
        ("gat_babn", "elbo", "kl"),
        ("gat_bam", "elbo", "kl"),
    ],
)
def test_a_trained_network_is_evaluated(
    data: Path, tmp_path: Path, arch: str, criterion: str, loss: str | None
) -> None:
    output = train(data, tmp_path, arch, criterion)
    losses = [float(x["train_loss"]) for x in output.stats["train"]]
    assert losses[-1] < losses[0] / 2
    if loss is not None:
        assert np.isfinite(float(output.stats["train"][-1][f"train_{loss}"]))
    found = evaluate(data, tmp_path / "checkpoint_last.pt", more=("--gen-subset", "test"))
    (model,) = found["checkpoints"]
    assert model["predictions"] == 30
    assert model["metrics"]["accuracy"] > 45  # chance: 33
    assert (model["samples"] > 0) == (loss == "kl")
    if loss == "kl":
        assert model["metrics"]["mutual_information"] > 0
    assert {"mmd", "key_spread", "query_spread"} <= set(model["meters"])


def test_repulsive_attention_over_the_heads(data: Path, tmp_path: Path) -> None:
    flags = ("--optimizer", "repulsive", "--repulsive-base", "adam")
    output = train(data, tmp_path, "gat_deterministic", "node_classification", *flags)
    losses = [float(x["train_loss"]) for x in output.stats["train"]]
    assert losses[-1] < losses[0]


def test_a_damaged_graph_is_refused(data: Path, tmp_path: Path) -> None:
    with np.load(data / "graph.npz") as file:
        arrays = dict(file)
    for change, message in (
        ({"edges": arrays["edges"] + 90}, "edges has a number outside of 0 to 89"),
        ({"starts": arrays["starts"][:-1]}, "starts does not divide the features"),
        ({"labels": arrays["labels"].astype(object)}, "is damaged"),
        ({"nodes_test": np.array([500])}, "nodes_test has a number outside"),
    ):
        folder = tmp_path / str(len(message))
        folder.mkdir()
        np.savez(folder / "graph.npz", **{**arrays, **change})
        with pytest.raises(SystemExit) as error:
            train(folder, tmp_path / "out", "gat", "node_classification")
        assert message in str(error.value)


def test_a_missing_split_is_one_line(data: Path, tmp_path: Path) -> None:
    train(data, tmp_path, "gat", "node_classification")
    flags = ("--path", tmp_path / "checkpoint_last.pt", "--gen-subset", "dev", "--cpu")
    assert "no dev set" in refusal(evaluate_command.main, data, *flags)
