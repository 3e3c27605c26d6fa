"""Measure the accuracy of fine-tuned classifiers under greedy synonym substitution.

    python examples/asa/robustness.py DATA CHECKPOINT… --sentences SST-2/dev.tsv --synonyms FILE

DATA was made by data-prep/prepare_glue.py and contains the rules that split text into tokens. FILE
is a JSON object that maps words to lists of synonyms, such as the nearest counter-fitted vectors
(Mrkšić et al. 2016). The table has one row per checkpoint:

| column     | meaning                                                                       |
|------------|-------------------------------------------------------------------------------|
| clean %    | accuracy on the original sentences                                            |
| attacked % | accuracy under attack                                                         |
| changed %  | mean share of words that successful attacks changed                           |
| queries    | mean number of classified sentences per correctly classified original sentence |
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "data-prep")]

import fairseq_stochattn.models  # noqa: E402, F401  (registers the archs)
from fairseq_stochattn.analysis.loading import (  # noqa: E402
    DataSelection,
    chosen_device,
    load_batches,
    load_models,
)
from fairseq_stochattn.analysis.substitution import (  # noqa: E402
    Attack,
    Words,
    attack,
    summarise,
)
from fairseq_stochattn.commands.command import CPU_HELP, OneLineParser, command  # noqa: E402
from fairseq_stochattn.core.errors import InputError  # noqa: E402
from fairseq_stochattn.core.files import atomic_file  # noqa: E402
from fairseq_stochattn.tasks.kinds import labels_of  # noqa: E402
from fairseq_stochattn.tasks.labels import Classification  # noqa: E402
from steps import subwords  # noqa: E402
from steps.errors import PrepError  # noqa: E402
from steps.lines import Report, TextFile  # noqa: E402
from steps.manifest import read_manifest  # noqa: E402
from steps.tables import read_tsv  # noqa: E402

DESCRIPTION = "Measure the accuracy of fine-tuned classifiers under greedy synonym substitution."
COLUMNS = ("clean %", "attacked %", "changed %", "queries")


class WordEncoder:
    """Encodes words as token ids, in the same way as the prepared data."""

    def __init__(self, data: Path, dictionary: Any) -> None:
        recipe = (read_manifest(data) or {}).get("recipe")
        if recipe is None:
            raise InputError(f"{data} has no manifest.json of data-prep: prepare the data again")
        kind = recipe["subwords"]
        name = subwords.model_name(kind)
        self.split = subwords.applier(kind, None if name is None else data / name)
        # These subwords encode the space in front of a word, which the first word does not have.
        self.space = " " if kind in ("gpt2", "tokenizer") else ""
        self.lowercase = recipe["lowercase"]
        self.dictionary = dictionary
        self.cache: dict[str, list[int]] = {}

    def __call__(self, words: Words) -> list[int]:
        """Return the token ids of all words; None is the unknown token."""
        ids: list[int] = []
        for position, word in enumerate(words):
            ids += [self.dictionary.unk()] if word is None else self._encode(word, position > 0)
        return ids

    def _encode(self, word: str, after_space: bool) -> list[int]:
        text = (self.space if after_space else "") + (word.lower() if self.lowercase else word)
        if text not in self.cache:
            pieces = subwords.plain_pieces(self.split([text])[0]) or [subwords.UNKNOWN]
            self.cache[text] = [self.dictionary.index(piece) for piece in pieces]
        return self.cache[text]


class Model:
    """A fine-tuned checkpoint as a function from words to class probabilities."""

    def __init__(self, checkpoint: Path, data: Path, batch_size: int, cpu: bool) -> None:
        (model,), self.task, _ = load_models([str(checkpoint)], str(data), {})
        self.labels = labels_of(self.task)
        if not isinstance(self.labels, Classification) or (data / "input1").exists():
            raise InputError(f"{checkpoint} is not a classifier of single sentences")
        self.device = chosen_device(cpu)
        self.model: nn.Module = model.to(self.device)
        self.encode = WordEncoder(data, self.task.source_dictionary)
        self.batch_size = batch_size

    def tokens(self, words: Words) -> Tensor:
        """Return the token ids (T,) with the first and the last token that the task adds."""
        first = self.task.cfg.init_token
        start = [] if first is None else [first]
        longest = self.model.max_positions() - 1 - len(start)
        end = self.task.source_dictionary.eos()
        return torch.tensor([*start, *self.encode(words)[:longest], end])

    @torch.no_grad()
    def __call__(self, sentences: Sequence[Words]) -> Tensor:
        """Return class probabilities (n, classes) of n sentences."""
        pad, probabilities = self.task.source_dictionary.pad(), []
        for start in range(0, len(sentences), self.batch_size):
            rows = [self.tokens(words) for words in sentences[start : start + self.batch_size]]
            padded = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad)
            lengths = torch.tensor([len(row) for row in rows])
            inputs = {"src_tokens": padded.to(self.device), "src_lengths": lengths.to(self.device)}
            probabilities.append(self.labels.scores(self.model, {"net_input": inputs}).cpu())
        return torch.cat(probabilities)


def read_sentences(
    path: Path, classes: Sequence[str], limit: int | None, every: int
) -> list[tuple[list[str], int]]:
    """Take every ``every``-th sentence; return words and class index of the first ``limit``."""
    rows = islice(read_tsv(TextFile(path), Report(), key="sentence"), every - 1, None, every)
    sentences = [(row["sentence"].split(), row.get("label")) for row in rows][:limit]
    unknown = [label for _, label in sentences if label not in classes]
    if unknown or not sentences:
        problem = f"the label {unknown[0]}" if unknown else "no sentence"
        raise InputError(f"{path} has {problem}; the model predicts {', '.join(classes)}")
    return [(words, classes.index(label)) for words, label in sentences]


def read_synonyms(path: Path) -> dict[str, list[str]]:
    """Return the synonyms of each word."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{path} is not a JSON object of words and synonyms: {error}") from None


def check_sentences(model: Model, sentences: list[tuple], data: Path, subset: str) -> None:
    """Raise ``InputError`` unless at least 99 % of the sentences have the tokens of the subset.

    If they are split into other tokens, the attack would not measure the prepared test set.
    """
    pad, prepared = model.task.source_dictionary.pad(), {}
    selection = DataSelection(str(data), subset, batch_size=model.batch_size, skip_long=False)
    for batch in load_batches(model.task, [model.model], selection):
        for number, row in zip(batch["id"], batch["net_input"]["src_tokens"], strict=True):
            prepared[int(number)] = row[row.ne(pad)].tolist()
    same = sum(model.tokens(x).tolist() == prepared.get(i) for i, (x, _) in enumerate(sentences))
    if same < 0.99 * len(sentences):
        raise InputError(
            f"{len(sentences) - same} of {len(sentences)} sentences are not those of "
            f"{subset} in {data}: they are from another corpus, or subwords of the data span words"
        )


def attack_all(model: Model, sentences: list[tuple], args: argparse.Namespace) -> list[Attack]:
    """Attack every sentence."""
    synonyms = read_synonyms(args.synonyms)
    return [
        attack(words, label, synonyms, model, args.share)
        for words, label in tqdm(sentences, disable=None, leave=False)
    ]


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Attack every checkpoint, write the attacked sentences and print the table."""
    args = build_parser().parse_args(argv)
    if not 0 <= args.share <= 1 or min(args.batch_size, args.limit or 1, args.every) < 1:
        raise InputError("--share is within 0 and 1; --batch-size, --limit, --every are positive")
    if args.json and len(args.checkpoints) > 1:
        raise InputError("--json is for one checkpoint")
    try:
        rows = {}
        with atomic_file(args.output) if args.output else nullcontext() as file:
            lines = []
            for checkpoint in args.checkpoints:
                model = Model(checkpoint, args.data, args.batch_size, args.cpu)
                sentences = read_sentences(
                    args.sentences, model.labels.classes, args.limit, args.every
                )
                check_sentences(model, sentences, args.data, args.subset)
                attacks = attack_all(model, sentences, args)
                rows[str(checkpoint)] = summarise(attacks)
                lines += [
                    json.dumps({"checkpoint": str(checkpoint), **vars(one)}) for one in attacks
                ]
            if file is not None:
                file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    except PrepError as error:
        raise InputError(str(error)) from None
    if args.json:
        with atomic_file(args.json) as file:
            file.write_text(json.dumps(asdict(next(iter(rows.values())))), encoding="utf-8")
    width = max(map(len, rows))
    print(f"{'checkpoint':{width}}" + "".join(f"{name:>12}" for name in COLUMNS))
    for name, row in rows.items():
        figures = (100 * row.clean, 100 * row.attacked, 100 * row.changed, row.queries)
        print(f"{name:{width}}" + "".join(f"{x:12.1f}" for x in figures))
    return 0


def build_parser() -> OneLineParser:
    parser = OneLineParser(description=DESCRIPTION)
    add = parser.add_argument
    add("data", type=Path, help="data of data-prep/prepare_glue.py, with the models' dictionary")
    add("checkpoints", type=Path, nargs="+", help="models trained with --task sentence_prediction")
    add("--sentences", type=Path, required=True, help="TSV with the columns sentence and label")
    add("--synonyms", type=Path, required=True, help="JSON object: word to list of synonyms")
    add("--subset", default="valid", help="split of DATA with these sentences (default: valid)")
    add("--share", type=float, default=0.25, help="share of words that may change (default: 0.25)")
    add("--limit", type=int, metavar="N", help="use the first N sentences (default: all)")
    add("--every", type=int, default=1, metavar="N", help="use every N-th sentence, the part that "
        "prepare_glue.py --holdout N holds out (default: %(default)s)")  # fmt: skip
    add("--batch-size", type=int, default=128, help="sentences per batch (default: 128)")
    add("--output", type=Path, metavar="FILE", help="write one JSON object per attacked sentence")
    add("--json", type=Path, metavar="FILE", help="write the figures of the checkpoint to FILE")
    add("--cpu", action="store_true", help=CPU_HELP)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
