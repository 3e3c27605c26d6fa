"""Visual question answering through the commands: train, evaluate, predict, draw."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import graphs
import images
import runner
from bad_input import refusal
from evaluating import evaluate
from fairseq_stochattn.commands import evaluate as evaluate_command
from fairseq_stochattn.commands import plot as plot_command
from fairseq_stochattn.commands import predict as predict_command
from fairseq_stochattn.core.method import METHODS
from fairseq_stochattn.models.backbone import BACKBONES
from fairseq_stochattn.tasks.vqa import VQAConfig, VQATask

SMALL = (
    *("--encoder-embed-dim", 8, "--mcan-layers", 2, "--mcan-dim", 16, "--mcan-heads", 2),
    *("--mcan-ffn-dim", 32, "--mcan-pooling-dim", 8, "--mcan-output-dim", 16),
)
FLAGS = ("--task", "vqa", *SMALL, "--lr", 0.01, "--batch-size", 30, "--dropout", 0)
CRITERIONS = {"asa": "asa", "bernoulli": "asa", "scheduled": "asa", "magnitude": "asa"}
CRITERIONS |= {"attendout": "attendout", "alignment": "alignment"}
CRITERIONS |= {"babn": "elbo", "bam": "elbo"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return images.write(tmp_path_factory.mktemp("images") / "data")


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a trained BABN."""
    folder = tmp_path_factory.mktemp("trained")
    flags = ("--arch", "mcan_babn", "--criterion", "elbo", "--max-update", 150)
    output = runner.train(data, folder, *FLAGS, *flags, "--validate-interval", 25)
    assert float(output.stats["valid"][-1]["valid_accuracy"]) > 70  # without images: 53
    assert np.isfinite(float(output.stats["train"][-1]["train_kl"]))
    return folder


def opened(data: Path, split: str = "valid", **flags: object):
    cfg = VQAConfig(data=str(data), **{"seed": 1, **flags})
    task = VQATask.setup_task(cfg)
    return task.load_dataset(split)


def test_a_trained_model_is_evaluated(data: Path, trained: Path) -> None:
    checkpoint = trained / "checkpoint_last.pt"
    (found,) = evaluate(data, checkpoint, more=("--gen-subset", "test"))["checkpoints"]
    metrics = found["metrics"]
    assert found["samples"] == 20
    # The question without a known answer counts in the accuracy, but in no other measure.
    assert (found["examples"], found["predictions"]) == (61, 60)
    assert metrics["accuracy_most_frequent"] > 75
    # The right colour has the score 0.9, and the question without a known answer scores nothing.
    assert 65 < metrics["accuracy"] < metrics["accuracy_most_frequent"]
    assert 0 < metrics["pavpu"] <= 1
    assert metrics["mutual_information"] > 0
    assert {"noise", "mmd", "head_cosine"} <= set(found["meters"])
    assert "color" in " ".join(x["text"] for x in found["least_certain"])


def test_noise_lowers_the_accuracy_and_follows_the_seed(data: Path, trained: Path) -> None:
    checkpoint = trained / "checkpoint_last.pt"

    def measured(*flags: object) -> dict:
        return evaluate(data, checkpoint, more=("--samples", 2, *flags))["checkpoints"][0][
            "metrics"
        ]

    clean, noisy = measured(), measured("--image-noise", 10)
    assert noisy["accuracy"] < clean["accuracy"] - 10
    assert measured("--image-noise", 10) == noisy
    assert measured("--image-noise", 10, "--seed", 2) != noisy
    assert measured("--image-noise", 0) == clean


def test_the_noise_belongs_to_the_image(data: Path) -> None:
    clean, noisy = opened(data), opened(data, image_noise=2.0)
    added = [noisy[i]["regions"] - clean[i]["regions"] for i in range(len(clean))]
    assert torch.equal(added[0], added[1])  # two questions about one image
    every = torch.cat([x.flatten() for x in added[::2]])
    assert every.std().item() == pytest.approx(2, rel=0.15)
    assert abs(every.mean().item()) < 0.4
    assert not torch.equal(opened(data, image_noise=2.0, seed=2)[0]["regions"], noisy[0]["regions"])
    assert opened(data, image_noise=2.0, no_image=True)[0]["regions"].abs().sum() == 0


def test_a_model_without_images_is_the_baseline(data: Path, tmp_path: Path) -> None:
    flags = ("--arch", "mcan_deterministic", "--criterion", "vqa", "--max-update", 60)
    runner.train(data, tmp_path, *FLAGS, *flags, "--no-image", "--validate-interval", 25)
    checkpoint = tmp_path / "checkpoint_last.pt"
    (found,) = evaluate(data, checkpoint, more=("--retain-dropout",))["checkpoints"]
    assert found["metrics"]["accuracy_most_frequent"] < 67
    text = [found["metrics"][x] for x in ("accuracy", "nll")]
    (noisy,) = evaluate(data, checkpoint, more=("--image-noise", 9, "--retain-dropout"))[
        "checkpoints"
    ]
    assert [noisy["metrics"][x] for x in ("accuracy", "nll")] == text


@pytest.mark.parametrize("method", [x for x in METHODS if x in {*CRITERIONS, "cell_dropout"}])
def test_every_method_trains(data: Path, tmp_path: Path, method: str) -> None:
    if not set(METHODS[method].sites) & set(BACKBONES["mcan"].sites):
        pytest.skip("no common site")
    more = ("--alignment", "gan") if method == "alignment" else ()
    more = ("--attendout-steps", 2) if method == "attendout" else more
    criterion = CRITERIONS.get(method, "attention_losses")
    output = runner.train(
        data, tmp_path, *FLAGS, "--arch", f"mcan_{method}", "--criterion", criterion,
        "--max-update", 3, *more,
    )  # fmt: skip
    losses = output.losses()
    assert len(losses) == 3
    assert np.isfinite(losses).all()
    assert np.isfinite(float(output.stats["valid"][-1]["valid_loss"]))


@pytest.mark.parametrize(
    "flags",
    [
        ("--criterion", "head_diversity", "--diversity", "disagreement"),
        ("--criterion", "freelb"),
        ("--criterion", "smart"),
        ("--criterion", "vqa", "--optimizer", "repulsive", "--repulsive-base", "adam"),
        ("--criterion", "alignment", "--alignment", "ct"),
    ],
    ids=lambda flags: flags[1] if flags[1] != "vqa" else "repulsive",
)
def test_every_criterion_trains(data: Path, tmp_path: Path, flags: tuple) -> None:
    arch = ("--arch", "mcan_deterministic", "--max-update", 3)
    losses = runner.train(data, tmp_path, *FLAGS, *arch, *flags).losses()
    assert len(losses) == 3
    assert np.isfinite(losses).all()


def test_predictions(data: Path, trained: Path, capsys: pytest.CaptureFixture) -> None:
    out = trained / "predictions.jsonl"
    flags = ("--path", trained / "checkpoint_last.pt", "--output", out, "--json", "--cpu")
    given = [str(x) for x in (data, *flags, "--gen-subset", "test")]
    assert predict_command.main(given) == 0
    accuracy = json.loads(capsys.readouterr().out)["accuracy"]
    more = ("--gen-subset", "test", "--samples", 0)
    (found,) = evaluate(data, trained / "checkpoint_last.pt", more=more)["checkpoints"]
    assert found["metrics"]["accuracy"] == pytest.approx(accuracy, abs=0.01)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(rows) == 61
    assert rows[-1]["label"] == {}
    scores = [row["label"].get(row["prediction"], 0) for row in rows]
    assert accuracy == pytest.approx(100 * np.mean(scores), abs=0.01)


@pytest.mark.parametrize("grid", [None, (2, 3)])
def test_figures(grid: tuple[int, int] | None, tmp_path: Path) -> None:
    folder = images.write(tmp_path / "data", grid)
    flags = ("--arch", "mcan_babn", "--criterion", "elbo", "--max-update", 2)
    runner.train(folder, tmp_path, *FLAGS, *flags)
    checkpoint = tmp_path / "checkpoint_last.pt"
    for kind, more in (
        ("image", ("--sites", "all", "--layers", "0", "--id", 5)),
        ("image", ("--id", 5)),
        ("attention", ("--sites", "all", "--id", 5)),
    ):
        out = tmp_path / f"{kind}{len(more)}.svg"
        given = (kind, checkpoint, folder, *more, "--samples", 3, "--output", out, "--cpu")
        assert plot_command.main([str(x) for x in given]) == 0
        text = out.read_text()
        assert text.count("std/mean") > 0
    given = ("image", checkpoint, folder, "--sites", "encoder", "--id", 1, "--output", out)
    assert "no weights of regions" in refusal(plot_command.main, *given)
    given = ("attention", checkpoint, folder, "--text", "is it red", "--output", out)
    assert "needs an image" in refusal(plot_command.main, *given)


def test_bad_data_is_one_line(data: Path, tmp_path: Path) -> None:
    with np.load(data / "valid.npz") as file:
        arrays = dict(file)
    changes = (
        ({"image": arrays["image"] + 90}, "image has a number outside of 0 to 29"),
        ({"starts": arrays["starts"][:-1]}, "starts does not divide"),
        ({"scores": arrays["scores"] + 1}, "a score is not above 0 and at most 1"),
        ({"question_id": arrays["question_id"].astype(object)}, "is damaged"),
    )
    for number, (change, message) in enumerate(changes):
        folder = shutil.copytree(data, tmp_path / str(number))
        np.savez(folder / "valid.npz", **{**arrays, **change})
        with pytest.raises(SystemExit, match=message):
            opened(folder)
    folder = shutil.copytree(data, tmp_path / "cut")
    (folder / "valid.regions").write_bytes((data / "valid.regions").read_bytes()[:-2])
    with pytest.raises(SystemExit, match="is not a number of regions"):
        opened(folder)
    with pytest.raises(SystemExit, match="no other set"):
        opened(data, "other")
    (folder / "vqa.json").write_text('{"answers": [], "width": 5}')
    with pytest.raises(SystemExit, match="no list of answers"):
        opened(folder)


def test_other_tasks_and_archs_are_refused(data: Path, trained: Path, tmp_path: Path) -> None:
    flags = ("--task", "vqa", "--arch", "roberta_babn", "--criterion", "vqa")
    with pytest.raises(SystemExit, match="--task vqa needs an mcan arch"):
        runner.train(data, tmp_path, *flags, "--encoder-layers", 1, "--max-positions", 64)
    with pytest.raises(SystemExit, match="--image-noise must not be negative"):
        opened(data, image_noise=-1.0)
    flags = (data, "--path", trained / "checkpoint_last.pt", "--image-noise", "nan", "--cpu")
    assert "--image-noise must not be negative" in refusal(evaluate_command.main, *flags)
    graph = graphs.write_graph(tmp_path / "graph")
    flags = ("--task", "node_classification", "--arch", "gat", "--criterion", "node_classification")
    runner.train(graph, tmp_path, *flags, "--batch-size", 1, "--max-update", 1)
    flags = (graph, "--path", tmp_path / "checkpoint_last.pt", "--image-noise", 1, "--cpu")
    assert "another task than vqa" in refusal(evaluate_command.main, *flags)
