"""Accuracy of fine-tuned classifiers under greedy synonym substitution, one row a checkpoint.

    python examples/asa/robustness.py DATA CHECKPOINT… --sentences SST-2/dev.tsv --synonyms FILE

DATA was made by data-prep/prepare_glue.py, and says how text becomes tokens. FILE is a JSON object
of words and their synonyms, e.g. the nearest counter-fitted vectors (Mrkšić et al. 2016). The
table has the accuracy on the sentences as they are and under attack, the mean share of words
changed where the attack succeeded, and how many sentences the model was asked about for one that it
had right.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "data-prep")]

import fairseq_stochattn  # noqa: E402, F401  (registers the archs)
from fairseq_stochattn.analysis.substitution import (  # noqa: E402
    Attack,
    Words,
    attack,
    summarise,
)
from fairseq_stochattn.errors import UsageError  # noqa: E402
from fairseq_stochattn.files import whole_file  # noqa: E402
from fairseq_stochattn.loading import DataSelection, load_batches, load_models  # noqa: E402
from fairseq_stochattn.predictions import Classification, kind_of  # noqa: E402
from steps import subwords  # noqa: E402
from steps.errors import PrepError  # noqa: E402
from steps.lines import Report, TextFile  # noqa: E402
from steps.manifest import read_manifest  # noqa: E402
from steps.tables import read_tsv  # noqa: E402

COLUMNS = ("clean %", "attacked %", "changed %", "queries")


class Cutter:
    """Words into the numbers of their subwords, as the prepared data has them."""

    def __init__(self, data: Path, dictionary: Any) -> None:
        recipe = (read_manifest(data) or {}).get("recipe")
        if recipe is None:
            raise UsageError(f"{data} has no manifest of data-prep, which says how to cut text")
        kind = recipe["subwords"]
        name = subwords.model_name(kind)
        self.cut = subwords.applier(kind, None if name is None else data / name)
        # Such subwords tell a word inside a line from the first by the space before it.
        self.space = " " if kind in ("gpt2", "tokenizer") else ""
        self.lowercase = recipe["lowercase"]
        self.dictionary = dictionary
        self.known: dict[str, list[int]] = {}

    def __call__(self, words: Words) -> list[int]:
        numbers: list[int] = []
        for position, word in enumerate(words):
            numbers += [self.dictionary.unk()] if word is None else self._word(word, position > 0)
        return numbers

    def _word(self, word: str, inside: bool) -> list[int]:
        text = (self.space if inside else "") + (word.lower() if self.lowercase else word)
        if text not in self.known:
            pieces = subwords.plain_pieces(self.cut([text])[0]) or [subwords.UNKNOWN]
            self.known[text] = [self.dictionary.index(piece) for piece in pieces]
        return self.known[text]


class Model:
    """A fine-tuned checkpoint as a function from words to probabilities."""

    def __init__(self, checkpoint: Path, data: Path, batch_size: int, cpu: bool) -> None:
        (model,), self.task, _ = load_models([str(checkpoint)], str(data), {})
        self.kind = kind_of(self.task)
        if not isinstance(self.kind, Classification) or (data / "input1").exists():
            raise UsageError("only classifiers of single sentences can be attacked")
        self.device = "cuda" if torch.cuda.is_available() and not cpu else "cpu"
        self.model: nn.Module = model.to(self.device)
        self.cut = Cutter(data, self.task.source_dictionary)
        self.batch_size = batch_size

    def tokens(self, words: Words) -> Tensor:
        """(T,): first token and end as the task puts them."""
        first = self.task.cfg.init_token
        longest = self.model.max_positions() - 1 - (first is not None)
        end = self.task.source_dictionary.eos()
        start = [] if first is None else [first]
        return torch.tensor([*start, *self.cut(words)[:longest], end])

    @torch.no_grad()
    def __call__(self, sentences: Sequence[Words]) -> Tensor:
        pad, found = self.task.source_dictionary.pad(), []
        for start in range(0, len(sentences), self.batch_size):
            rows = [self.tokens(words) for words in sentences[start : start + self.batch_size]]
            padded = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad)
            lengths = torch.tensor([len(row) for row in rows])
            inputs = {"src_tokens": padded.to(self.device), "src_lengths": lengths.to(self.device)}
            found.append(self.kind.scores(self.model, {"net_input": inputs}).cpu())
        return torch.cat(found)


def read_sentences(path: Path, classes: Sequence[str], limit: int | None) -> list[tuple]:
    """Words and the number of the label, of the first sentences."""
    rows = read_tsv(TextFile(path), Report(), key="sentence")
    found = [(row["sentence"].split(), row.get("label")) for row in rows][:limit]
    strange = [label for _, label in found if label not in classes]
    if strange or not found:
        what = f"the label {strange[0]}" if strange else "no sentence"
        raise UsageError(f"{path} has {what}; the model predicts {', '.join(classes)}")
    return [(words, classes.index(label)) for words, label in found]


def read_synonyms(path: Path) -> dict[str, list[str]]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(f"{path} is no JSON object of words and synonyms: {error}") from None


def check_data(model: Model, sentences: list[tuple], data: Path, subset: str) -> None:
    """Words that are cut otherwise than when the data was made would be another test set."""
    pad, prepared = model.task.source_dictionary.pad(), {}
    chosen = DataSelection(str(data), subset, batch_size=model.batch_size, skip_long=False)
    for sample in load_batches(model.task, [model.model], chosen):
        for number, row in zip(sample["id"], sample["net_input"]["src_tokens"], strict=True):
            prepared[int(number)] = row[row.ne(pad)].tolist()
    same = sum(model.tokens(x).tolist() == prepared.get(i) for i, (x, _) in enumerate(sentences))
    if same < 0.99 * len(sentences):
        raise UsageError(
            f"{len(sentences) - same} of {len(sentences)} sentences are not those of "
            f"{subset} in {data}: another corpus, or words that its subwords cut together"
        )


def attack_all(model: Model, sentences: list[tuple], args: argparse.Namespace) -> list[Attack]:
    synonyms = read_synonyms(args.synonyms)
    return [
        attack(words, label, synonyms, model, args.share)
        for words, label in tqdm(sentences, disable=None, leave=False)
    ]


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    if not 0 <= args.share <= 1 or args.batch_size < 1 or (args.limit or 1) < 1:
        raise UsageError("--share is within 0 and 1; --batch-size and --limit are positive")
    try:
        rows = {}
        with whole_file(args.output) if args.output else nullcontext() as path:
            lines = []
            for checkpoint in args.checkpoints:
                model = Model(checkpoint, args.data, args.batch_size, args.cpu)
                sentences = read_sentences(args.sentences, model.kind.classes, args.limit)
                check_data(model, sentences, args.data, args.subset)
                attacks = attack_all(model, sentences, args)
                rows[str(checkpoint)] = summarise(attacks)
                lines += [
                    json.dumps({"checkpoint": str(checkpoint), **vars(one)}) for one in attacks
                ]
            if path is not None:
                path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    except PrepError as error:
        raise UsageError(str(error)) from None
    width = max(map(len, rows))
    print(f"{'checkpoint':{width}}" + "".join(f"{name:>12}" for name in COLUMNS))
    for name, row in rows.items():
        figures = (100 * row.clean, 100 * row.attacked, 100 * row.changed, row.queries)
        print(f"{name:{width}}" + "".join(f"{x:12.1f}" for x in figures))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("data", type=Path, help="prepared data, with the dictionary of the models")
    add("checkpoints", type=Path, nargs="+", help="of --task sentence_prediction")
    add("--sentences", type=Path, required=True, help="TSV with the columns sentence and label")
    add("--synonyms", type=Path, required=True, help="JSON: a word and the list of its synonyms")
    add("--subset", default="valid", help="which set of DATA they are, default: %(default)s")
    add("--share", type=float, default=0.25, help="of words that may change, default: %(default)s")
    add("--limit", type=int, help="only so many sentences, the first")
    add("--batch-size", type=int, default=128, help="default: %(default)s")
    add("--output", type=Path, help="file for the attacked sentences, one JSON object a line")
    add("--cpu", action="store_true", help="on the CPU where there is a GPU too")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
