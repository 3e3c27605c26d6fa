"""``stochattn-evaluate DATA --path CHECKPOINT …``: how good models are, and whether they know it.

Accuracy, BLEU or perplexity; calibration; what the samples of the attention say about uncertainty.
Prints a table with a column a checkpoint; ``--json`` writes all of it with the curves.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from fairseq import utils
from fairseq.data import encoders
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.registry import REGISTRIES
from tqdm import tqdm

from fairseq_stochattn.analysis.answering import answer, least_certain
from fairseq_stochattn.analysis.evaluate_report import (
    CheckpointReport,
    as_json,
    as_table,
    calibration,
    names_of,
    novelty,
)
from fairseq_stochattn.analysis.questions import Translating, question_of
from fairseq_stochattn.analysis.translations import Search, Translation, bleu, compare, translate
from fairseq_stochattn.errors import UsageError, require_not_negative, require_positive
from fairseq_stochattn.files import whole_file
from fairseq_stochattn.loading import (
    DataSelection,
    cause,
    chosen_device,
    load_batches,
    load_models,
    other_data,
    parse_overrides,
    warnings_only,
)
from fairseq_stochattn.metrics import library
from fairseq_stochattn.sampling import is_random

_ENCODERS = ("tokenizer", "bpe")


def main(argv: Sequence[str] | None = None) -> int:
    args = _parse(argv)
    _check(args)
    utils.import_user_module(args)
    search = Search(args.beam, args.lenpen, args.remove_bpe, _detokenizer(args))
    paths = [Path(path) for path in args.path]
    with whole_file(args.json) if args.json else nullcontext() as file, warnings_only():
        found: list[Measured] = []
        for path, name in zip(paths, names_of(paths), strict=True):
            task = found[0].task if found else None
            found.append(_measure(path, name, args, search, task))
        reports, translations = [x.report for x in found], [x.translations for x in found]
        comparable = len(found) > 1 and all(translations)
        differences = compare(translations, **_bleu_options(args)) if comparable else []
        origin = {"data": args.data, "task": found[0].task, "split": args.gen_subset}
        origin |= {"samples": args.samples, "seed": args.seed}
        result = as_json(reports, differences, **origin)
        if file is not None:
            file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(as_table(result))
    return 0


class Measured(NamedTuple):
    report: CheckpointReport
    task: str
    translations: list[Translation]  # none but of a translation model


def _measure(
    path: Path, name: str, args: argparse.Namespace, search: Search, expected: str | None
) -> Measured:
    """One checkpoint, of the ``expected`` task if there is one."""
    # The masks of a masked language model follow the seed: the same for all checkpoints.
    overrides = {**parse_overrides(args.model_overrides), "seed": args.seed}
    (model,), task, config = load_models([str(path)], args.data, overrides)
    task_name = config.task._name
    if expected not in (None, task_name):
        raise UsageError(f"{path} is of task {task_name}, the first checkpoint of {expected}")
    question = question_of(task)
    model.to(chosen_device(args.cpu), torch.float16 if args.fp16 else torch.float32)
    samples = args.samples if is_random(model, args.retain_dropout) else 0
    ask = partial(
        answer, question, model, samples=samples, max_tokens=args.max_tokens,
        dropout=args.retain_dropout,
    )  # fmt: skip
    # All copies of a batch are to fit into one pass.
    select = partial(DataSelection, limit=args.limit, batch_size=args.batch_size, skip_long=False)
    some = args.max_tokens // max(1, samples)
    batches = load_batches(task, [model], select(args.data, args.gen_subset, max_tokens=some))
    utils.set_torch_seed(args.seed)
    inside = ask(tqdm(batches, f"{name}: {args.gen_subset}", disable=None))
    outside = None
    if args.out_of_domain is not None:
        data, subset = args.out_of_domain, args.out_of_domain_subset
        with other_data(task, args.data, data):
            others = load_batches(task, [model], select(data, subset, max_tokens=some))
        found = ask(tqdm(others, f"{name}: {subset}", disable=None), labelled=False)
        outside = novelty(data, subset, inside, found)
    report = calibration(inside, question.of_tokens)
    written, signature = [], None
    if isinstance(question, Translating) and not args.no_bleu:
        whole = load_batches(
            task, [model], select(args.data, args.gen_subset, max_tokens=args.max_tokens)
        )
        written = translate(model, task, tqdm(whole, f"{name}: search", disable=None), search)
        score, signature = bleu(written, **_bleu_options(args))
        report["metrics"] = {"bleu": score, **report["metrics"]}
    return Measured(
        CheckpointReport(
            path=str(path),
            name=name,
            arch=getattr(config.model, "arch", None) or config.model._name,
            samples=samples,
            examples=sum(map(len, batches.parts)),
            predictions=len(inside.example),
            signature=signature,
            least_certain=least_certain(question, inside, batches.dataset, search.text),
            out_of_domain=outside,
            **report,
        ),
        task_name,
        written,
    )


def _bleu_options(args: argparse.Namespace) -> dict[str, Any]:
    return {"tokenize": args.sacrebleu_tokenizer, "lowercase": args.sacrebleu_lowercase}


def _detokenizer(args: argparse.Namespace) -> Callable[[str], str]:
    """What undoes the subwords and the tokenizer, as in fairseq-generate."""
    try:
        bpe, tokenizer = encoders.build_bpe(args), encoders.build_tokenizer(args)
    except Exception as error:  # a package or a file is missing
        raise UsageError(f"--tokenizer or --bpe: {cause(error)}") from None

    def decode(text: str) -> str:
        for part in (bpe, tokenizer):
            text = text if part is None else part.decode(text)
        return text

    return decode


def _check(args: argparse.Namespace) -> None:
    """What would fail after hours fails now."""
    given = [x for x in ("limit", "batch_size") if getattr(args, x) is not None]
    require_positive(args, *given, "beam", "max_tokens")
    require_not_negative(args, "samples")
    if args.json is not None and args.json.exists() and not args.force:
        raise UsageError(f"{args.json} exists: add --force to overwrite it")
    if args.out_of_domain_subset is None:
        args.out_of_domain_subset = args.gen_subset
    elif args.out_of_domain is None:
        args.out_of_domain = args.data
    if (args.out_of_domain, args.out_of_domain_subset) == (args.data, args.gen_subset):
        raise UsageError("--out-of-domain is the data itself: add --out-of-domain-subset NAME")
    for name in ("scipy.stats", "sklearn.metrics"):
        library(name)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The flags; fairseq's tokenizers and subwords bring their own."""
    parser = _parser()
    known, _ = parser.parse_known_args(argv)
    for name in _ENCODERS:
        if (choice := getattr(known, name)) is not None:
            gen_parser_from_dataclass(parser, REGISTRIES[name]["dataclass_registry"][choice]())
    return parser.parse_args(argv)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="stochattn-evaluate",
        description="How good models are, how far their probabilities can be trusted, and what "
        "samples of their attention say about it.",
    )
    add = parser.add_argument
    add("data", help="the directory of the data, as fairseq-train takes it")
    add("--path", nargs="+", required=True, metavar="CHECKPOINT", help="one or more, to compare")
    add("--samples", type=int, default=20, metavar="K", help="of the attention (default: 20)")
    add(
        "--retain-dropout",
        action="store_true",
        help="sample with dropout too, as fairseq-generate does: also for plain attention, which "
        "is asked once otherwise",
    )
    add("--gen-subset", "--valid-subset", default="valid", help="split (default: valid)")
    add("--out-of-domain", metavar="DATA", help="other data: is the model less sure of it?")
    add("--out-of-domain-subset", metavar="NAME", help="its split (default: that of --gen-subset)")
    add("--limit", type=int, metavar="N", help="only the first N examples of a set")
    add("--max-tokens", type=int, default=4000, help="tokens a pass, copies of the batch counted")
    add("--batch-size", type=int, help="most examples a batch, of which there are K copies")
    add("--json", type=Path, metavar="FILE", help="write everything measured")
    add("--force", action="store_true", help="overwrite FILE")
    add("--no-bleu", action="store_true", help="translation: no beam search")
    add("--beam", type=int, default=5, help="with the mean attention (default: 5)")
    add("--lenpen", type=float, default=1.0, help="length penalty of the search (default: 1)")
    add(
        "--remove-bpe",
        "--post-process",
        nargs="?",
        const="subword_nmt",
        help="join subwords of texts, as fairseq-generate does (e.g. sentencepiece)",
    )
    for name in _ENCODERS:
        add(
            f"--{name}",
            choices=sorted(REGISTRIES[name]["registry"]),
            help="undo it in texts; its own flags are fairseq's",
        )
    add("--sacrebleu-tokenizer", default="13a", help="sacrebleu's (default: 13a)")
    add("--sacrebleu-lowercase", action="store_true", help="BLEU of lowercased texts")
    add("--model-overrides", default="{}", help="settings of checkpoints to change, a dictionary")
    add("--user-dir", help="another plugin of fairseq")
    add("--seed", type=int, default=1, help="of samples and masks (default: 1)")
    add("--fp16", action="store_true", help="in half precision")
    add("--cpu", action="store_true", help="on the CPU where there is a GPU too")
    return parser


if __name__ == "__main__":
    sys.exit(main())
