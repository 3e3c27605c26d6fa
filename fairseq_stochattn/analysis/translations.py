"""Translations by beam search, their BLEU, and what differences between systems are worth.

sacrebleu scores, signs and resamples. Texts are made as fairseq-generate makes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from fairseq import utils
from fairseq.data import Dictionary
from fairseq.dataclass.configs import GenerationConfig
from fairseq.tasks import TASK_REGISTRY
from fairseq_cli.generate import get_symbols_to_strip_from_output
from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest
from torch import Tensor, nn

from fairseq_stochattn.errors import UsageError

RESAMPLES = 1000


def as_it_is(text: str) -> str:
    return text


@dataclass(frozen=True)
class Search:
    """Beam search, and how tokens become text."""

    beam: int = 5
    lenpen: float = 1.0
    remove_bpe: str | None = None  # as fairseq-generate has it
    detokenize: Callable[[str], str] = as_it_is

    def text(self, symbols: Dictionary, tokens: Tensor, **options: Any) -> str:
        return self.detokenize(symbols.string(tokens, self.remove_bpe, **options))


class Translation(NamedTuple):
    number: int
    hypothesis: str
    reference: str


class Bleu(NamedTuple):
    score: float
    signature: str  # sacrebleu's: what the score was computed with


class Difference(NamedTuple):
    """Between the BLEU of a system and that of the first one."""

    bleu: float
    p_value: float


@torch.no_grad()
def translate(
    model: nn.Module, task: Any, batches: Iterable[dict[str, Any]], search: Search
) -> list[Translation]:
    """The best hypotheses in the order of the data."""
    if not isinstance(task, TASK_REGISTRY["translation"]):
        raise UsageError(f"BLEU is for translation, not for a {type(task).__name__}")
    options = GenerationConfig(beam=search.beam, lenpen=search.lenpen)
    generator = task.build_generator([model], options)
    symbols = task.target_dictionary
    ignored = {"extra_symbols_to_ignore": get_symbols_to_strip_from_output(generator)}
    found = []
    for sample in batches:
        beams = task.inference_step(generator, [model], sample)
        for number, best, target in zip(
            sample["id"].tolist(), beams, sample["target"], strict=True
        ):
            hypothesis = search.text(symbols, best[0]["tokens"].int().cpu(), **ignored)
            # An unknown word of the reference is escaped: no hypothesis may match it.
            tokens = utils.strip_pad(target, symbols.pad()).int().cpu()
            reference = search.text(symbols, tokens, escape_unk=True, **ignored)
            found.append(Translation(number, hypothesis, reference))
    return sorted(found)


def bleu(translations: Sequence[Translation], **options: Any) -> Bleu:
    """Corpus BLEU; ``options`` are those of sacrebleu's metric."""
    scorer = BLEU(**options)
    _, hypotheses, references = zip(*translations, strict=True)
    score = scorer.corpus_score(hypotheses, [references]).score
    return Bleu(score, str(scorer.get_signature()))


def compare(systems: Sequence[Sequence[Translation]], **options: Any) -> list[Difference]:
    """Paired bootstrap of every system but the first against the first, by sacrebleu."""
    named = [(str(i), [x.hypothesis for x in found]) for i, found in enumerate(systems)]
    references = [[x.reference for x in systems[0]]]
    test = PairedTest(named, {"BLEU": BLEU(**options)}, references, "bs", RESAMPLES)
    first, *others = test()[1]["BLEU"]
    # Of equal systems sacrebleu says that no resample differs more, with the smallest p it has.
    return [
        Difference(x.score - first.score, 1.0 if x.score == first.score else float(x.p_value))
        for x in others
    ]
