"""``stochattn-generate``: fairseq-generate, with the uncertainty of every hypothesis.

It decodes with the mean attention, as fairseq-generate does, then scores each hypothesis under
``--samples`` samples of the attention. After the H-, D- and P- lines of a hypothesis it prints

    U-<id> <tab> mean <tab> spread <tab> spread of every token

These are the mean and the standard deviation over the samples of the log-probability of the
hypothesis, then the standard deviation for each token, in base 2 like fairseq's own scores.
"""

from __future__ import annotations

import builtins
import logging
import math
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from fairseq import tasks
from fairseq_cli import generate as fairseq_generate
from omegaconf import DictConfig
from torch import nn

from ..analysis.output_scores import Spread, score_outputs
from ..core.errors import InputError
from ..core.files import atomic_file
from .command import OneLineParser, command, log_level, replaced
from .generate_flags import parse_flags
from .generate_input import checked_input

DESCRIPTION = "fairseq-generate, with the uncertainty of every hypothesis."
EXAMPLE = (
    "stochattn-generate data-bin/multi30k --path checkpoints/checkpoint_best.pt \\\n"
    "    --beam 5 --remove-bpe --samples 20"
)
DEFAULT_SAMPLES = 20  # as in the BABN paper
DEFAULT_MAX_TOKENS = 12_000  # as in fairseq-generate


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Run fairseq-generate with all flags except ``--samples``, and add the U- lines."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    args, fairseq_flags = build_parser().parse_known_args(arguments)
    if args.samples < 1:
        raise InputError(f"--samples must be at least 1, not {args.samples}")
    if {"-h", "--help"} & set(arguments):
        print(f"{build_parser().format_help()}\nAll other flags are those of fairseq-generate:\n")
    config = parse_flags("stochattn-generate", fairseq_flags)
    printer = UncertaintyPrinter(args.samples, config.dataset.max_tokens or DEFAULT_MAX_TOKENS)
    with (
        log_level(logging.INFO, "fairseq", "fairseq_cli", "fairseq_stochattn"),
        checked_input(config),
        replaced(tasks, "setup_task", printer.wrap_setup_task(tasks.setup_task)),
        replaced(fairseq_generate, "print", printer.print),
        results_file(config) as output,
    ):
        fairseq_generate._main(config, output)
    return 0


@contextmanager
def results_file(config: DictConfig) -> Iterator[IO[str]]:
    """The file that ``--results-path`` asks for, or stdout. After an error there is no file."""
    folder = config.common_eval.results_path
    if folder is None:
        yield sys.stdout
        return
    Path(folder).mkdir(parents=True, exist_ok=True)
    with (
        atomic_file(Path(folder, f"generate-{config.dataset.gen_subset}.txt")) as path,
        path.open("w", buffering=1, encoding="utf-8") as file,
    ):
        yield file


def build_parser() -> OneLineParser:
    """Return the parser of the flags that this command reads; fairseq parses all others."""
    parser = OneLineParser(
        prog="stochattn-generate",
        usage="%(prog)s DATA --path CHECKPOINT [--samples K] [flags of fairseq-generate]",
        description=DESCRIPTION,
        example=EXAMPLE,
        add_help=False,
        allow_abbrev=False,
    )
    add = parser.add_argument_group("samples").add_argument
    add(
        "--samples",
        type=int,
        default=DEFAULT_SAMPLES,
        metavar="K",
        help="samples of the attention that score each hypothesis",
    )
    return parser


class UncertaintyPrinter:
    """Scores the hypotheses of fairseq-generate and prints a U- line after each P- line."""

    def __init__(self, samples: int, max_tokens: int) -> None:
        self.samples = samples
        self.max_tokens = max_tokens
        self.nbest = 1
        # Scores that were not printed yet, by sentence id.
        self.scores: dict[str, deque[Spread]] = {}

    def wrap_setup_task(self, setup_task: Callable[..., Any]) -> Callable[..., Any]:
        """Return a ``setup_task`` that also hooks into the task's generator and inference step."""

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            task = setup_task(*args, **kwargs)
            task.inference_step = self.wrap_inference_step(task, task.inference_step)
            task.build_generator = self.wrap_build_generator(task.build_generator)
            return task

        return wrapped

    def wrap_build_generator(self, build_generator: Callable[..., Any]) -> Callable[..., Any]:
        """Return a ``build_generator`` that also notes how many hypotheses will be printed."""

        def wrapped(models: Any, args: Any, *more: Any, **kwargs: Any) -> Any:
            self.nbest = args.nbest
            return build_generator(models, args, *more, **kwargs)

        return wrapped

    def wrap_inference_step(
        self, task: Any, inference_step: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Return an ``inference_step`` that also scores the hypotheses of the batch."""

        def wrapped(
            generator: Any, models: Sequence[nn.Module], sample: dict[str, Any], **kwargs: Any
        ) -> Any:
            hypotheses = inference_step(generator, models, sample, **kwargs)
            outputs = [
                (row, hypothesis["tokens"])
                for row, of_sentence in enumerate(hypotheses)
                for hypothesis in of_sentence[: self.nbest]
            ]
            dictionary = task.target_dictionary
            spreads = iter(
                score_outputs(
                    models,
                    sample["net_input"],
                    outputs,
                    self.samples,
                    dictionary.pad(),
                    dictionary.eos(),
                    self.max_tokens,
                )
            )
            for number, of_sentence in zip(sample["id"].tolist(), hypotheses, strict=True):
                self.scores[str(number)] = deque(next(spreads) for _ in of_sentence[: self.nbest])
            return hypotheses

        return wrapped

    def print(self, *values: Any, **kwargs: Any) -> None:
        """Stand in for ``print`` in fairseq-generate: add a U- line after each P- line."""
        builtins.print(*values, **kwargs)
        text = str(values[0]) if values else ""
        if text.startswith("P-"):
            number = text[2:].split("\t", 1)[0]
            builtins.print(format_line(number, self.scores[number].popleft()), **kwargs)


def format_line(number: str, spread: Spread) -> str:
    """Return the U- line of a hypothesis."""
    bits = math.log(2)
    tokens = " ".join(f"{x / bits:.4f}" for x in spread.token_std.tolist())
    return f"U-{number}\t{spread.mean / bits:.4f}\t{spread.std / bits:.4f}\t{tokens}"


if __name__ == "__main__":
    raise SystemExit(main())
