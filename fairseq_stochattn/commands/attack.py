"""``stochattn-attack DATA --path CHECKPOINT… --attack NAME --sentences FILE``: robustness.

The table has one row per checkpoint:

| column     | meaning                                                                    |
|------------|----------------------------------------------------------------------------|
| clean %    | accuracy on the original texts                                             |
| attacked % | accuracy under attack                                                      |
| failed %   | share of attacks that fail; texts that are classified wrongly at first are |
|            | not attacked                                                               |
| changed %  | mean share of words that successful attacks replace                        |
| queries    | mean number of texts that an attack classifies                             |
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fairseq import utils
from tqdm import tqdm

from ..analysis.attacked_model import AttackedModel, Recipe, read_examples
from ..analysis.attacks import methods
from ..analysis.attacks.checks import load_tagger, read_words
from ..analysis.attacks.search import Attack, Example, Method, attack_all
from ..analysis.attacks.stop_words import STOP_WORDS
from ..analysis.attacks.summary import Summary, summarise
from ..analysis.loading import (
    chosen_device,
    load_models,
    parse_overrides,
    require_settings,
    warnings_only,
)
from ..analysis.text_models import load_fill_mask, load_sentence_encoder
from ..core.errors import InputError
from ..core.files import atomic_file
from .command import (
    CHECKPOINT_HELP,
    CPU_HELP,
    OVERRIDES_HELP,
    SUBSET_HELP,
    USER_DIR_HELP,
    OneLineParser,
    command,
    load_user_dir,
    require_output,
    seed,
)

DESCRIPTION = "Measure the robustness of fine-tuned classifiers against changes of words."
COLUMNS = {
    "clean %": lambda row: 100 * row.clean,
    "attacked %": lambda row: 100 * row.attacked,
    "failed %": lambda row: 100 * row.failure_rate,
    "changed %": lambda row: 100 * row.changed,
    "queries": lambda row: row.queries,
}
EXAMPLE = (
    "stochattn-attack data-bin/SST-2 --path checkpoints/checkpoint_best.pt \\\n"
    "    --sentences SST-2/dev.tsv --synonyms counterfitted_neighbors.json"
)


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Attack every checkpoint, write the attacked texts and the figures, and print the table."""
    args = build_parser().parse_args(argv)
    check(args)
    load_user_dir(args.user_dir)
    recipe = Recipe(args.data)
    method = build_method(args)
    every = recipe.every(args.gen_subset) if args.every is None else args.every
    examples = read_examples(args.sentences, recipe, args.columns, args.limit, every)
    rows: dict[str, Summary] = {}
    with ExitStack() as files, warnings_only():
        output = args.output and files.enter_context(atomic_file(args.output))
        figures = args.json and files.enter_context(atomic_file(args.json))
        lines: list[str] = []
        for path in args.path:
            model = load(path, recipe, args)
            model.require_same_tokens(examples, args.data, args.gen_subset)
            attacks = attack(model, examples, method, args.seed)
            rows[path] = summarise(attacks)
            lines += [as_json(path, one, model.labels.classes) for one in attacks]
        if output:
            output.write_text("".join(lines), encoding="utf-8")
        if figures:
            text = "".join(figures_as_json(path, args.attack, row) for path, row in rows.items())
            figures.write_text(text, encoding="utf-8")
    print("\n".join(table(rows)))
    return 0


def check(args: Any) -> None:
    """Raise ``InputError`` for flags that make no sense, before anything is loaded."""
    if args.share is not None and not 0 <= args.share <= 1:
        raise InputError(f"--share {args.share:g} is not within 0 and 1")
    if args.min_similarity is not None and not -1 <= args.min_similarity <= 1:
        raise InputError(f"--min-similarity {args.min_similarity:g} is not within -1 and 1")
    if args.samples < 0:
        raise InputError(f"--samples {args.samples} must not be negative")
    for name in ("batch_size", "limit", "every", "max_candidates", "max_queries"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise InputError(f"--{name.replace('_', '-')} {value} must be positive")
    needs = {"synonyms": args.synonyms, "fill_mask": args.masked_lm}
    needed = methods.RECIPES[args.attack].needs
    if needed is not None and needs[needed] is None:
        flag = {"synonyms": "--synonyms FILE", "fill_mask": "--masked-lm FOLDER"}[needed]
        raise InputError(f"--attack {args.attack} needs {flag}")
    if args.min_similarity is not None and args.sentence_encoder is None:
        raise InputError("--min-similarity needs --sentence-encoder FOLDER")
    for flag in ("output", "json"):
        if getattr(args, flag) is not None:
            require_output(getattr(args, flag), f"--{flag}")


def build_method(args: Any) -> Method:
    """The attack that the flags describe, with its files loaded."""
    encoder = args.sentence_encoder
    words = args.stop_words
    resources = methods.Resources(
        synonyms=None if args.synonyms is None else read_words(args.synonyms, "synonyms"),
        fill_mask=None if args.masked_lm is None else load_fill_mask(args.masked_lm),
        tagger=None if args.pos is None else load_tagger(args.pos),
        encoder=None if encoder is None else load_sentence_encoder(encoder),
        stop_words=STOP_WORDS if words is None else read_word_list(words),
    )
    limits = methods.Limits(
        share=args.share,
        max_candidates=args.max_candidates,
        max_queries=args.max_queries,
        min_similarity=args.min_similarity,
        parts=args.attacked,
        seed=args.seed,
    )
    return methods.build(args.attack, resources, limits)


def read_word_list(path: Path) -> frozenset[str]:
    """The words of a text file, in lower case."""
    try:
        return frozenset(path.read_text(encoding="utf-8").lower().split())
    except UnicodeDecodeError:
        raise InputError(f"{path} cannot be read: it is not UTF-8") from None


def load(path: str, recipe: Recipe, args: Any) -> AttackedModel:
    """Load a checkpoint as the model to attack."""
    overrides = parse_overrides(args.model_overrides)
    loaded = load_models([path], str(args.data), overrides)
    require_settings(overrides, loaded.config)
    loaded.models[0].to(chosen_device(args.cpu))
    return AttackedModel(loaded, recipe, args.batch_size, args.samples)


def attack(
    model: AttackedModel, examples: Sequence[Example], method: Method, seed: int
) -> list[Attack]:
    """Attack all examples, with a progress bar; the results are in the order of the data."""
    utils.set_torch_seed(seed)
    found: Iterator[Attack] = attack_all(examples, method, model)
    bar = tqdm(found, total=len(examples), disable=None, leave=False)
    return sorted(bar, key=lambda one: one.number)


def as_json(path: str, one: Attack, classes: Sequence[str]) -> str:
    """The attack on one example as a line of JSON, with the names of the classes."""
    names = {"label": classes[one.label], "prediction": classes[one.prediction]}
    return json.dumps({"checkpoint": path, **asdict(one), **names}, ensure_ascii=False) + "\n"


def figures_as_json(path: str, name: str, row: Summary) -> str:
    """The figures of a checkpoint as a line of JSON; those that do not exist are null."""
    values = {k: None if math.isnan(v) else v for k, v in asdict(row).items()}
    return json.dumps({"checkpoint": path, "attack": name, **values}) + "\n"


def table(rows: dict[str, Summary]) -> Iterator[str]:
    """Yield the lines of the table; a dash stands for a mean over no attack."""
    width = max(map(len, ("checkpoint", *rows)))
    yield f"{'checkpoint':{width}}" + "".join(f"{name:>12}" for name in COLUMNS)
    for path, row in rows.items():
        values = [column(row) for column in COLUMNS.values()]
        cells = ("–" if math.isnan(value) else f"{value:.1f}" for value in values)
        yield f"{path:{width}}" + "".join(f"{cell:>12}" for cell in cells)


# fmt: off
def build_parser() -> OneLineParser:
    parser = OneLineParser(prog="stochattn-attack", description=DESCRIPTION, example=EXAMPLE)
    parser.add_argument("data", type=Path, help="folder that stochattn-prepare made, which has the "
        "tokenizer")
    add = parser.add_argument_group("models and texts").add_argument
    add("--path", nargs="+", required=True, metavar="CHECKPOINT", help=CHECKPOINT_HELP)
    add("--sentences", type=Path, required=True, metavar="FILE",
        help="TSV file with a header: the raw texts of the split")
    add("--columns", nargs="+", metavar="NAME", help="names of the text columns and of the label "
        "(default: those of the GLUE task that the data was prepared from)")
    add("--gen-subset", "--valid-subset", default="valid", metavar="NAME", help=SUBSET_HELP)
    add("--every", type=int, metavar="N", help="the split is every N-th row of the file (default: "
        "the N of stochattn-prepare --holdout for the validation set, else 1)")
    add("--limit", type=int, metavar="N", help="attack the first N examples (default: all)")
    add("--samples", type=int, default=0, metavar="K", help="attack the mean prediction over K "
        "samples of the attention; 0: the mean attention (default: %(default)s)")
    add("--batch-size", type=int, default=64, metavar="N",
        help="texts per batch (default: %(default)s)")
    add("--model-overrides", default="{}", metavar="DICT", help=OVERRIDES_HELP)
    add("--user-dir", metavar="DIR", help=USER_DIR_HELP)
    add("--cpu", action="store_true", help=CPU_HELP)
    add = parser.add_argument_group("attack").add_argument
    add("--attack", choices=tuple(methods.RECIPES), default="textfooler",
        help="(default: %(default)s)")
    add("--attacked", choices=methods.PARTS, default="second",
        help="which text of a pair changes (default: %(default)s)")
    add("--synonyms", type=Path, metavar="FILE", help="JSON object: word to list of synonyms, the "
        "nearest first; for greedy and textfooler, optional for textbugger")
    add("--masked-lm", type=Path, metavar="FOLDER", help="masked language model that proposes "
        "words for bae: folder of stochattn-import or of Hugging Face")
    add("--pos", metavar="nltk|FILE", help="textfooler and bae keep the part of speech, by nltk or "
        "a JSON object: word to list of possible tags (default: not checked)")
    add("--sentence-encoder", type=Path, metavar="FOLDER", help="encoder that checks whether the "
        "text stays similar, folder as for --masked-lm (default: not checked)")
    add("--min-similarity", type=float, metavar="X",
        help="least cosine of the texts before and after a change (default: textfooler 0.88, "
        "textbugger 0.8, bae 0.94)")
    add("--stop-words", type=Path, metavar="FILE",
        help="words that stay as they are (default: English function words)")
    add("--share", type=float, metavar="X",
        help="largest share of words that changes (default: greedy 0.25, else 1)")
    add("--max-candidates", type=int, metavar="N", help="largest number of candidates per word, "
        "besides misspellings (default: 50, textbugger 5)")
    add("--max-queries", type=int, metavar="N", help="largest number of texts that one attack "
        "classifies (default: no limit)")
    add("--seed", type=seed, default=1, help="seed of the misspellings and of the samples "
        "(default: %(default)s)")
    add = parser.add_argument_group("output").add_argument
    add("--output", type=Path, metavar="FILE", help="write one JSON object per example to FILE")
    add("--json", type=Path, metavar="FILE", help="write one JSON object of figures per "
        "checkpoint to FILE")
    return parser
# fmt: on


if __name__ == "__main__":
    raise SystemExit(main())
