"""``stochattn-evaluate DATA --path CHECKPOINT …``: measure quality, calibration and uncertainty.

Prints a table with one column per checkpoint. ``--json`` writes all measures and curves.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

from fairseq.data import encoders
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.registry import REGISTRIES
from sacrebleu.metrics import BLEU

from ..analysis.detokenize import TextFormat, read_text_format
from ..analysis.evaluate_model import EvaluateSettings, Result, evaluate_model
from ..analysis.evaluate_report import as_json, as_table, names_of
from ..analysis.fairseq_errors import reading
from ..analysis.loading import parse_overrides, warnings_only
from ..analysis.translations import Search, compare
from ..core.errors import InputError, require_not_negative, require_positive
from ..core.files import atomic_file
from ..core.memory import keep_freed_memory
from ..core.optional import optional_import
from ..tasks.kinds import is_task
from .command import (
    CPU_HELP,
    DATA_HELP,
    FP16_HELP,
    OVERRIDES_HELP,
    SUBSET_HELP,
    USER_DIR_HELP,
    OneLineParser,
    command,
    load_user_dir,
    require_output,
    require_subword_kind,
    seed,
)

DESCRIPTION = (
    "Compare checkpoints on a data set: accuracy, BLEU or perplexity, calibration, and the "
    "uncertainty that samples of the attention show."
)
EXAMPLE = (
    "stochattn-evaluate data-bin/multi30k --path plain.pt babn.pt --samples 20 \\\n"
    "    --gen-subset test --json evaluation.json"
)
SAMPLES = 20  # default of --samples
_ENCODERS = ("tokenizer", "bpe")  # registries of fairseq


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Evaluate all checkpoints, write the JSON file and print the table."""
    args = parse_arguments(argv)
    _check(args)
    keep_freed_memory()
    load_user_dir(args.user_dir)
    settings = _settings(args)
    paths = [Path(path) for path in args.path]
    names = names_of(paths)
    groups = [(paths, f"ensemble of {len(paths)}")] if args.ensemble else []
    groups = groups or [([path], name) for path, name in zip(paths, names, strict=True)]
    with atomic_file(args.json) if args.json else nullcontext() as file, warnings_only():
        results: list[Result] = []
        for members, name in groups:
            first = results[0].config if results else None
            results.append(evaluate_model(members, name, settings, first))
        reports = [result.report for result in results]
        translations = [result.translations for result in results]
        comparable = len(results) > 1 and all(translations)
        differences = compare(translations, **settings.sacrebleu) if comparable else []
        task = results[0].config.task._name
        origin = {"data": args.data, "task": task, "split": args.gen_subset}
        origin |= {"samples": args.samples, "seed": args.seed}
        origin |= {} if args.image_noise is None else {"image_noise": args.image_noise}
        content = as_json(reports, differences, **origin)
        if file is not None:
            file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(as_table(content))
    return 0


def _settings(args: argparse.Namespace) -> EvaluateSettings:
    decode = detokenizer(args)
    # Read only if a translation model is evaluated, and once for all of them.
    text_format = cache(
        lambda: TextFormat() if args.tokenized_bleu else read_text_format(args.data)
    )

    def search(task: Any) -> Search:
        reads_format = is_task(task, "translation") and not args.no_bleu
        found = text_format() if reads_format else TextFormat()
        subwords = found.subwords if args.remove_bpe is args.bpe is None else args.remove_bpe
        # Explicit flags take the place of what the manifest says.
        if args.tokenizer is not None or not found.moses:
            return Search(args.beam, args.lenpen, subwords, decode)
        moses = found.detokenizer(task.cfg.target_lang)
        return Search(args.beam, args.lenpen, subwords, lambda text: moses(decode(text)))

    return EvaluateSettings(
        data=args.data,
        subset=args.gen_subset,
        samples=args.samples,
        search=search,
        dropout=args.retain_dropout,
        seed=args.seed,
        overrides=parse_overrides(args.model_overrides),
        limit=args.limit,
        max_tokens=args.max_tokens,
        batch_size=args.batch_size,
        out_of_domain=args.out_of_domain and (args.out_of_domain, args.out_of_domain_subset),
        translate=not args.no_bleu,
        sacrebleu={
            "tokenize": args.sacrebleu_tokenizer,
            "lowercase": args.sacrebleu_lowercase,
            "force": args.tokenized_bleu,  # no warning about tokens that were asked for
        },
        keep_examples=args.keep_examples,
        image_noise=args.image_noise,
        cpu=args.cpu,
        fp16=args.fp16,
    )


def detokenizer(args: argparse.Namespace) -> Callable[[str], str]:
    """Return a function that undoes --bpe and then --tokenizer, as fairseq-generate does."""
    with reading("--tokenizer or --bpe"):  # such as a missing package or file
        bpe, tokenizer = encoders.build_bpe(args), encoders.build_tokenizer(args)

    def decode(text: str) -> str:
        for encoder in (bpe, tokenizer):
            text = text if encoder is None else encoder.decode(text)
        return text

    return decode


def _check(args: argparse.Namespace) -> None:
    """Raise ``InputError`` for bad flags now, instead of after a long computation."""
    optional = [x for x in ("limit", "batch_size") if getattr(args, x) is not None]
    require_positive(args, *optional, "beam", "max_tokens")
    if args.image_noise is not None and not 0 <= args.image_noise < math.inf:
        raise InputError("--image-noise must not be negative")
    if args.ensemble and len(args.path) < 2:
        raise InputError("--ensemble: give at least two checkpoints to --path")
    if args.samples is None:
        args.samples = 0 if args.ensemble else SAMPLES
    require_not_negative(args, "samples")
    if args.retain_dropout and not args.samples:
        raise InputError("--retain-dropout: give a positive number of --samples")
    require_subword_kind(args.remove_bpe)
    with reading(f"--sacrebleu-tokenizer {args.sacrebleu_tokenizer}"):
        BLEU(tokenize=args.sacrebleu_tokenizer)
    if not math.isfinite(args.lenpen):
        raise InputError("--lenpen must be finite")
    if args.json is not None:
        require_output(args.json, "--json")
        if args.json.exists() and not args.force:
            raise InputError(f"{args.json} exists: add --force to overwrite it")
    elif args.keep_examples:
        raise InputError("--keep-examples: add --json FILE, which they are written to")
    if args.out_of_domain_subset is None:
        args.out_of_domain_subset = args.gen_subset
    elif args.out_of_domain is None:
        args.out_of_domain = args.data
    if (args.out_of_domain, args.out_of_domain_subset) == (args.data, args.gen_subset):
        raise InputError(
            "--out-of-domain is the evaluated data itself: add --out-of-domain-subset NAME"
        )
    for name in ("scipy.stats", "sklearn.metrics"):
        optional_import(name, "stochattn-evaluate")


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the flags, including those of the tokenizer and the subwords that were chosen."""
    parser = build_parser()
    known, _ = parser.parse_known_args(argv)
    for name in _ENCODERS:
        if (choice := getattr(known, name)) is not None:
            gen_parser_from_dataclass(parser, REGISTRIES[name]["dataclass_registry"][choice]())
    return parser.parse_args(argv)


def build_parser() -> OneLineParser:
    """Return the parser without the flags of fairseq's tokenizers and subwords."""
    parser = OneLineParser(prog="stochattn-evaluate", description=DESCRIPTION, example=EXAMPLE)
    parser.add_argument("data", help=DATA_HELP)
    _add_sampling(parser.add_argument_group("checkpoints and samples").add_argument)
    _add_data(parser.add_argument_group("data").add_argument)
    _add_translation(parser.add_argument_group("translation and text").add_argument)
    add = parser.add_argument_group("output").add_argument
    add("--json", type=Path, metavar="FILE", help="write all measures and curves to FILE")
    add("--force", action="store_true", help="overwrite FILE if it exists")
    add(
        "--keep-examples", "--keep-translations", action="store_true",
        help="also write the measures and the translation of every example to FILE",
    )  # fmt: skip
    add = parser.add_argument_group("device").add_argument
    add("--fp16", action="store_true", help=FP16_HELP)
    add("--cpu", action="store_true", help=CPU_HELP)
    return parser


def _add_sampling(add: Callable[..., Any]) -> None:
    add(
        "--path", nargs="+", required=True, metavar="CHECKPOINT",
        help="one or more checkpoints; the first is the one that others are compared with",
    )  # fmt: skip
    add(
        "--ensemble", action="store_true",
        help="evaluate the mean of all checkpoints as one model",
    )  # fmt: skip
    add(
        "--samples", type=int, metavar="K",
        help="samples of the attention, with --ensemble of each member; 0 uses its mean "
        f"(default: {SAMPLES}, with --ensemble 0)",
    )  # fmt: skip
    add(
        "--retain-dropout", action="store_true",
        help="sample dropout too, as fairseq-generate does; without it, a model with plain "
        "attention predicts once",
    )  # fmt: skip
    add("--seed", type=seed, default=1, help="seed of samples and masks (default: %(default)s)")
    add("--model-overrides", default="{}", metavar="DICT", help=OVERRIDES_HELP)
    add("--user-dir", metavar="DIR", help=USER_DIR_HELP)


def _add_data(add: Callable[..., Any]) -> None:
    add("--gen-subset", "--valid-subset", default="valid", metavar="NAME", help=SUBSET_HELP)
    add(
        "--out-of-domain", metavar="DATA",
        help="second data set, on which the model should be less certain",
    )  # fmt: skip
    add(
        "--out-of-domain-subset", metavar="NAME",
        help="split of the second data set (default: the split of --gen-subset)",
    )  # fmt: skip
    add("--limit", type=int, metavar="N", help="use the first N examples (default: all)")
    add(
        "--max-tokens", type=int, default=4000, metavar="N",
        help="tokens per forward pass, counting all copies of the batch (default: %(default)s)",
    )  # fmt: skip
    add(
        "--batch-size", type=int, metavar="N",
        help="examples per batch, not counting the copies (default: no limit)",
    )  # fmt: skip
    add(
        "--image-noise", type=float, metavar="S",
        help="visual question answering: standard deviation of Gaussian noise that is added to "
        "the features of the images (default: as in the training, usually 0)",
    )  # fmt: skip


def _add_translation(add: Callable[..., Any]) -> None:
    add("--no-bleu", action="store_true", help="skip the beam search, BLEU and chrF")
    add(
        "--tokenized-bleu", action="store_true",
        help="do not undo the tokenizer and the subwords that the data's manifest.json names",
    )  # fmt: skip
    add("--beam", type=int, default=5, help="beam size, with mean attention (default: %(default)s)")
    add(
        "--lenpen", type=float, default=1.0,
        help="length penalty of the beam search (default: %(default)s)",
    )  # fmt: skip
    add(
        "--remove-bpe", "--post-process", nargs="?", const="subword_nmt", metavar="KIND",
        help="join subwords of texts as fairseq-generate does, such as sentencepiece "
        "(without KIND: %(const)s)",
    )  # fmt: skip
    for name, thing in zip(_ENCODERS, ("the tokenizer", "the subwords"), strict=True):
        add(
            f"--{name}", choices=sorted(REGISTRIES[name]["registry"]),
            help=f"undo {thing} in texts; the further flags are those of fairseq",
        )  # fmt: skip
    add(
        "--sacrebleu-tokenizer", default="13a", metavar="NAME",
        help="tokenizer of sacrebleu (default: %(default)s)",
    )  # fmt: skip
    add("--sacrebleu-lowercase", action="store_true", help="lowercase the texts for BLEU")


if __name__ == "__main__":
    raise SystemExit(main())
