"""Reads a suite: the data, the training flags, the methods and the measures of one experiment.

A suite is a TOML file in ``suites/``; its comments, README.md and ``suite_file.py`` explain the
fields. Commands are lists of words in which these names in braces are replaced:

- ``{root}``: the repository, ``{corpora}``: the folder of corpora;
- ``{minilm}`` as a whole word: the folder of the pretrained encoder MiniLM;
- ``{work}``: the working folder of the suite;
- ``{data}``: the folder ``data`` in ``{work}/TASK``, or in ``{work}`` if the suite has no tasks;
- ``{task}``: the name of the task;
- ``{makes}``, in ``prepare``: the path of what the command makes;
- ``{seed}``, in flags for training: the seed of the training;
- ``{model}``, in ``extra``: the model of the run (of an ensemble, the first one), ``{json}``: the
  file to write;
- ``{flags:FOLDER}`` as a whole word: the model flags in ``{work}/FOLDER/manifest.json``;
- ``{output}``, in ``program``: the folder in which it writes ``result.json``.

By default a suite trains with fairseq-train and evaluates with stochattn-evaluate. With ``program``
in ``[train]``, that script does both: it gets the flags, the split and ``--seed``, and writes an
object with the numbers it has measured.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import tomllib
from suite_file import read_content

from fairseq_stochattn.core.errors import InputError

SUITES = Path(__file__).parent / "suites"
FIRST_TUNING_SEED = 101  # results of these seeds are for choosing settings, on validation data


@dataclass(frozen=True)
class Preparation:
    """A command that makes a file or folder once, for the whole suite or for each task."""

    makes: str
    command: tuple[str, ...]
    per_task: bool = False


@dataclass(frozen=True)
class Method:
    """One row of the table.

    It is a way to train models, or another way to evaluate the models of another method.
    ``trained_as`` names the method whose trained models are evaluated. ``members`` is the number of
    models in an ensemble: for seed n these are the models of the seeds after n (then from the first
    again), without that of n.
    """

    name: str
    label: str = ""
    train: tuple[str, ...] = ()
    evaluate: tuple[str, ...] = ()
    trained_as: str = ""
    members: int = 0
    tuning: bool = False
    note: str = ""

    @property
    def training(self) -> str:
        """The name of the method whose training makes the models of this one."""
        return self.trained_as or self.name


@dataclass(frozen=True)
class Task:
    """A data set of a suite that has several."""

    name: str
    prepare: tuple[str, ...] = ()
    train: tuple[str, ...] = ()
    evaluate: tuple[str, ...] = ()


@dataclass(frozen=True)
class Extra:
    """A further command that writes a JSON object of measures to ``{json}``.

    ``test`` and ``valid`` are the flags that it gets if that split is evaluated.
    """

    command: tuple[str, ...]
    test: tuple[str, ...] = ()
    valid: tuple[str, ...] = ()
    prefix: str = ""


@dataclass(frozen=True)
class Suite:
    """Everything in the file of a suite that concerns running it; table.py reads the rest."""

    name: str
    minutes: float
    baseline: str
    seeds: tuple[int, ...]
    prepare: tuple[Preparation, ...]
    train: tuple[str, ...]
    evaluate: tuple[str, ...]
    test: tuple[str, ...]
    valid: tuple[str, ...]
    methods: dict[str, Method]
    tasks: dict[str, Task] = field(default_factory=dict)
    start_from: str = ""  # a checkpoint, relative to the working folder, that training starts from
    # Number of epochs before and after the best epoch whose parameters are averaged with it.
    average: int = 0
    extras: tuple[Extra, ...] = ()
    program: tuple[str, ...] = ()  # trains and evaluates, instead of fairseq's commands


class Run(NamedTuple):
    """One result: a method of a suite on one task with one seed."""

    suite: str
    task: str | None
    method: str
    seed: int

    @property
    def tuning(self) -> bool:
        return self.seed >= FIRST_TUNING_SEED

    def __str__(self) -> str:
        task = f"{self.task}-" if self.task else ""
        return f"{task}{self.method}-seed{self.seed}"

    def result(self, results: Path) -> Path:
        """The path of the JSON file of this run."""
        folder = results / self.suite / ("tuning" if self.tuning else "")
        return folder / f"{self}.json"


def read_suite(name: str, folder: Path = SUITES) -> Suite:
    """Return the suite of this name; ``InputError`` says what is wrong with its file."""
    path = folder / f"{name}.toml"
    if not path.is_file():
        raise InputError(f"unknown suite '{name}' (known: {', '.join(suite_names(folder))})")
    try:
        return _suite(name, read_content(path))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: {error!r}") from None


def suite_names(folder: Path = SUITES) -> list[str]:
    """The names of all suites, in alphabetical order."""
    return sorted(path.stem for path in folder.glob("*.toml"))


def _suite(name: str, content: dict[str, Any]) -> Suite:
    methods = {}
    for key in ("methods", "tuning"):
        for method, values in content.get(key, {}).items():
            values = {"tuning": key == "tuning", **values}
            methods[method] = _build(Method, {"name": method, **values})
    train, evaluate = content["train"], content["evaluate"]
    suite = Suite(
        name=name,
        minutes=content["minutes"],
        baseline=content["baseline"],
        seeds=tuple(content["seeds"]),
        prepare=tuple(_build(Preparation, values) for values in content.get("prepare", ())),
        train=tuple(train["flags"]),
        start_from=train.get("start_from", ""),
        average=train.get("average", 0),
        program=tuple(train.get("program", ())),
        evaluate=tuple(evaluate.get("flags", ())),
        test=tuple(evaluate["test"]),
        valid=tuple(evaluate["valid"]),
        methods=methods,
        tasks={
            task: _build(Task, {"name": task, **values})
            for task, values in content.get("tasks", {}).items()
        },
        extras=tuple(_build(Extra, values) for values in content.get("extra", ())),
    )
    for method in (suite.baseline, *(m.training for m in methods.values())):
        if method not in methods:
            raise ValueError(f"{method} is not one of the methods")
    return suite


def _build(kind: type, values: dict[str, Any]) -> Any:
    """Build a dataclass from a TOML table.

    Arrays become tuples; an unknown field raises ``ValueError``.
    """
    names = {f.name for f in dataclasses.fields(kind)}
    if unknown := set(values) - names:
        raise ValueError(f"{kind.__name__} has no field {', '.join(sorted(unknown))}")
    return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})


def runs_of(
    suite: Suite,
    methods: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    tasks: Sequence[str] | None = None,
) -> list[Run]:
    """All runs of a suite, or the selected ones.

    They are ordered by seed, so that methods can be compared after the first seed.
    """
    for chosen, known, thing in (
        (methods, suite.methods, "method"),
        (tasks, suite.tasks, "task"),
    ):
        for name in chosen or ():
            if name not in known:
                listed = ", ".join(known) or "none"
                raise InputError(f"{suite.name}: unknown {thing} '{name}' (known: {listed})")
    chosen_seeds = suite.seeds if seeds is None else tuple(seeds)
    names = methods or [name for name, method in suite.methods.items() if not method.tuning]
    runs = [
        Run(suite.name, task, name, seed)
        for seed in chosen_seeds
        for task in (tasks or list(suite.tasks) or [None])
        for name in names
    ]
    for run in runs:
        if suite.methods[run.method].tuning and not run.tuning:
            raise InputError(
                f"{run.method} is a variant for choosing settings: its seeds are "
                f"{FIRST_TUNING_SEED} and above, not {run.seed}"
            )
    return runs


def member_seeds(suite: Suite, method: Method, seed: int) -> list[int]:
    """The seeds of the models that one result needs: its own, or those of an ensemble."""
    if not method.members:
        return [seed]
    seeds, shown = suite.seeds, ", ".join(map(str, suite.seeds))
    if seed not in seeds:
        raise InputError(
            f"{method.name} is an ensemble: it has results only for the seeds {shown}, "
            f"not for {seed}"
        )
    if method.members >= len(seeds):
        raise InputError(
            f"{method.name} needs {method.members} other seeds of {suite.name}, "
            f"which has the seeds {shown}"
        )
    start = seeds.index(seed)
    return [seeds[(start + k) % len(seeds)] for k in range(1, method.members + 1)]
