"""The shell scripts of the examples start the commands with flags that these accept."""

from __future__ import annotations

import ast
import os
import shlex
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
from fairseq import options

import runner
from fairseq_stochattn.optim.repulsive import Repulsive

sys.path.insert(0, str(runner.ROOT / "examples" / "repulsive"))
from plot_heads import read_accuracies

COMMANDS = (
    *("python3", "fairseq-train", "fairseq-generate", "fairseq-score", "sacremoses", "sacrebleu"),
    *("stochattn-import", "stochattn-predict", "stochattn-prepare", "stochattn-evaluate"),
)
# Stands in for every command: records its arguments and succeeds.
STUB = """#!/bin/bash
printf '%q ' "$(basename "$0")" "$@" >> "$CALLS"
echo >> "$CALLS"
"""


def calls(folder: Path, script: str, *arguments: object, **variables: str) -> list[list[str]]:
    """The commands that a script starts; no command does anything."""
    stubs, log = folder / "stubs", folder / "calls"
    stubs.mkdir(exist_ok=True)
    for name in COMMANDS:
        (stubs / name).write_text(STUB)
        (stubs / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{stubs}:{os.environ['PATH']}", "CALLS": str(log)}
    words = [runner.ROOT / "examples" / script, *arguments]
    subprocess.run(
        list(map(str, words)),
        env={**environment, **variables},
        cwd=folder,
        capture_output=True,
        check=False,  # a script ends where the first command should have left a file
        timeout=60,
    )
    return [shlex.split(line) for line in log.read_text().splitlines()]


def training(*given: object, **variables: str) -> list[str]:
    """The arguments of the only training of a script."""
    (found,) = [call for call in calls(*given, **variables) if call[0] == "fairseq-train"]
    return found


@pytest.mark.parametrize("method", ["plain", "repulsive"])
def test_wmt14_starts_with_every_optimizer(method: str, tmp_path: Path) -> None:
    """fp16 flattens the parameters, which the repulsive optimizer refuses."""
    flags = training(tmp_path, "repulsive/run.sh", "wmt14", tmp_path / "out", METHOD=method)
    assert "--fp16" in flags
    flattened = "--fp16-no-flatten-grads" not in flags
    assert flattened == (method == "plain")
    common = Namespace(fp16=True, fp16_no_flatten_grads=not flattened, memory_efficient_fp16=False)
    if method == "repulsive":
        assert flags[flags.index("--repulsive-rule") + 1] == "directions"
        ddp = Namespace(ddp_backend="legacy_ddp")
        Repulsive.refuse_impossible(Namespace(common=common, distributed_training=ddp))


def test_averaging_keeps_the_last_epochs(tmp_path: Path) -> None:
    flags = training(tmp_path, "translation/run.sh", "multi30k", tmp_path / "out", AVERAGE="5")
    assert flags[flags.index("--keep-last-epochs") + 1] == "5"
    assert "--no-epoch-checkpoints" not in flags


@pytest.mark.parametrize(
    ("variables", "arch", "start"),
    [
        ({"MODEL": "m"}, "roberta_babn", "out/imported/model.pt"),
        ({"MODEL": "m", "BACKBONE": "electra"}, "electra_babn", "out/imported/model.pt"),
        (
            {"CHECKPOINT": "c.pt", "DATA": "d", "BACKBONE": "electra"},
            "electra_babn_small",
            "c.pt",
        ),
        ({"MODEL": "albert-base", "PRESET": "albert"}, "albert_babn", "out/imported/model.pt"),
        ({"CHECKPOINT": "c.pt", "DATA": "d", "BACKBONE": "albert"}, "albert_babn_base", "c.pt"),
    ],
)
def test_fine_tuning_of_every_backbone(
    variables: dict[str, str], arch: str, start: str, tmp_path: Path
) -> None:
    """Without BACKBONE, the folder's config.json decides."""
    (tmp_path / "albert-base").mkdir()
    (tmp_path / "albert-base" / "config.json").write_text('{"model_type": "albert"}')
    found = calls(tmp_path, "glue/run.sh", "MRPC", "out", METHOD="babn", **variables)
    (flags,) = [call for call in found if call[0] == "fairseq-train"]
    assert flags[flags.index("--arch") + 1] == arch
    assert flags[flags.index("--finetune-from-model") + 1] == start
    (prepared,) = [call for call in found if "prepare_glue.py" in str(call)]
    assert prepared[prepared.index("--model-from") + 1] == variables.get("DATA", "out/imported")
    imports = [call for call in found if call[0] == "stochattn-import"]
    assert len(imports) == ("MODEL" in variables)


@pytest.mark.parametrize("rule", ["directions", "svgd"])
def test_electra_repels_the_first_layer_in_pretraining_only(rule: str, tmp_path: Path) -> None:
    found = calls(tmp_path, "repulsive/electra.sh", "out", TEXT="a.txt", TASKS="RTE", RULE=rule)
    first, second = [call for call in found if call[0] == "fairseq-train"]
    assert first[first.index("--repulsive-layers") + 1] == "first"
    assert ("--repulsive-epsilon" in first) == (rule == "svgd")
    assert not any("repulsive-" in word for word in second)
    assert second[second.index("--arch") + 1] == "electra_deterministic_small"


@pytest.mark.parametrize(("task", "base"), [("yelp", "sgd"), ("snli", "adagrad"), ("age", "sgd")])
def test_classifiers_have_the_optimizers_of_lin(task: str, base: str, tmp_path: Path) -> None:
    variables = {"METHODS": "directions", "SEEDS": "7", "GLOVE": "vectors.txt"}
    flags = training(tmp_path, "repulsive/classify.sh", task, "out", **variables)
    assert flags[flags.index("--repulsive-base") + 1] == base
    assert flags[flags.index("--arch") + 1] == f"self_attentive_{task}"
    assert flags[flags.index("--encoder-embed-path") + 1] == "vectors.txt"
    assert flags[flags.index("--seed") + 1] == "7"


@pytest.mark.parametrize(("method", "config"), [("ct", "easy_vqa"), ("babn", "vqa2")])
def test_questions_about_images_have_a_baseline(method: str, config: str, tmp_path: Path) -> None:
    """The method and the question-only model are trained alike, and evaluated side by side."""
    found = calls(tmp_path, "vqa/run.sh", "out", METHOD=method, CONFIG=config, NOISE="2")
    first, second = [call for call in found if call[0] == "fairseq-train"]
    preset = "tiny" if config == "easy_vqa" else "papers"
    name = "alignment" if method == "ct" else method
    assert first[first.index("--arch") + 1] == f"mcan_{name}_{preset}"
    assert second[second.index("--arch") + 1] == f"mcan_deterministic_{preset}"
    assert "--no-image" in second
    assert "--no-image" not in first
    for flag in ("--lr", "--batch-size", "--max-epoch", "--seed"):
        assert first[first.index(flag) + 1] == second[second.index(flag) + 1]
    if config == "vqa2":
        rates = ast.literal_eval(first[first.index("--lr") + 1])
        papers = [min(2.5e-5 * epoch, 1e-4) for epoch in range(1, 11)]
        assert rates == pytest.approx([*papers, 2e-5, 2e-5, 4e-6])
    evaluated = [call for call in found if call[0] == "stochattn-evaluate"]
    assert [call[call.index("--image-noise") + 1] for call in evaluated] == ["0", "2"]
    assert all(
        f"out/{name}/checkpoint_best.pt" in evaluated[0] for name in (method, "question-only")
    )


def test_the_sweep_reads_every_accuracy(tmp_path: Path) -> None:
    for heads, method, seed, value in (
        (1, "plain", 1, 80),
        (1, "plain", 2, 82),
        (5, "svgd", 1, 90),
    ):
        path = tmp_path / str(heads) / "age" / f"{method}.{seed}.accuracy"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")
    assert read_accuracies(tmp_path, "age") == {"plain": {1: [80, 82]}, "svgd": {5: [90]}}
    with pytest.raises(SystemExit, match=r"run heads\.sh first"):
        read_accuracies(tmp_path, "yelp")


@pytest.mark.parametrize("corpus", ["webnlg", "agenda"])
@pytest.mark.parametrize(
    "method", ["plain", "repulsive", "head_diversity", "babn", "bam", "transformer"]
)
def test_graph_to_text_trains_every_method(corpus: str, method: str, tmp_path: Path) -> None:
    """The flags are those of a model that exists; the last of a repeated flag counts."""
    flags = training(tmp_path, "graph_to_text/run.sh", corpus, tmp_path / "out", METHOD=method)
    given = options.parse_args_and_arch(options.get_training_parser(), flags[1:])
    size = 128 if corpus == "webnlg" else 500
    wanted = "translation" if method == "transformer" else "graph_to_text"
    assert (given.task, given.encoder_embed_dim) == (wanted, size)
    assert (given.optimizer == "repulsive") == (method == "repulsive")
    assert given.criterion == {
        "head_diversity": "head_diversity", "babn": "elbo", "bam": "elbo",
    }.get(method, "label_smoothed_cross_entropy")  # fmt: skip
