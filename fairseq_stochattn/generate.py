"""``stochattn-generate``: fairseq-generate, and how sure the attention is of what it wrote.

Decodes with the mean attention as fairseq-generate does, then scores every hypothesis under
``--samples`` samples of the attention. Behind each hypothesis' H-, D- and P- lines stands

    U-<id> <tab> mean <tab> spread <tab> spread of every token

the mean and the standard deviation of the sentence's log-probability over the samples and the
standard deviation of each token's, in base 2 like fairseq's own scores.
"""

from __future__ import annotations

import argparse
import builtins
import math
import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

from fairseq import tasks
from fairseq_cli import generate as fairseq_generate
from torch import nn

from fairseq_stochattn.errors import UsageError
from fairseq_stochattn.sampling import Spread, score_outputs

DEFAULT_SAMPLES = 20  # the BABN paper's
DEFAULT_MAX_TOKENS = 12_000  # fairseq-generate's


class UncertaintyPrinter:
    """Follows fairseq-generate: scores hypotheses as they come, prints them where they belong."""

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self.max_tokens = DEFAULT_MAX_TOKENS
        self.nbest = 1
        self.waiting: dict[str, deque[Spread]] = {}

    def setup_task(self, setup: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            task = setup(*args, **kwargs)
            task.inference_step = self.inference_step(task, task.inference_step)
            task.build_generator = self.build_generator(task.build_generator)
            return task

        return wrapped

    def build_generator(self, build: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(models: Any, args: Any, *more: Any, **kwargs: Any) -> Any:
            self.nbest = args.nbest
            return build(models, args, *more, **kwargs)

        return wrapped

    def inference_step(self, task: Any, step: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(
            generator: Any, models: Sequence[nn.Module], sample: dict[str, Any], **kwargs: Any
        ) -> Any:
            hypotheses = step(generator, models, sample, **kwargs)
            outputs = [
                (row, hypothesis["tokens"])
                for row, found in enumerate(hypotheses)
                for hypothesis in found[: self.nbest]
            ]
            symbols = task.target_dictionary
            spreads = iter(
                score_outputs(
                    models,
                    sample["net_input"],
                    outputs,
                    self.samples,
                    symbols.pad(),
                    symbols.eos(),
                    self.max_tokens,
                )
            )
            for number, found in zip(sample["id"].tolist(), hypotheses, strict=True):
                self.waiting[str(number)] = deque(next(spreads) for _ in found[: self.nbest])
            return hypotheses

        return wrapped

    def print(self, *values: Any, **kwargs: Any) -> None:
        """``print`` of fairseq-generate: after the P- line of a hypothesis comes its U- line."""
        builtins.print(*values, **kwargs)
        text = str(values[0]) if values else ""
        if text.startswith("P-"):
            number = text[2:].split("\t", 1)[0]
            builtins.print(line_of(number, self.waiting[number].popleft()), **kwargs)


def line_of(number: str, spread: Spread) -> str:
    bits = math.log(2)
    tokens = " ".join(f"{x / bits:.4f}" for x in spread.token_std.tolist())
    return f"U-{number}\t{spread.mean / bits:.4f}\t{spread.std / bits:.4f}\t{tokens}"


def main(argv: Sequence[str] | None = None) -> None:
    """Run fairseq-generate with its own arguments; take ``--samples`` out of them."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--samples", type=int, default=DEFAULT_SAMPLES)
    parser.add_argument("--max-tokens", type=int)
    arguments = list(sys.argv[1:] if argv is None else argv)
    own, rest = parser.parse_known_args(arguments)
    if own.samples < 1:
        raise UsageError(f"--samples must be at least 1, not {own.samples}")
    if {"-h", "--help"} & set(arguments):
        print(
            f"--samples K\tsamples of the attention, default {DEFAULT_SAMPLES}; and the flags of:"
        )
    if own.max_tokens is not None:
        rest += ["--max-tokens", str(own.max_tokens)]
    printer = UncertaintyPrinter(own.samples)
    printer.max_tokens = own.max_tokens or DEFAULT_MAX_TOKENS
    with (
        mock.patch.object(sys, "argv", ["stochattn-generate", *rest]),
        mock.patch.object(tasks, "setup_task", printer.setup_task(tasks.setup_task)),
        mock.patch.object(fairseq_generate, "print", printer.print, create=True),
    ):
        fairseq_generate.cli_main()


if __name__ == "__main__":
    main()
