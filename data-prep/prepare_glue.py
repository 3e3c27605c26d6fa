"""Prepare GLUE: CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE and WNLI.

Example: stochattn-prepare glue --task RTE --out data-bin/RTE
In a clone, python data-prep/prepare_glue.py takes the same flags.

The tasks have 8,551, 67,349, 3,668, 5,749, 363,846, 392,702, 104,743, 2,490 and 635 training
examples.

--task all creates one folder per task in --out. With --from FOLDER it prepares the tasks in FOLDER.
FOLDER must contain TASK/train.tsv, dev.tsv and optionally test.tsv in GLUE's format, or GLUE's zip
files. For MRPC it may contain msr_paraphrase_train.txt, msr_paraphrase_test.txt and
mrpc_dev_ids.tsv instead, which are the files that this script downloads. MNLI has two validation
and two test sets: valid and test are the matched sets, valid1 and test1 the mismatched sets. GLUE
does not publish the labels of most test sets, so these sets contain only inputs. With --holdout N,
every N-th training example becomes the validation set and the development set becomes the test set,
so that settings can be chosen without it. --domains splits CoLA's development set as its authors
do: sentences from sources that the training set has (527) stay in valid, the others (516) are the
split valid_outside.

Classes: not_entailment, entailment for QNLI and RTE; contradiction, neutral, entailment (the order
of fairseq's roberta.large.mnli) for MNLI; 0, 1 for the other tasks. As in fairseq's recipe, the
scores of STS-B are divided by 5, and rows of QQP that are broken over several lines are dropped.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from steps.command import main_of, positive_int, source_files
from steps.errors import PrepError
from steps.examples import Example, TaskSpec, classification
from steps.fetch import Remote
from steps.finetuning_command import parser_for, prepare_corpus
from steps.lines import Report, TextFile
from steps.tables import Table, read_tsv

ADDRESS = "https://dl.fbaipublicfiles.com/glue/data"
SENTEVAL = "https://dl.fbaipublicfiles.com/senteval/senteval_data"
MSR = (
    Remote(
        f"{SENTEVAL}/msr_paraphrase_train.txt",
        "60a9b09084528f0673eedee2b69cb941920f0b8cd0eeccefc464a98768457f89",
    ),
    Remote(
        f"{SENTEVAL}/msr_paraphrase_test.txt",
        "a04e271090879aaba6423d65b94950c089298587d9c084bf9cd7439bd785f784",
    ),
    Remote(
        f"{ADDRESS}/mrpc_dev_ids.tsv",
        "971d7767d81b997fd9060ade0ec23c4fc31cbb226a55d1bd4a1bac474eb81dc7",
    ),
)
SPLITS = {"train": "train", "valid": "dev", "test": "test"}
MNLI_SPLITS = {
    **{"train": "train", "valid": "dev_matched", "valid1": "dev_mismatched"},
    **{"test": "test_matched", "test1": "test_mismatched"},
}
PAIR = ("sentence1", "sentence2")
NUMBERS = ("#1 ID", "#2 ID")
ENTAILS = classification("not_entailment", "entailment", inputs=2)


@dataclass(frozen=True)
class Task:
    """The archive of a task and the columns of its tables.

    ``names`` and ``extra_columns`` are passed to ``read_tsv``.
    """

    archive: str
    sha256: str
    spec: TaskSpec
    texts: tuple[str, ...] = PAIR
    label: str = "label"
    names: tuple[str, ...] = ()
    extra_columns: int = 0

    def convert(self, row: dict[str, str]) -> Example:
        return [row[name] for name in self.texts], row.get(self.label)


TASKS = {
    "CoLA": Task(
        "CoLA.zip",
        "f212fcd832b8f7b435fb991f101abf89f96b933ab400603bf198960dfc32cbff",
        classification("0", "1"),
        ("sentence",),
        names=("source", "label", "mark", "sentence"),
    ),
    "SST-2": Task(
        "SST-2.zip",
        "d67e16fb55739c1b32cdce9877596db1c127dc322d93c082281f64057c16deaa",
        classification("0", "1"),
        ("sentence",),
    ),
    "MRPC": Task("", "", classification("0", "1", inputs=2), ("#1 String", "#2 String"), "Quality"),
    "STS-B": Task(
        "STS-B.zip",
        "e60a6393de5a8b5b9bac5020a1554b54e3691f9d600b775bd131e613ac179c85",
        TaskSpec("regression", 2, highest=5.0),
        label="score",
        # The test set with scores that the authors publish has no header.
        names=("genre", "filename", "year", "old_index", "score", *PAIR),
        extra_columns=2,
    ),
    "QQP": Task(
        "QQP-clean.zip",
        "40e7c862c04eb26ee04b67fd900e76c45c6ba8e6d8fab4f8f1f8072a1a3fbae0",
        classification("0", "1", inputs=2),
        ("question1", "question2"),
        "is_duplicate",
    ),
    "MNLI": Task(
        "MNLI.zip",
        "e7c1d896d26ed6caf700110645df426cc2d8ebf02a5ab743d5a5c68ac1c83633",
        classification("contradiction", "neutral", "entailment", inputs=2),
        label="gold_label",
    ),
    "QNLI": Task(
        "QNLIv2.zip",
        "e634e78627a29adaecd4f955359b22bf5e70f2cbd93b493f2d624138a0c0e5f5",
        ENTAILS,
        ("question", "sentence"),
    ),
    "RTE": Task(
        "RTE.zip",
        "6bf86de103ecd335f3441bd43574d23fef87ecc695977a63b82d5efb206556ee",
        ENTAILS,
    ),
    "WNLI": Task(
        "WNLI.zip",
        "ae0e8e4d16f4d46d4a0a566ec7ecceccfd3fbfaa4a7a4b4e02848c0f2561ac46",
        classification("0", "1", inputs=2),
    ),
}


def remotes_of(name: str) -> list[Remote]:
    """Return the files to download for a task."""
    task = TASKS[name]
    return [Remote(f"{ADDRESS}/{task.archive}", task.sha256)] if task.archive else list(MSR)


def splits_of(name: str) -> dict[str, str]:
    """Return the file names of a task (without .tsv) by split."""
    return MNLI_SPLITS if name == "MNLI" else SPLITS


def find_tables(name: str, folders: Sequence[Path]) -> dict[str, TextFile]:
    """Return the unpacked tables of a task by split; empty if no folder has its train.tsv."""
    for folder in folders:
        paths = {split: folder / f"{file}.tsv" for split, file in splits_of(name).items()}
        if paths["train"].is_file():
            if not paths["valid"].is_file():
                raise PrepError(f"{paths['valid']} does not exist")
            return {split: TextFile(path) for split, path in paths.items() if path.is_file()}
    return {}


def read_msr(split: str, files: dict[str, Path], report: Report) -> Iterator[dict[str, str]]:
    """Yield the rows of MRPC from Microsoft's files; mrpc_dev_ids.tsv lists GLUE's dev set."""
    train, test, dev = (files[remote.name] for remote in MSR)
    rows = read_tsv(TextFile(dev), Report(), key=NUMBERS[0], names=NUMBERS)
    held_out = {tuple(row.values()) for row in rows}
    texts = TextFile(test if split == "test" else train)
    # Valid and train are in one file, so its unreadable rows are counted only for train.
    for row in read_tsv(texts, Report() if split == "valid" else report, key="Quality"):
        if not set(NUMBERS) <= set(row):
            raise PrepError(f"{texts} has no columns {' and '.join(NUMBERS)} in its first line")
        if split == "test" or (split == "valid") == (tuple(row[n] for n in NUMBERS) in held_out):
            yield row


def hold_out(tables: dict[str, Table], every: int) -> dict[str, Table]:
    """Make every n-th training example the validation set and the old validation set the test."""
    read, dev = tables["train"], tables["valid"]

    def part(held_out: bool, report: Report) -> Iterator[dict[str, str]]:
        # Valid and train are in one file, so its unreadable rows are counted only for train.
        for number, row in enumerate(read(Report() if held_out else report), 1):
            if (number % every == 0) == held_out:
                yield row

    return {"train": partial(part, False), "valid": partial(part, True), "test": dev}


def by_domain(tables: dict[str, Table]) -> dict[str, Table]:
    """Move CoLA's sentences from sources that train does not have to valid_outside."""
    known = {row["source"] for row in tables["train"](Report())}

    def part(outside: bool, report: Report) -> Iterator[dict[str, str]]:
        # Both parts are in one file, so its unreadable rows are counted only for valid.
        for row in tables["valid"](Report() if outside else report):
            if (row["source"] not in known) == outside:
                yield row

    return {**tables, "valid": partial(part, False), "valid_outside": partial(part, True)}


def prepare_task(name: str, args: Namespace) -> None:
    """Prepare one task from unpacked tables or archives in --from, or from downloads."""
    task = TASKS[name]
    folders = [] if args.origin is None else [args.origin / name, args.origin]
    text_files = find_tables(name, folders[:1] if args.task == "all" else folders)
    files = {} if text_files else source_files(remotes_of(name), args)
    paths = sorted({file.path for file in text_files.values()} | set(files.values()))
    if files and not task.archive:
        tables = {split: partial(read_msr, split, files) for split in SPLITS}
    else:
        for path in files.values():
            text_files = {s: TextFile(path, f"{name}/{f}.tsv") for s, f in splits_of(name).items()}
        read = partial(
            read_tsv, key=task.texts[0], names=task.names, extra_columns=task.extra_columns
        )
        tables = {split: partial(read, file) for split, file in text_files.items()}
    held_out = {}  # recorded only where it is used: outputs of before are still recognised
    if args.holdout:
        tables, held_out = hold_out(tables, args.holdout), {"holdout": args.holdout}
    if args.domains:
        tables, held_out = by_domain(tables), {**held_out, "domains": True}
    prepare_corpus(args, task.spec, paths, tables, task.convert, task=name, **held_out)


def is_available(name: str, origin: Path) -> bool:
    """Return whether a folder has the tables or the archives of a task."""
    files = [origin / remote.name for remote in remotes_of(name)]
    return bool(find_tables(name, [origin / name])) or all(file.is_file() for file in files)


def run(argv: Sequence[str] | None) -> None:
    parser = parser_for(__doc__)
    parser.add_argument(
        "--task", choices=(*TASKS, "all"), required=True, help="GLUE task to prepare, or all"
    )
    parser.add_argument(
        "--holdout",
        type=positive_int,
        default=0,
        metavar="N",
        help="make every N-th training example the validation set, and GLUE's development set the "
        "test set; default: GLUE's own splits",
    )
    parser.add_argument(
        "--domains",
        action="store_true",
        help="CoLA: put the sentences from other sources than those of train into valid_outside",
    )
    args = parser.parse_args(argv)
    if args.holdout == 1:
        raise PrepError("--holdout 1 leaves no training example: take 2 or more")
    if args.holdout and (args.domains or args.halve):
        raise PrepError("--holdout cannot be combined with --halve or --domains")
    if args.domains and args.task != "CoLA":
        raise PrepError("--domains is for --task CoLA, whose rows name their source")
    if args.task != "all":
        prepare_task(args.task, args)
        return
    wanted = [name for name in TASKS if args.origin is None or is_available(name, args.origin)]
    if not wanted:
        raise PrepError(f"{args.origin} has neither a folder nor an archive of any GLUE task")
    for name in TASKS:
        print(f"{name}:" if name in wanted else f"{name}: skipped, not in {args.origin}")
        if name in wanted:
            prepare_task(name, Namespace(**{**vars(args), "out": args.out / name}))


main = main_of(run)

if __name__ == "__main__":
    sys.exit(main())
