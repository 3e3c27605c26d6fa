"""Score translations of sentences that have one or several correct translations."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Score:
    """Scores of a set of translations; the shares are those of correct translations."""

    bleu: float
    signature: str
    share_unambiguous: float
    share_ambiguous: float


def score_translations(records: list[dict], translations: list[str]) -> Score:
    """Compare translations with one reference (BLEU) and with all correct ones (shares)."""
    import sacrebleu

    metric = sacrebleu.BLEU()
    bleu = metric.corpus_score(translations, [[record["en"] for record in records]]).score
    correct: dict[bool, list[bool]] = {False: [], True: []}
    for record, translation in zip(records, translations, strict=True):
        correct[record["ambiguous"]].append(translation in record["references"])
    shares = {key: sum(hits) / len(hits) for key, hits in correct.items()}
    return Score(bleu, str(metric.get_signature()), shares[False], shares[True])
