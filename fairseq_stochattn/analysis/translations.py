"""Translates by beam search, computes BLEU and chrF, and tests whether systems differ.

sacrebleu computes the scores and the tests. Tokens are converted to text as in fairseq-generate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from fairseq import utils
from fairseq.data import Dictionary
from fairseq.dataclass.configs import GenerationConfig
from fairseq_cli.generate import get_symbols_to_strip_from_output
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import PairedTest
from torch import Tensor, nn

from ..core.errors import InputError
from ..tasks.kinds import is_task

RESAMPLES = 1000  # number of resamples in the paired bootstrap test


@dataclass(frozen=True)
class Search:
    """Settings for beam search and for the conversion of tokens to text."""

    beam: int = 5
    lenpen: float = 1.0
    remove_bpe: str | None = None  # value of fairseq-generate's --remove-bpe
    detokenize: Callable[[str], str] = str  # str: no detokenizer

    def text(self, symbols: Dictionary, tokens: Tensor, **options: Any) -> str:
        """The tokens as text. ``options`` are passed to ``Dictionary.string``."""
        return self.detokenize(symbols.string(tokens, self.remove_bpe, **options))


class Translation(NamedTuple):
    """One translated sentence."""

    number: int  # index of the sentence in the data
    hypothesis: str
    reference: str


class Score(NamedTuple):
    """The score of a corpus."""

    score: float
    signature: str  # sacrebleu's description of its settings


class Difference(NamedTuple):
    """The BLEU of a system minus the BLEU of the first system, and the p-value of this test."""

    bleu: float
    p_value: float


def require_translation(task: Any) -> None:
    """Raise ``InputError`` unless the task is translation."""
    if not is_task(task, "translation"):
        raise InputError(f"BLEU is for translation, not for a {type(task).__name__}")


@torch.no_grad()
def translate(
    models: Sequence[nn.Module], task: Any, batches: Iterable[dict[str, Any]], search: Search
) -> list[Translation]:
    """The best translations of all sentences, in the order of the data.

    Several models are an ensemble: the search uses the mean of their probabilities.
    """
    require_translation(task)
    options = GenerationConfig(beam=search.beam, lenpen=search.lenpen)
    generator = task.build_generator(models, options)
    symbols = task.target_dictionary
    ignored = {"extra_symbols_to_ignore": get_symbols_to_strip_from_output(generator)}
    translations = []
    for batch in batches:
        beams = task.inference_step(generator, models, batch)
        for number, beam, target in zip(batch["id"].tolist(), beams, batch["target"], strict=True):
            hypothesis = search.text(symbols, beam[0]["tokens"].int().cpu(), **ignored)
            # Unknown words in the reference are escaped, so that no hypothesis can match them.
            tokens = utils.strip_pad(target, symbols.pad()).int().cpu()
            reference = search.text(symbols, tokens, escape_unk=True, **ignored)
            translations.append(Translation(number, hypothesis, reference))
    return sorted(translations)


def bleu(translations: Sequence[Translation], **options: Any) -> Score:
    """The corpus BLEU of translations. ``options`` are passed to sacrebleu's ``BLEU``."""
    return _score(BLEU(**options), translations)


def chrf(translations: Sequence[Translation], **options: Any) -> Score:
    """The corpus chrF of translations. ``options`` are passed to sacrebleu's ``CHRF``."""
    return _score(CHRF(**options), translations)


def _score(scorer: BLEU | CHRF, translations: Sequence[Translation]) -> Score:
    _, hypotheses, references = zip(*translations, strict=True)
    score = scorer.corpus_score(hypotheses, [references]).score
    return Score(score, str(scorer.get_signature()))


def bleu_statistics(translations: Sequence[Translation], **options: Any) -> list[list[int]]:
    """The counts of every sentence that BLEU needs, so that BLEU of any resample can be computed.

    A row has the matching n-grams for n = 1 to 4, all n-grams for n = 1 to 4, the length of the
    hypothesis and the length of the reference. BLEU is a function of the sums of the columns.
    """
    scorer = BLEU(**options, effective_order=True)  # else sacrebleu warns about single sentences
    scores = (scorer.sentence_score(x.hypothesis, [x.reference]) for x in translations)
    return [[*x.counts, *x.totals, x.sys_len, x.ref_len] for x in scores]


def compare(systems: Sequence[Sequence[Translation]], **options: Any) -> list[Difference]:
    """Compare all other systems with the first one by sacrebleu's paired bootstrap test.

    ``options`` are passed to sacrebleu's ``BLEU``.
    """
    named = [(str(i), [x.hypothesis for x in system]) for i, system in enumerate(systems)]
    references = [[x.reference for x in systems[0]]]
    test = PairedTest(named, {"BLEU": BLEU(**options)}, references, "bs", RESAMPLES)
    first, *others = test()[1]["BLEU"]
    # If two systems have the same BLEU, sacrebleu returns its smallest p-value instead of 1.
    return [
        Difference(x.score - first.score, 1.0 if x.score == first.score else float(x.p_value))
        for x in others
    ]
