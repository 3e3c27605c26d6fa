"""The output folder of the demo: which files a run writes, and how a new run replaces them."""

from __future__ import annotations

from pathlib import Path

STEPS = ("corpus", "pieces", "binarise", "train", "evaluate", "report")
SPLITS = ("train", "valid", "test")
LANGUAGES = ("de", "en")
MARKER = ".stochattn-demo"
RESULT = "result.json"
EVALUATION = "evaluation.json"
PAGE = "report.html"


class DemoError(Exception):
    """An error that ends the demo; its message is one line for the user."""


def own_files(out: Path) -> list[Path]:
    """Return every file that a run may write, so that a new run removes only these."""
    texts = [f"{split}.{language}" for split in SPLITS for language in LANGUAGES]
    binaries = [f"{split}.de-en.{language}" for split in SPLITS for language in LANGUAGES]
    checkpoints = ["checkpoint_best.pt", "checkpoint_last.pt"]
    evaluations = [name for n in (1, 2, 3) for name in (f"evaluate{n}.log", f"evaluation{n}.json")]
    names = {
        "corpus": [*texts, "valid.jsonl", "test.jsonl"],
        "pieces": [*texts, "pieces.model", "pieces.vocab"],
        "data": [
            *("dict.de.txt", "dict.en.txt", "preprocess.log"),
            *(f"{name}.{ending}" for name in binaries for ending in ("bin", "idx")),
        ],
        "checkpoints": checkpoints,
        "plain": [*checkpoints, "train.log"],
        "logs": [*(f"{step}.log" for step in STEPS), *evaluations],
        ".": ["translations.txt", RESULT, EVALUATION, PAGE],
    }
    return [out / folder / name for folder, files in names.items() for name in files]


def prepare_folder(out: Path) -> None:
    """Create the output folder, or remove the files of an earlier run from it."""
    if out.is_dir() and any(out.iterdir()):
        if not (out / MARKER).is_file():
            raise DemoError(f"{out} contains other files: give a new folder with --out")
        state = "a finished" if (out / RESULT).is_file() else "an unfinished"
        print(f"{out} contains {state} run of this demo, which is replaced")
        for path in own_files(out):
            path.unlink(missing_ok=True)
    (out / "logs").mkdir(parents=True, exist_ok=True)
    (out / MARKER).write_text("made by examples/demo/run.py\n", encoding="utf-8")
