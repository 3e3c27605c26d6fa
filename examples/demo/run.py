"""Train and evaluate a small German-English translation model, offline, in minutes.

Generates a corpus, splits it into subwords, trains an arch of this package and plain attention with
fairseq, translates the test set, compares how uncertain both models are about sentences with one
and with several correct translations, and writes an HTML page about the run.
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
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

from compare_models import Compared, compare, describe, merge, table
from folder import EVALUATION, LANGUAGES, PAGE, RESULT, SPLITS, STEPS, DemoError, prepare_folder

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = REPOSITORY / "fairseq_stochattn"
GENERATOR = REPOSITORY / "data-prep" / "generate_numbers.py"

TRAIN_SENTENCES = 12_000
SENTENCES_PER_UPDATE = 16
VOCABULARY = 800
# German writes a number as one word. These strings are always pieces of their own, so that
# different numbers share pieces.
FIXED_PIECES = ("hundert", "tausend", "und")
LOG_LINES_SHOWN = 15
LOG_WIDTH_SHOWN = 240
SAMPLES = 20

# Small enough for one core.
MODEL_OPTIONS = (
    *("--encoder-layers", "2", "--decoder-layers", "2"),
    *("--encoder-embed-dim", "128", "--decoder-embed-dim", "128"),
    *("--encoder-ffn-embed-dim", "256", "--decoder-ffn-embed-dim", "256"),
    *("--encoder-attention-heads", "8", "--decoder-attention-heads", "8"),
    "--share-all-embeddings",
)
TRAIN_OPTIONS = (
    *("--optimizer", "fused_adamw", "--adam-betas", "(0.9, 0.98)", "--clip-norm", "1.0"),
    *("--lr", "2e-3", "--lr-scheduler", "polynomial_decay", "--warmup-updates", "400"),
    *("--criterion", "elbo", "--label-smoothing", "0.1"),
    *("--batch-size", str(SENTENCES_PER_UPDATE), "--no-epoch-checkpoints"),
    *("--log-format", "json", "--log-interval", "100"),
)
DATA_OPTIONS = ("--num-workers", "0")
# Plain attention is trained with dropout, because MC dropout samples it.
PLAIN_ARCH, PLAIN_DROPOUT = "transformer_deterministic", "0.1"


@dataclass(frozen=True)
class Model:
    """A model that the demo trains. The logs of both models are in different folders."""

    name: str
    arch: str
    dropout: str
    checkpoints: str
    log: str

    @property
    def checkpoint(self) -> str:
        return f"{self.checkpoints}/checkpoint_best.pt"


class StepError(Exception):
    """A command of a step failed; the log of the step, or ``log``, contains the reason."""

    def __init__(self, message: str, log: Path | None = None) -> None:
        super().__init__(message)
        self.log = log


@dataclass
class Demo:
    """One run of the demo: its output folder, its settings, and the duration of each step."""

    out: Path
    model: Model
    plain: Model
    epochs: int
    seed: int
    seconds: dict[str, float] = field(default_factory=dict)
    running: list[subprocess.Popen] = field(default_factory=list)

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
            if isinstance(error, StepError):
                log = error.log or log
            else:
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
            self.running.append(process)
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
        self.running.remove(process)
        if process.returncode:
            raise StepError(f"{command[0]} ended with status {process.returncode}", log)

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
        """Run fairseq-train for both models at once and print one line per epoch of the first."""
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

        (self.out / self.plain.checkpoints).mkdir(exist_ok=True)
        with ThreadPoolExecutor(2) as pool:
            runs = [
                pool.submit(self.run_logged, self.training(model), self.out / model.log, on_line)
                for model, on_line in ((self.model, show_epoch), (self.plain, None))
            ]
            finished, _ = wait(runs, return_when=FIRST_EXCEPTION)
            if any(run.exception() for run in finished):
                for process in self.running:  # the other model need not be finished
                    process.terminate()
            for run in (*finished, *runs):
                run.result()

    def training(self, model: Model) -> list[str]:
        """Return the command that trains a model."""
        # In such a short training, a learning rate that falls to zero is better than inverse_sqrt
        # (README). It needs the number of updates in advance.
        updates = self.epochs * math.ceil(TRAIN_SENTENCES / SENTENCES_PER_UPDATE)
        return [
            *(console_command("fairseq-train"), "data"),
            *("--user-dir", str(PACKAGE), "--arch", model.arch, *MODEL_OPTIONS, *TRAIN_OPTIONS),
            *("--dropout", model.dropout),
            *("--max-epoch", str(self.epochs), "--total-num-update", str(updates)),
            *("--seed", str(self.seed), "--save-dir", model.checkpoints),
            *(*DATA_OPTIONS, *device_options()),
        ]

    def evaluate(self, log: Path) -> None:
        """Translate the test set with both models and measure their uncertainty about it."""
        sampled = ("--samples", str(SAMPLES))
        runs = {
            self.model.name: (self.model, sampled),
            self.plain.name: (self.plain, ("--samples", "0")),
            f"{self.plain.name}, MC dropout": (
                self.plain,
                (*sampled, "--retain-dropout", "--no-bleu"),
            ),
        }

        def run(number: int, model: Model, flags: tuple[str, ...]) -> dict:
            file = f"logs/evaluation{number}.json"
            command = [
                *(console_command("stochattn-evaluate"), "data", "--gen-subset", "test"),
                *("--path", model.checkpoint, *flags, "--remove-bpe", "sentencepiece"),
                *("--keep-examples", "--json", file, "--force", *device_options()),
            ]
            self.run_logged(command, log.with_name(f"evaluate{number}.log"))
            return json.loads((self.out / file).read_text(encoding="utf-8"))

        with ThreadPoolExecutor(2) as pool:
            found = list(pool.map(lambda job: run(job[0], *job[1]), enumerate(runs.values(), 1)))
        lines = (self.out / "corpus" / "test.jsonl").read_text(encoding="utf-8").splitlines()
        records = [json.loads(line) for line in lines]
        evaluation = merge(dict(zip(runs, found, strict=True)), records)
        compared = compare(evaluation, records)
        examples = evaluation["checkpoints"][0]["per_example"]["hypothesis"]
        write(self.out / "translations.txt", "\n".join(examples))
        write(self.out / EVALUATION, json.dumps(evaluation))
        seconds = {name: round(value, 1) for name, value in self.seconds.items()}
        result = {"arch": self.model.arch, "epochs": self.epochs, "seed": self.seed}
        result |= {"models": {name: vars(row) for name, row in compared.items()}}
        write(self.out / RESULT, json.dumps({**result, "seconds": seconds}, indent=2))

    def report(self, log: Path) -> None:
        """Write the HTML page."""
        command = [console_command("stochattn-report"), ".", "--output", PAGE, *device_options()]
        self.run_logged(command, log)

    def print_summary(self) -> None:
        """Print the scores of all models, and the least certain predictions of the first."""
        result = json.loads((self.out / RESULT).read_text(encoding="utf-8"))
        compared = {name: Compared(**row) for name, row in result["models"].items()}
        evaluation = json.loads((self.out / EVALUATION).read_text(encoding="utf-8"))
        print("", *table(compared), *describe(evaluation["checkpoints"][0]), sep="\n")
        print(f"{sum(self.seconds.values()):.0f} s in total; all files are in {self.out}")
        print(f"a page about this run, for your browser: {self.out / PAGE}")


def write(path: Path, text: str) -> None:
    path.write_text(f"{text}\n", encoding="utf-8")


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
    model = Model(args.arch, args.arch, "0", "checkpoints", "logs/train.log")
    plain = Model("plain attention", PLAIN_ARCH, PLAIN_DROPOUT, "plain", "plain/train.log")
    demo = Demo(args.out, model, plain, args.epochs, args.seed)
    actions = (
        *(demo.make_corpus, demo.split_into_pieces, demo.binarise),
        *(demo.train, demo.evaluate, demo.report),
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
