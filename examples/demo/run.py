"""Train and evaluate a small German-English translation model, offline, in minutes.

Generates a corpus, splits it into subwords, trains an arch of this package with fairseq, translates
the test set, scores the translations, shows the translations that the model is least certain of,
and writes an HTML page about the run.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shlex
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from translations import score_translations

from uncertainty import Uncertainty, auroc, describe, read_uncertainties

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = REPOSITORY / "fairseq_stochattn"
GENERATOR = REPOSITORY / "data-prep" / "generate_numbers.py"

STEPS = ("corpus", "pieces", "binarise", "train", "translate", "score", "evaluate", "report")
SPLITS = ("train", "valid", "test")
LANGUAGES = ("de", "en")
TRAIN_SENTENCES = 12_000
SENTENCES_PER_UPDATE = 16
VOCABULARY = 800
# German writes a number as one word. These strings are always pieces of their own, so that
# different numbers share pieces.
FIXED_PIECES = ("hundert", "tausend", "und")
MARKER = ".stochattn-demo"
RESULT = "result.json"
EVALUATION = "evaluation.json"
PAGE = "report.html"
LOG_LINES_SHOWN = 15
LOG_WIDTH_SHOWN = 240
SAMPLES = 20

# Small enough for one core. Without dropout, which takes time and is not needed: after four epochs
# the validation loss equals the training loss.
MODEL_OPTIONS = (
    *("--encoder-layers", "2", "--decoder-layers", "2"),
    *("--encoder-embed-dim", "128", "--decoder-embed-dim", "128"),
    *("--encoder-ffn-embed-dim", "256", "--decoder-ffn-embed-dim", "256"),
    *("--encoder-attention-heads", "8", "--decoder-attention-heads", "8"),
    *("--share-all-embeddings", "--dropout", "0.0"),
)
TRAIN_OPTIONS = (
    *("--optimizer", "adam", "--adam-betas", "(0.9, 0.98)", "--clip-norm", "1.0"),
    *("--lr", "2e-3", "--lr-scheduler", "polynomial_decay", "--warmup-updates", "400"),
    *("--criterion", "elbo", "--label-smoothing", "0.1", "--kl-anneal-updates", "1000"),
    *("--batch-size", str(SENTENCES_PER_UPDATE), "--no-epoch-checkpoints"),
    *("--log-format", "json", "--log-interval", "100"),
)
DATA_OPTIONS = ("--num-workers", "0")


class DemoError(Exception):
    """An error that ends the demo; its message is one line for the user."""


class StepError(Exception):
    """A command of a step failed; the log of the step contains the reason."""


@dataclass
class Demo:
    """One run of the demo: its output folder, its settings, and the duration of each step."""

    out: Path
    arch: str
    epochs: int
    seed: int
    seconds: dict[str, float] = field(default_factory=dict)

    def run_step(self, name: str, action: Callable[[Path], None]) -> None:
        """Run one step, print its duration, and print the end of its log if it fails."""
        title = f"[{STEPS.index(name) + 1}/{len(STEPS)}] {name} …"
        log = self.out / "logs" / f"{name}.log"
        log.write_text("", encoding="utf-8")
        print(title, end=" ", flush=True)
        started = time.monotonic()
        try:
            action(log)
        except Exception as error:
            if not isinstance(error, StepError):
                with log.open("a", encoding="utf-8") as file:
                    traceback.print_exc(file=file)
            tail = log.read_text(encoding="utf-8").splitlines()[-LOG_LINES_SHOWN:]
            # Lines are cut because fairseq lists all archs in one line if an arch is unknown.
            print("failed", *(line[:LOG_WIDTH_SHOWN] for line in tail), sep="\n", file=sys.stderr)
            raise DemoError(f"step {name} failed; its whole log is in {log}") from error
        self.seconds[name] = time.monotonic() - started
        # The training step has printed lines, one per epoch, so its title is repeated.
        prefix = f"{title} " if name == "train" else ""
        print(f"{prefix}{self.seconds[name]:.0f} s", flush=True)

    def run_logged(
        self, command: Sequence[str], log: Path, on_line: Callable[[str], None] | None = None
    ) -> None:
        """Run a command, write its output to a log, and call ``on_line`` for each line."""
        # A second thread gains little for such a small model, and costs a lot on a busy machine,
        # where the threads wait for each other. A value set by the user has priority.
        environment = {"OMP_NUM_THREADS": "1", **os.environ}
        # Unbuffered to show each epoch when it ends; UTF-8 for German in any locale.
        environment |= {"PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1"}
        with (
            log.open("w", encoding="utf-8") as file,
            subprocess.Popen(
                command,
                # Relative paths, because fairseq splits paths at commas and colons.
                cwd=self.out,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                errors="replace",
            ) as process,
        ):
            print("$", shlex.join(command), file=file)
            try:
                for line in process.stdout:
                    file.write(line)
                    file.flush()
                    if on_line:
                        on_line(line)
            except BaseException:
                process.terminate()
                raise
        if process.returncode:
            raise StepError(f"{command[0]} ended with status {process.returncode}")

    def make_corpus(self, log: Path) -> None:
        """Generate the corpus."""
        size = ["--train", str(TRAIN_SENTENCES), "--seed", str(self.seed)]
        self.run_logged([sys.executable, str(GENERATOR), "--out", "corpus", *size], log)

    def split_into_pieces(self, log: Path) -> None:
        """Train sentencepiece on both languages and split all texts."""
        import sentencepiece

        corpus, pieces = self.out / "corpus", self.out / "pieces"
        pieces.mkdir(exist_ok=True)
        texts = [(corpus / f"train.{name}").read_text(encoding="utf-8") for name in LANGUAGES]
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter("".join(texts).splitlines()),
            model_prefix=str(pieces / "pieces"),
            vocab_size=VOCABULARY,
            character_coverage=1.0,
            split_digits=True,
            user_defined_symbols=list(FIXED_PIECES),
            minloglevel=1,
        )
        splitter = sentencepiece.SentencePieceProcessor(model_file=str(pieces / "pieces.model"))
        for name in (f"{split}.{language}" for split in SPLITS for language in LANGUAGES):
            sentences = (corpus / name).read_text(encoding="utf-8").splitlines()
            lines = [" ".join(row) for row in splitter.encode(sentences, out_type=str)]
            (pieces / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
            with log.open("a", encoding="utf-8") as file:
                print(f"{name}: {sum(len(line.split()) for line in lines)} pieces", file=file)

    def binarise(self, log: Path) -> None:
        """Run fairseq-preprocess."""
        command = [
            *(console_command("fairseq-preprocess"), "--source-lang", "de", "--target-lang", "en"),
            *(f"--{split}pref=pieces/{split}" for split in SPLITS),
            *("--joined-dictionary", "--destdir", "data"),
        ]
        self.run_logged(command, log)

    def train(self, log: Path) -> None:
        """Run fairseq-train and print one line per epoch."""
        # In such a short training, a learning rate that falls to zero is better than inverse_sqrt
        # (README). It needs the number of updates in advance.
        updates = self.epochs * math.ceil(TRAIN_SENTENCES / SENTENCES_PER_UPDATE)
        command = [
            *(console_command("fairseq-train"), "data"),
            *("--user-dir", str(PACKAGE), "--arch", self.arch, *MODEL_OPTIONS, *TRAIN_OPTIONS),
            *("--max-epoch", str(self.epochs), "--total-num-update", str(updates)),
            *("--seed", str(self.seed)),
            *("--save-dir", "checkpoints", *DATA_OPTIONS, *device_options()),
        ]
        started = time.monotonic()
        print()

        def show_epoch(line: str) -> None:
            match = re.search(r"\| valid \| (\{.*\})", line)
            if match:
                row = json.loads(match[1])
                seconds = time.monotonic() - started
                print(
                    f"      epoch {row['epoch']}/{self.epochs}: "
                    f"valid loss {row['valid_loss']}, {seconds:.0f} s so far",
                    flush=True,
                )

        self.run_logged(command, log, on_line=show_epoch)

    def translate(self, log: Path) -> None:
        """Translate the test set and write the translations in the order of the sentences."""
        # stochattn-generate needs random attention; for other archs fairseq-generate is used.
        sampled = is_random(self.arch)
        program = "stochattn-generate" if sampled else "fairseq-generate"
        command = [
            *(console_command(program), "data", "--user-dir", str(PACKAGE)),
            *(("--samples", str(SAMPLES)) if sampled else ()),
            *("--path", "checkpoints/checkpoint_best.pt"),
            *("--beam", "5", "--remove-bpe", "sentencepiece", "--batch-size", "100"),
            *(*DATA_OPTIONS, *device_options()),
        ]
        self.run_logged(command, log)
        translations: dict[int, str] = {}
        for line in log.read_text(encoding="utf-8").splitlines():
            if line.startswith("D-"):
                number, _, text = line.split("\t")
                translations[int(number.removeprefix("D-"))] = text
        lines = [translations[number] for number in sorted(translations)]
        (self.out / "translations.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def evaluate(self, log: Path) -> None:
        """Measure the uncertainty on the test set, for the page."""
        command = [
            *(console_command("stochattn-evaluate"), "data", "--gen-subset", "test"),
            *("--path", "checkpoints/checkpoint_best.pt", "--samples", str(SAMPLES)),
            *("--remove-bpe", "sentencepiece", "--json", EVALUATION, *device_options()),
        ]
        self.run_logged(command, log)

    def report(self, log: Path) -> None:
        """Write the HTML page."""
        command = [console_command("stochattn-report"), ".", "--output", PAGE, *device_options()]
        self.run_logged(command, log)

    def score(self, log: Path) -> None:
        """Score the translations and write result.json."""
        records, translations = self.read_translations()
        score = score_translations(records, translations)
        seconds = {name: round(value, 1) for name, value in self.seconds.items()}
        uncertainties = self.read_uncertainties()
        labels = [record["ambiguous"] for record in records]
        result = {
            **{"arch": self.arch, "epochs": self.epochs, "seed": self.seed},
            **vars(score),
            "auroc": auroc(uncertainties, labels) if uncertainties else None,
            "seconds": seconds,
        }
        text = json.dumps(result, indent=2)
        log.write_text(f"{text}\n", encoding="utf-8")
        (self.out / RESULT).write_text(f"{text}\n", encoding="utf-8")

    def read_translations(self) -> tuple[list[dict], list[str]]:
        """Return the records of the test set and their translations."""
        lines = (self.out / "corpus" / "test.jsonl").read_text(encoding="utf-8").splitlines()
        translations = (self.out / "translations.txt").read_text(encoding="utf-8").splitlines()
        if len(lines) != len(translations):
            raise DemoError(f"there are {len(translations)} translations of {len(lines)} sentences")
        return [json.loads(line) for line in lines], translations

    def read_uncertainties(self) -> list[Uncertainty]:
        """Return the uncertainty of each translation, an empty list for plain attention."""
        return read_uncertainties((self.out / "logs" / "translate.log").read_text(encoding="utf-8"))

    def print_summary(self) -> None:
        """Print the scores, and the translations with the least and the most certainty."""
        result = json.loads((self.out / RESULT).read_text(encoding="utf-8"))
        print(f"\n{self.arch}: BLEU {result['bleu']:.1f}  ({result['signature']})")
        print(
            f"correct translations: {result['share_unambiguous']:.1%} of the sentences with one "
            f"correct translation,\n                      {result['share_ambiguous']:.1%} of those "
            "with several"
        )
        records, translations = self.read_translations()
        uncertainties = self.read_uncertainties()
        if uncertainties:
            values = result["auroc"]
            print(
                "less certain if several are correct: AUROC "
                f"{values['surprise']:.2f} by the probability, {values['spread']:.2f} by its spread"
            )
            print(*describe(uncertainties, records, translations), sep="\n")
        print(f"{sum(self.seconds.values()):.0f} s in total; all files are in {self.out}")
        print(f"a page about this run, for your browser: {self.out / PAGE}")


def is_random(arch: str) -> bool:
    """Return whether the attention of an arch can be sampled at test time."""
    import fairseq_stochattn.methods  # noqa: F401  (registers all methods)
    from fairseq_stochattn.core.method import METHODS

    names = [name for name, method in METHODS.items() if method.samples_at_test]
    return any(f"_{name}_" in f"{arch}_" for name in names)


def console_command(name: str) -> str:
    """Return the path of a command in the environment of the running Python."""
    path = Path(sys.executable).parent / name
    if not path.is_file():
        raise DemoError(f"{name} is not installed next to {sys.executable}")
    return str(path)


def device_options() -> list[str]:
    """Return the flag for the CPU if there is no GPU."""
    import torch

    return [] if torch.cuda.is_available() else ["--cpu"]


def own_files(out: Path) -> list[Path]:
    """Return every file that a run may write, so that a new run removes only these."""
    texts = [f"{split}.{language}" for split in SPLITS for language in LANGUAGES]
    binaries = [f"{split}.de-en.{language}" for split in SPLITS for language in LANGUAGES]
    names = {
        "corpus": [*texts, "valid.jsonl", "test.jsonl"],
        "pieces": [*texts, "pieces.model", "pieces.vocab"],
        "data": [
            *("dict.de.txt", "dict.en.txt", "preprocess.log"),
            *(f"{name}.{ending}" for name in binaries for ending in ("bin", "idx")),
        ],
        "checkpoints": ["checkpoint_best.pt", "checkpoint_last.pt"],
        "logs": [f"{step}.log" for step in STEPS],
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


def positive(text: str) -> int:
    """Parse an integer of at least 1."""
    value = int(text) if text.isdecimal() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return value


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--out", type=Path, default=Path("demo-run"), help="output folder (default: %(default)s)")
    add("--arch", default="transformer_babn", help="arch to train (default: %(default)s)")
    add("--epochs", type=positive, default=4, help="epochs of training (default: %(default)s)")
    add("--seed", type=positive, default=1, help="seed of corpus and training (default: 1)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run all steps and print the summary."""
    args = build_parser().parse_args(argv)
    demo = Demo(args.out, args.arch, args.epochs, args.seed)
    actions = (
        *(demo.make_corpus, demo.split_into_pieces, demo.binarise),
        *(demo.train, demo.translate, demo.score, demo.evaluate, demo.report),
    )
    try:
        prepare_folder(demo.out)
        for name, action in zip(STEPS, actions, strict=True):
            demo.run_step(name, action)
        demo.print_summary()
    except (DemoError, OSError) as error:
        print(f"run.py: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped; the next run replaces the files of this one", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
