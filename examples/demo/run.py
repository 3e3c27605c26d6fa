"""Train and judge a small German-English translation model from nothing, offline, in minutes.

Makes a corpus, cuts it into pieces, trains an architecture of this package with fairseq,
translates the test part, scores the translations, shows which of them the model is unsure of and
writes a page on the run to open in a browser.
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

from uncertainty import auroc, describe, read_doubts

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = REPOSITORY / "fairseq_stochattn"
GENERATOR = REPOSITORY / "data-prep" / "generate_numbers.py"

STEPS = ("corpus", "pieces", "binarise", "train", "translate", "score", "evaluate", "report")
SPLITS = ("train", "valid", "test")
LANGUAGES = ("de", "en")
TRAIN_SENTENCES = 12_000
SENTENCES_PER_UPDATE = 16
VOCABULARY = 800
# German writes a number as one word; cut at these, its pieces recur from number to number.
ALWAYS_A_PIECE = ("hundert", "tausend", "und")
MARKER = ".stochattn-demo"
RESULT = "result.json"
EVALUATION = "evaluation.json"
PAGE = "report.html"
LOG_LINES_SHOWN = 15
LOG_WIDTH_SHOWN = 240
SAMPLES = 20

# Small enough for one core; no dropout, which costs time and is not needed: after four epochs the
# loss on unseen sentences is that on the training part.
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
    """The demo cannot go on; the message is one line for the user."""


class StepError(Exception):
    """A command of a step failed; its log says why."""


@dataclass(frozen=True)
class Score:
    """The judgement of one set of translations; the shares count those that are right."""

    bleu: float
    signature: str
    share_unambiguous: float
    share_ambiguous: float


@dataclass
class Demo:
    """One run: where it writes, what it trains, and how long each step took."""

    out: Path
    arch: str
    epochs: int
    seed: int
    seconds: dict[str, float] = field(default_factory=dict)

    def run_step(self, name: str, action: Callable[[Path], None]) -> None:
        """Announce, time and log one step; show the end of its log if it fails."""
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
            # fairseq names all its architectures in one line when it does not know one.
            print("failed", *(line[:LOG_WIDTH_SHOWN] for line in tail), sep="\n", file=sys.stderr)
            raise DemoError(f"step {name} failed; its whole log is in {log}") from error
        self.seconds[name] = time.monotonic() - started
        # The training step has put its epochs on lines of their own.
        lead = f"{title} " if name == "train" else ""
        print(f"{lead}{self.seconds[name]:.0f} s", flush=True)

    def run_logged(
        self, command: Sequence[str], log: Path, on_line: Callable[[str], None] | None = None
    ) -> None:
        """Run a command with all its output in a log, handing on each line as it comes."""
        # For so small a model a second thread gains little on an idle machine and loses a lot on
        # a busy one, where the threads wait for each other; a choice made outside the demo wins.
        environment = {"OMP_NUM_THREADS": "1", **os.environ}
        # Each epoch is to be shown when it ends, and German must survive any locale.
        environment |= {"PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1"}
        with (
            log.open("w", encoding="utf-8") as file,
            subprocess.Popen(
                command,
                # fairseq splits paths at commas and colons: it sees only those inside the folder.
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
        size = ["--train", str(TRAIN_SENTENCES), "--seed", str(self.seed)]
        self.run_logged([sys.executable, str(GENERATOR), "--out", "corpus", *size], log)

    def cut_into_pieces(self, log: Path) -> None:
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
            user_defined_symbols=list(ALWAYS_A_PIECE),
            minloglevel=1,
        )
        cutter = sentencepiece.SentencePieceProcessor(model_file=str(pieces / "pieces.model"))
        for name in (f"{split}.{language}" for split in SPLITS for language in LANGUAGES):
            sentences = (corpus / name).read_text(encoding="utf-8").splitlines()
            lines = [" ".join(cut) for cut in cutter.encode(sentences, out_type=str)]
            (pieces / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
            with log.open("a", encoding="utf-8") as file:
                print(f"{name}: {sum(len(line.split()) for line in lines)} pieces", file=file)

    def binarise(self, log: Path) -> None:
        command = [
            *(console_command("fairseq-preprocess"), "--source-lang", "de", "--target-lang", "en"),
            *(f"--{split}pref=pieces/{split}" for split in SPLITS),
            *("--joined-dictionary", "--destdir", "data"),
        ]
        self.run_logged(command, log)

    def train(self, log: Path) -> None:
        # A rate that falls to nothing ends so short a training better than inverse_sqrt (README);
        # it has to know the number of updates beforehand.
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
            found = re.search(r"\| valid \| (\{.*\})", line)
            if found:
                figures = json.loads(found[1])
                waited = time.monotonic() - started
                print(
                    f"      epoch {figures['epoch']}/{self.epochs}: "
                    f"valid loss {figures['valid_loss']}, {waited:.0f} s so far",
                    flush=True,
                )

        self.run_logged(command, log, on_line=show_epoch)

    def translate(self, log: Path) -> None:
        # Attention without a distribution has nothing to sample: fairseq's own command then.
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
        found: dict[int, str] = {}
        for line in log.read_text(encoding="utf-8").splitlines():
            if line.startswith("D-"):
                number, _, text = line.split("\t")
                found[int(number.removeprefix("D-"))] = text
        lines = [found[number] for number in sorted(found)]
        (self.out / "translations.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def evaluate(self, log: Path) -> None:
        """Measures of uncertainty on the test part, for the page."""
        command = [
            *(console_command("stochattn-evaluate"), "data", "--gen-subset", "test"),
            *("--path", "checkpoints/checkpoint_best.pt", "--samples", str(SAMPLES)),
            *("--remove-bpe", "sentencepiece", "--json", EVALUATION, *device_options()),
        ]
        self.run_logged(command, log)

    def report(self, log: Path) -> None:
        command = [console_command("stochattn-report"), ".", "--output", PAGE, *device_options()]
        self.run_logged(command, log)

    def score(self, log: Path) -> None:
        records, translations = self.read_translations()
        score = judge(records, translations)
        seconds = {name: round(value, 1) for name, value in self.seconds.items()}
        doubts = self.read_doubts()
        result = {
            **{"arch": self.arch, "epochs": self.epochs, "seed": self.seed},
            **vars(score),
            "auroc": auroc(doubts, [x["ambiguous"] for x in records]) if doubts else None,
            "seconds": seconds,
        }
        text = json.dumps(result, indent=2)
        log.write_text(f"{text}\n", encoding="utf-8")
        (self.out / RESULT).write_text(f"{text}\n", encoding="utf-8")

    def read_translations(self) -> tuple[list[dict], list[str]]:
        lines = (self.out / "corpus" / "test.jsonl").read_text(encoding="utf-8").splitlines()
        translations = (self.out / "translations.txt").read_text(encoding="utf-8").splitlines()
        if len(lines) != len(translations):
            raise DemoError(f"{len(translations)} translations of {len(lines)} test sentences")
        return [json.loads(line) for line in lines], translations

    def read_doubts(self) -> list:
        return read_doubts((self.out / "logs" / "translate.log").read_text(encoding="utf-8"))

    def print_summary(self) -> None:
        result = json.loads((self.out / RESULT).read_text(encoding="utf-8"))
        print(f"\n{self.arch}: BLEU {result['bleu']:.1f}  ({result['signature']})")
        print(
            f"right translations: {result['share_unambiguous']:.1%} of the sentences with one "
            f"right translation,\n                    {result['share_ambiguous']:.1%} of those "
            "with several"
        )
        records, translations = self.read_translations()
        doubts = self.read_doubts()
        if doubts:
            found = result["auroc"]
            print(
                "unsure where several are right: AUROC "
                f"{found['surprise']:.2f} by the probability, {found['spread']:.2f} by its spread"
            )
            print(*describe(doubts, records, translations), sep="\n")
        print(f"{sum(self.seconds.values()):.0f} s in all; everything is in {self.out}")
        print(f"a page on this run, for your browser: {self.out / PAGE}")


def judge(records: list[dict], translations: list[str]) -> Score:
    """Score translations against the one reference (BLEU) and against all right ones (shares)."""
    import sacrebleu

    metric = sacrebleu.BLEU()
    bleu = metric.corpus_score(translations, [[record["en"] for record in records]]).score
    right: dict[bool, list[bool]] = {False: [], True: []}
    for record, translation in zip(records, translations, strict=True):
        right[record["ambiguous"]].append(translation in record["references"])
    shares = {key: sum(hits) / len(hits) for key, hits in right.items()}
    return Score(bleu, str(metric.get_signature()), shares[False], shares[True])


def is_random(arch: str) -> bool:
    """Whether an arch of ours has attention to sample from at test time."""
    from fairseq_stochattn.attention.method import METHODS

    names = [name for name, method in METHODS.items() if method.samples_at_test]
    return any(f"_{name}_" in f"{arch}_" for name in names)


def console_command(name: str) -> str:
    """Find a fairseq command beside the running Python, so that the same environment is used."""
    path = Path(sys.executable).parent / name
    if not path.is_file():
        raise DemoError(f"{name} is not installed beside {sys.executable}")
    return str(path)


def device_options() -> list[str]:
    import torch

    return [] if torch.cuda.is_available() else ["--cpu"]


def own_files(out: Path) -> list[Path]:
    """List every file a run may leave, so that a new run removes these and no others."""
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
    """Make the output folder, or clear an earlier run of the demo out of it."""
    if out.is_dir() and any(out.iterdir()):
        if not (out / MARKER).is_file():
            raise DemoError(f"{out} holds other files: give a new folder with --out")
        state = "a finished" if (out / RESULT).is_file() else "an unfinished"
        print(f"{out} holds {state} run of this demo; its files are made afresh")
        for path in own_files(out):
            path.unlink(missing_ok=True)
    (out / "logs").mkdir(parents=True, exist_ok=True)
    (out / MARKER).write_text("made by examples/demo/run.py\n", encoding="utf-8")


def positive(text: str) -> int:
    value = int(text) if text.isdecimal() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return value


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("demo-run"), help="default: %(default)s")
    parser.add_argument("--arch", default="transformer_babn", help="default: %(default)s")
    parser.add_argument("--epochs", type=positive, default=4, help="default: %(default)s")
    parser.add_argument("--seed", type=positive, default=1, help="default: %(default)s")
    arguments = parser.parse_args(argv)
    demo = Demo(arguments.out, arguments.arch, arguments.epochs, arguments.seed)
    actions = (
        *(demo.make_corpus, demo.cut_into_pieces, demo.binarise),
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
        print("\nstopped; start again to make the files afresh", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
