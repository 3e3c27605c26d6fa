"""Evaluates trained models with the public commands and writes the result of a run."""

from __future__ import annotations

import json
import math
import platform
import re
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from suite import Run, member_seeds
from training import ROOT, Workshop, read_result, train, training_flags

from fairseq_stochattn.core.files import atomic_file

PACKAGES = ("torch", "fairseq_stochattn", "fairseq-fixed", "numpy", "sacrebleu", "scipy")


@dataclass(frozen=True)
class Measured:
    """What the commands measured."""

    measures: dict[str, float]
    meters: dict[str, float]
    statistics: list[list[int]] | None  # of BLEU, one row per sentence
    cpu_seconds: float


def trained_folders(shop: Workshop, run: Run) -> list[Path]:
    """The folders of the models that a run needs, which are trained unless they exist."""
    method = shop.suite.methods[run.method]
    return [
        train(shop, run._replace(method=method.training, seed=seed))
        for seed in member_seeds(shop.suite, method, run.seed)
    ]


def measure(shop: Workshop, run: Run, result: Path) -> dict[str, Any]:
    """Train what the run needs, evaluate it, write ``result`` and return its content."""
    method = shop.suite.methods[run.method]
    trained = trained_folders(shop, run)
    if shop.suite.program:
        measured = Measured(numbers(read_result(trained[0])), {}, None, 0.0)
    else:
        shop.say(f"{run}: evaluating")
        measured = evaluate(shop, run, [folder / "model.pt" for folder in trained])
    times = [json.loads((folder / "training.json").read_text()) for folder in trained]
    as_written = run._replace(method=method.training)
    content = {
        "suite": run.suite,
        "task": run.task,
        "method": run.method,
        "seed": run.seed,
        "split": "valid" if run.tuning else "test",
        "settings": {
            "train": list(training_flags(shop, as_written)),
            "evaluate": list(evaluation_flags(shop, run)),
            "average": shop.suite.average,
            "start_from": shop.suite.start_from or None,
        },
        "versions": versions(),
        "commit": commit(),
        "machine": machine(),
        "seconds": sum(t["seconds"] for t in times),
        "cpu_seconds": sum(t["cpu_seconds"] for t in times),
        "evaluation_cpu_seconds": measured.cpu_seconds,
        "step_seconds": mean_or_none([t["step_seconds"] for t in times]),
        "resumed": any(t["resumed"] for t in times),
        "best_epoch": times[0]["best_epoch"],
        "epochs": times[0]["epochs"],
        "measures": measured.measures,
        "meters": measured.meters,
    }
    if measured.statistics is not None:
        content["bleu_statistics"] = measured.statistics
    result.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(result) as partial:
        partial.write_text(as_text(content), encoding="utf-8")
    return content


def evaluation_flags(shop: Workshop, run: Run) -> tuple[str, ...]:
    """The flags of stochattn-evaluate as the suite writes them."""
    suite = shop.suite
    task = suite.tasks[run.task].evaluate if run.task else ()
    split = suite.valid if run.tuning else suite.test
    return (*suite.evaluate, *split, *task, *suite.methods[run.method].evaluate)


def evaluate(shop: Workshop, run: Run, models: list[Path]) -> Measured:
    """Run stochattn-evaluate and the further commands of the suite."""
    folder = shop.folder(run.task)
    log = folder / f"{run.method}-seed{run.seed}.evaluate.log"
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        output = Path(temporary) / "evaluation.json"
        words = ["stochattn-evaluate", str(folder / "data"), "--path", *map(str, models)]
        words += [*shop.words(evaluation_flags(shop, run), run.task), *shop.device]
        words += ["--ensemble"] if len(models) > 1 else []
        cpu = shop.call([*words, "--json", str(output)], log)
        found = json.loads(output.read_text(encoding="utf-8"))["checkpoints"][0]
        measures = numbers(found["metrics"])
        if outside := found.get("out_of_domain"):
            measures |= numbers(outside["auroc"], "ood_auroc_")
            measures |= numbers(outside.get("metrics") or {}, "outside_")
        for number, extra in enumerate(shop.suite.extras):
            output = Path(temporary) / f"extra{number}.json"
            command = (*extra.command, *(extra.valid if run.tuning else extra.test))
            words = shop.words(command, run.task, model=models[0], json=output)
            cpu += shop.call([*words, *shop.device], log)
            measures |= numbers(json.loads(output.read_text(encoding="utf-8")), extra.prefix)
    return Measured(measures, numbers(found.get("meters", {})), found.get("bleu_statistics"), cpu)


def numbers(values: dict[str, Any], prefix: str = "") -> dict[str, float]:
    """The finite numbers of a JSON object."""
    return {
        f"{prefix}{name}": value
        for name, value in values.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }


def mean_or_none(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def as_text(content: dict[str, Any]) -> str:
    """JSON with one line per field, and the statistics of BLEU in one line."""
    rows = []
    for name, value in content.items():
        compact = (",", ":") if name == "bleu_statistics" else None
        rows.append(f" {json.dumps(name)}: {json.dumps(value, separators=compact)}")
    return "{\n" + ",\n".join(rows) + "\n}\n"


@cache
def versions() -> dict[str, str]:
    """The versions of Python and of the packages that results depend on."""
    return {"python": platform.python_version()} | {name: version(name) for name in PACKAGES}


@cache
def machine() -> str:
    """The processor, whose times can only be compared with those of the same one."""
    info = Path("/proc/cpuinfo")
    text = info.read_text(encoding="utf-8") if info.is_file() else ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    name = found[1] if found else platform.processor() or platform.machine()
    return f"{name}, {torch.backends.cpu.get_cpu_capability()}"


def commit() -> str:
    """The commit of the repository, with "+" if files of the package differ from it."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""

    changed = git("status", "--porcelain", "fairseq_stochattn", "data-prep")
    return (git("rev-parse", "--short=12", "HEAD") or "unknown") + ("+" if changed else "")
