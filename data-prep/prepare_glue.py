"""GLUE: CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE and WNLI in fairseq's layout.

python data-prep/prepare_glue.py --task RTE --out data-bin/RTE [--from FOLDER] [--model-from MODEL]
Training examples: 8,551, 67,349, 3,668, 5,749, 363,846, 392,702, 104,743, 2,490 and 635.

``--task all`` makes one folder a task in --out; with --from, of the tasks that are there. FOLDER
holds TASK/train.tsv, dev.tsv and perhaps test.tsv as GLUE has them, or GLUE's zip files; for MRPC
also msr_paraphrase_train.txt, msr_paraphrase_test.txt and mrpc_dev_ids.tsv, which is what the
download brings. MNLI has two of each held-out set: valid and test are the matched ones, valid1 and
test1 the mismatched. GLUE keeps the labels of most test sets to itself: those have inputs only.

Classes: 0, 1; not_entailment, entailment; for MNLI contradiction, neutral, entailment, the order of
fairseq's roberta.large.mnli. The scores of STS-B are divided by 5, as in fairseq's recipe. The rows
of QQP that are broken over lines are dropped, as there.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from steps.command import main_of, sources
from steps.errors import PrepError
from steps.examples import Example, Shape, classes
from steps.fetch import Remote
from steps.finetuning_command import parser_for, prepare_corpus
from steps.lines import Report, TextFile
from steps.tables import read_tsv

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
ENTAILS = classes("not_entailment", "entailment", inputs=2)


@dataclass(frozen=True)
class Task:
    """Where a task's texts and labels are; ``names`` and ``more``: see ``read_tsv``."""

    archive: str
    sha256: str
    shape: Shape
    texts: tuple[str, ...] = PAIR
    label: str = "label"
    names: tuple[str, ...] = ()
    more: int = 0

    def example(self, row: dict[str, str]) -> Example:
        return [row[name] for name in self.texts], row.get(self.label)


TASKS = {
    "CoLA": Task(
        "CoLA.zip",
        "f212fcd832b8f7b435fb991f101abf89f96b933ab400603bf198960dfc32cbff",
        classes("0", "1"),
        ("sentence",),
        names=("source", "label", "mark", "sentence"),
    ),
    "SST-2": Task(
        "SST-2.zip",
        "d67e16fb55739c1b32cdce9877596db1c127dc322d93c082281f64057c16deaa",
        classes("0", "1"),
        ("sentence",),
    ),
    "MRPC": Task("", "", classes("0", "1", inputs=2), ("#1 String", "#2 String"), "Quality"),
    "STS-B": Task(
        "STS-B.zip",
        "e60a6393de5a8b5b9bac5020a1554b54e3691f9d600b775bd131e613ac179c85",
        Shape("regression", 2, highest=5.0),
        label="score",
        # The test set with scores, as its authors give it, has no header.
        names=("genre", "filename", "year", "old_index", "score", *PAIR),
        more=2,
    ),
    "QQP": Task(
        "QQP-clean.zip",
        "40e7c862c04eb26ee04b67fd900e76c45c6ba8e6d8fab4f8f1f8072a1a3fbae0",
        classes("0", "1", inputs=2),
        ("question1", "question2"),
        "is_duplicate",
    ),
    "MNLI": Task(
        "MNLI.zip",
        "e7c1d896d26ed6caf700110645df426cc2d8ebf02a5ab743d5a5c68ac1c83633",
        classes("contradiction", "neutral", "entailment", inputs=2),
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
        classes("0", "1", inputs=2),
    ),
}


def remotes_of(name: str) -> list[Remote]:
    task = TASKS[name]
    return [Remote(f"{ADDRESS}/{task.archive}", task.sha256)] if task.archive else list(MSR)


def splits_of(name: str) -> dict[str, str]:
    return MNLI_SPLITS if name == "MNLI" else SPLITS


def unpacked(name: str, folders: Sequence[Path]) -> dict[str, TextFile]:
    """The task's tables by split in the first folder that has its training table, if one has."""
    for folder in folders:
        found = {split: folder / f"{file}.tsv" for split, file in splits_of(name).items()}
        if found["train"].is_file():
            if not found["valid"].is_file():
                raise PrepError(f"{found['valid']} does not exist")
            return {split: TextFile(path) for split, path in found.items() if path.is_file()}
    return {}


def read_msr(split: str, files: dict[str, Path], report: Report) -> Iterator[dict[str, str]]:
    """MRPC as Microsoft gives it: a list of pairs of numbers says what is GLUE's dev set."""
    train, test, dev = (files[remote.name] for remote in MSR)
    rows = read_tsv(TextFile(dev), Report(), key=NUMBERS[0], names=NUMBERS)
    held_out = {tuple(row.values()) for row in rows}
    texts = TextFile(test if split == "test" else train)
    # Valid and train are one file: what cannot be read in it counts once.
    for row in read_tsv(texts, Report() if split == "valid" else report, key="Quality"):
        if split == "test" or (split == "valid") == (tuple(row[n] for n in NUMBERS) in held_out):
            yield row


def prepare_task(name: str, args: Namespace) -> None:
    task = TASKS[name]
    folders = [] if args.origin is None else [args.origin / name, args.origin]
    found = unpacked(name, folders[:1] if args.task == "all" else folders)
    files = {} if found else sources(remotes_of(name), args)
    paths = sorted({file.path for file in found.values()} | set(files.values()))
    if files and not task.archive:
        tables = {split: partial(read_msr, split, files) for split in SPLITS}
    else:
        for path in files.values():
            found = {s: TextFile(path, f"{name}/{f}.tsv") for s, f in splits_of(name).items()}
        layout = {"key": task.texts[0], "names": task.names, "more": task.more}
        tables = {split: partial(read_tsv, file, **layout) for split, file in found.items()}
    prepare_corpus(args, task.shape, paths, tables, task.example, task=name)


def is_there(name: str, origin: Path) -> bool:
    files = [origin / remote.name for remote in remotes_of(name)]
    return bool(unpacked(name, [origin / name])) or all(file.is_file() for file in files)


def run(argv: Sequence[str] | None) -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--task", choices=(*TASKS, "all"), required=True)
    args = parser.parse_args(argv)
    if args.task != "all":
        prepare_task(args.task, args)
        return
    wanted = [name for name in TASKS if args.origin is None or is_there(name, args.origin)]
    if not wanted:
        raise PrepError(f"{args.origin} has no folder and no archive of any task")
    for name in TASKS:
        print(f"{name}:" if name in wanted else f"{name}: not in {args.origin}, left out")
        if name in wanted:
            prepare_task(name, Namespace(**{**vars(args), "out": args.out / name}))


main = main_of(run)

if __name__ == "__main__":
    sys.exit(main())
