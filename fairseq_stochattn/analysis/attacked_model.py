"""A fine-tuned checkpoint as a function from raw texts to probabilities, and its raw examples.

Texts are encoded exactly as data-prep encodes them, so that an attack on the raw text measures the
same model as ``stochattn-predict`` on the prepared data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import InputError
from ..core.json_input import short
from ..tasks.kinds import labels_of
from ..tasks.labels import Classification, mean_scores
from .attacks.search import Example
from .attacks.text import UNKNOWN, Query
from .data_prep import prep_errors, script_module
from .loading import DataSelection, Loaded, load_batches


class Recipe:
    """How data-prep made a data set, from its manifest.json."""

    def __init__(self, data: Path) -> None:
        with prep_errors():
            manifest = script_module("steps.manifest").read_manifest(data) or {}
        self.data = data
        self.arguments: dict[str, Any] = self._part(manifest, "arguments", dict)
        recipe = self._part(manifest, "recipe", dict)
        self.kind: str = self._part(recipe, "subwords", str)
        self.lowercase: bool = self._part(recipe, "lowercase", bool)
        self.max_tokens: int = self._part(self.arguments, "max_tokens", int)
        kind, inputs, labels = (
            self._part(self.arguments, name, of)
            for name, of in (("kind", str), ("inputs", int), ("labels", list))
        )
        self.spec = script_module("steps.examples").TaskSpec(kind, inputs, tuple(labels))
        model = manifest.get("model")  # manifests of earlier versions do not record the model
        self.two_separators = not isinstance(model, dict) or model.get("two_separators", True)

    def _part(self, owner: dict[str, Any], name: str, kind: type) -> Any:
        if not isinstance(owner.get(name), kind):
            raise InputError(
                f"{self.data} has no manifest.json of data-prep for labelled texts: prepare the "
                "data again"
            )
        return owner[name]

    def encoder(self) -> TextEncoder:
        return TextEncoder(self)

    def every(self, subset: str) -> int:
        """The validation set is every n-th row of train.tsv if it was held out; otherwise 1."""
        if subset != "valid" or "holdout" not in self.arguments:
            return 1
        return max(1, self._part(self.arguments, "holdout", int))


class TextEncoder:
    """Splits texts into the subwords of prepared data, and truncates them in the same way."""

    def __init__(self, recipe: Recipe) -> None:
        subwords = script_module("steps.subwords")
        finetuning = script_module("steps.finetuning")
        name = subwords.model_name(recipe.kind)
        with prep_errors():
            self.split = subwords.applier(recipe.kind, None if name is None else recipe.data / name)
        self.plain_pieces, self.unknown = subwords.plain_pieces, subwords.UNKNOWN
        self.cut_pair, self.lowercase = finetuning.cut_pair, recipe.lowercase
        self.room = finetuning.Encoding(
            recipe.kind, 0, recipe.max_tokens, two_separators=recipe.two_separators
        ).room(recipe.spec.inputs)

    def __call__(self, queries: Sequence[Query]) -> Iterator[list[list[str]]]:
        """Yield the subwords of every text of each query."""
        pieces = iter(self._pieces([text for query in queries for text in query]))
        for query in queries:
            found = [next(pieces) for _ in query]
            if len(found) == 1:
                yield [found[0][: self.room]]
            else:
                first, second = self.cut_pair(*map(len, found), self.room)
                yield [found[0][:first], found[1][:second]]

    def _pieces(self, texts: Sequence[str]) -> Iterator[list[str]]:
        """Yield the subwords of each text; those around an unknown word are split separately."""
        around = [text.split(UNKNOWN) for text in texts]
        lines = [part.rstrip() for parts in around for part in parts]
        split = iter(self.split([x.lower() for x in lines] if self.lowercase else lines))
        for parts in around:
            pieces = self.plain_pieces(next(split))
            for _ in parts[1:]:
                pieces = [*pieces, self.unknown, *self.plain_pieces(next(split))]
            yield pieces or [self.unknown]


class AttackedModel:
    """A classifier: maps n queries to probabilities (n, classes)."""

    def __init__(self, loaded: Loaded, recipe: Recipe, batch_size: int, samples: int) -> None:
        (self.model,), self.task, _ = loaded
        self.labels = labels_of(self.task)
        if not isinstance(self.labels, Classification) or recipe.spec.inputs > 2:
            raise InputError("only classifiers of sentences or of sentence pairs can be attacked")
        self.encode = recipe.encoder()
        self.batch_size, self.samples = batch_size, samples
        self.longest = self.model.max_positions()

    def tokens(self, queries: Sequence[Query]) -> list[Tensor]:
        """The token ids of each query, with the special tokens that the task adds."""
        return [self._joined(parts) for parts in self.encode(queries)]

    def _joined(self, parts: list[list[str]]) -> Tensor:
        symbols, config = self.task.source_dictionary, self.task.cfg
        ids: list[int] = []
        for special, pieces in zip(
            (config.init_token, config.separator_token), parts, strict=False
        ):
            ids += [] if special is None else [special]
            ids += [*map(symbols.index, pieces), symbols.eos()]
        return torch.tensor(ids[: self.longest])

    def __call__(self, queries: Sequence[Query]) -> Tensor:
        """Return probabilities (n, classes); queries of similar length share a batch."""
        rows = self.tokens(queries)
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        probabilities = torch.empty(len(rows), len(self.labels.classes))
        pad = self.task.source_dictionary.pad()
        for start in range(0, len(order), self.batch_size):
            part = order[start : start + self.batch_size]
            tokens = nn.utils.rnn.pad_sequence(
                [rows[i] for i in part], batch_first=True, padding_value=pad
            )
            lengths = torch.tensor([len(rows[i]) for i in part])
            inputs = {"src_tokens": tokens, "src_lengths": lengths}
            batch = {"id": torch.tensor(part), "net_input": inputs}
            found = mean_scores(self.labels, [self.model], batch, self.samples)
            probabilities[part] = found.float()
        return probabilities

    def require_same_tokens(self, examples: Sequence[Example], data: Path, subset: str) -> None:
        """Raise ``InputError`` unless the examples have the tokens of the prepared subset.

        Otherwise, the attack would not measure the model on the prepared set.
        """
        pad, prepared = self.task.source_dictionary.pad(), {}
        last = max(example.number for example in examples) + 1
        selection = DataSelection(str(data), subset, limit=last, batch_size=self.batch_size)
        for batch in load_batches(self.task, [self.model], selection):
            for number, row in zip(batch["id"], batch["net_input"]["src_tokens"], strict=True):
                prepared[int(number)] = row[row.ne(pad)].tolist()
        rows = self.tokens([example.texts for example in examples])
        wrong = sum(
            row.tolist() != prepared.get(example.number)
            for example, row in zip(examples, rows, strict=True)
        )
        if wrong:
            raise InputError(
                f"{wrong} of {len(examples)} examples are not those of {subset} in {data}: they "
                "are from another file, or the data was prepared in another way"
            )


def read_examples(
    path: Path, recipe: Recipe, columns: Sequence[str] | None, limit: int | None, every: int
) -> list[Example]:
    """Read the first ``limit`` usable examples among every ``every``-th row of a TSV file.

    ``columns`` are the names of the text columns and of the label; None: those of the GLUE task
    that the data was prepared from. Rows that data-prep drops are dropped here too, so that the
    numbers are those of the prepared examples.
    """
    steps = script_module("steps.examples")
    lines, tables = script_module("steps.lines"), script_module("steps.tables")
    task = script_module("prepare_glue").TASKS.get(recipe.arguments.get("task"))
    if columns is None and task is None:
        raise InputError("--columns must name the columns of the texts and of the label")
    names, extra = () if columns else task.names, 0 if columns else task.extra_columns
    *texts, label = columns or (*task.texts, task.label)
    if len(texts) != recipe.spec.inputs:
        raise InputError(
            f"--columns must name {recipe.spec.inputs + 1} columns: a model of "
            f"{recipe.spec.inputs} text(s), and the label"
        )
    found = []
    with prep_errors():
        rows = tables.read_tsv(lines.TextFile(path), lines.Report(), texts[0], names, extra)
        checked = steps.check_examples(
            islice(rows, every - 1, None, every),
            lambda row: ([row[name] for name in texts], row[label]),
            recipe.spec,
            recipe.lowercase,
        )
        kept = (one for one in checked if not isinstance(one, str))
        for number, (strings, gold) in enumerate(islice(kept, limit)):
            found.append(Example(number, tuple(strings), recipe.spec.labels.index(gold)))
    if not found:
        known = short(", ".join(recipe.spec.labels))
        raise InputError(f"{path} has no example with {', '.join(columns or texts)} and a label "
                         f"among {known}")  # fmt: skip
    return found
