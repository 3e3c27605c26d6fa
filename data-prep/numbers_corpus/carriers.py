"""Build short German sentences around a phrase, with all their English translations.

The German sentence patterns have the verb in first, second or last position and split separable
verbs. English always has the order subject, verb, time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from numbers_corpus import english, german, lexicon, phrases
from numbers_corpus.phrases import Phrase


@dataclass(frozen=True)
class Sentence:
    """A German sentence and all its correct English translations."""

    german: str
    references: tuple[str, ...]
    kind: str

    @property
    def ambiguous(self) -> bool:
        return len(self.references) > 1


def finished(text: str) -> str:
    """Capitalise a sentence and end it with a full stop unless it already ends with . or ?."""
    text = text[0].upper() + text[1:]
    if text.endswith(("?", ".")):
        return text.replace(",?", "?")
    # There is no comma between an apposition and the full stop.
    return text.removesuffix(",") + "."


def _filled(
    frame: tuple[str, str], phrase: Phrase, kind: str, **words: tuple[str, str]
) -> Sentence:
    """Fill slot {n} of a frame with a phrase, and the others with (German, English) words."""
    german_words = {name: pair[0] for name, pair in words.items()}
    english_words = {name: pair[1] for name, pair in words.items()}
    return Sentence(
        finished(frame[0].format(n=phrase.german, **german_words)),
        tuple(finished(frame[1].format(n=form, **english_words)) for form in phrase.english),
        kind,
    )


def event_sentence(rng: Random, time: Phrase, kind: str, *, dated: bool) -> Sentence:
    """Return a sentence about an event at a given time, in one of ten German word orders."""
    subjects, verbs = rng.choice(lexicon.DATED_EVENTS if dated else lexicon.DAILY_EVENTS)
    (subject, subject_english), verb = rng.choice(subjects), rng.choice(verbs)
    modal, modal_english = rng.choice(lexicon.MODALS)
    lead, lead_english = rng.choice(lexicon.LEADS)
    when = "{n}"
    present = f"{subject_english} {verb.present} {when}"
    past = f"{subject_english} {verb.past} {when}"
    coming = f"{subject_english} {modal_english} {verb.base} {when}"
    frame = rng.choice(
        (
            (f"{subject} {verb.finite} {when} {verb.prefix}", present),
            (f"{when} {verb.finite} {subject} {verb.prefix}", present),
            (f"{lead} {subject} {when} {verb.prefix}{verb.finite}", f"{lead_english} {present}"),
            (
                f"{verb.finite} {subject} {when} {verb.prefix}".rstrip() + "?",
                f"does {subject_english} {verb.base} {when}?",
            ),
            (f"{subject} {verb.auxiliary} {when} {verb.participle}", past),
            (f"{when} {verb.auxiliary} {subject} {verb.participle}", past),
            (
                f"{lead} {subject} {when} {verb.participle} {verb.auxiliary}",
                f"{lead_english} {past}",
            ),
            (f"{subject} {modal} {when} {verb.infinitive}", coming),
            (f"{when} {modal} {subject} {verb.infinitive}", coming),
            (f"{lead} {subject} {when} {verb.infinitive} {modal}", f"{lead_english} {coming}"),
        )
    )
    return _filled((frame[0].rstrip(), frame[1]), time, kind)


def history_sentence(rng: Random, kind: str) -> Sentence:
    """Return a sentence about the year or the date of a past event."""
    subject, participle, clause, earliest, latest = rng.choice(lexicon.HISTORY)
    if kind == "year":
        time = phrases.year(rng, earliest, latest)
    else:
        # A full date would sound odd for older events.
        time = phrases.date(rng, (max(earliest, 1900), latest))
    lead, lead_english = rng.choice(lexicon.LEADS)
    frame = rng.choice(
        (
            (f"{subject} wurde {{n}} {participle}", f"{clause} {{n}}"),
            (f"{{n}} wurde {subject} {participle}", f"{clause} {{n}}"),
            (f"{lead} {subject} {{n}} {participle} wurde", f"{lead_english} {clause} {{n}}"),
        )
    )
    return _filled(frame, time, kind)


def number_sentence(rng: Random) -> Sentence:
    """Return a sentence with a number of at least 100."""
    shape = rng.choices(("bare", "room", "people", "things"), weights=(4, 2, 4, 4))[0]
    if shape == "bare":
        return _filled(rng.choice(lexicon.BARE_NUMBER_FRAMES), phrases.bare_number(rng), "number")
    if shape == "room":
        return _filled(rng.choice(lexicon.ROOM_FRAMES), phrases.room_number(rng), "number")
    if shape == "people":
        return _filled(rng.choice(lexicon.LARGE_COUNT_FRAMES), phrases.large_count(rng), "number")
    frame, thing = rng.choice(lexicon.STOCK_FRAMES), rng.choice(lexicon.THINGS)
    return _filled(frame, phrases.large_count(rng), "number", x=thing)


def count_sentence(rng: Random) -> Sentence:
    """Return a sentence with 2 to 99 things."""
    frame, thing = rng.choice(lexicon.COUNT_FRAMES), rng.choice(lexicon.THINGS)
    return _filled(frame, phrases.small_count(rng), "count", x=thing)


def sum_sentence(rng: Random) -> Sentence:
    """Return a calculation with a result below 100, all in words or all in digits."""
    operation = rng.choice(lexicon.OPERATIONS)
    if operation[0] == "plus":
        a = rng.randint(1, 98)
        b = rng.randint(1, 99 - a)
        c = a + b
    elif operation[0] == "minus":
        a = rng.randint(1, 99)
        b = rng.randint(1, a)
        c = a - b
    else:
        a = rng.randint(1, 33)
        b = rng.randint(1, 99 // a)
        c = a * b
    german_frame, english_frame = rng.choice(lexicon.SUM_FRAMES)
    in_digits = {"a": str(a), "b": str(b), "c": str(c)}
    digits_reference = finished(english_frame.format(op=operation[1], **in_digits))
    if rng.random() < 0.2:
        question = finished(german_frame.format(op=operation[0], **in_digits))
        return Sentence(question, (digits_reference,), "sum")
    german_words = {name: german.number_to_german(int(n)) for name, n in in_digits.items()}
    english_words = {name: english.number_to_english(int(n)) for name, n in in_digits.items()}
    return Sentence(
        finished(german_frame.format(op=operation[0], **german_words)),
        (finished(english_frame.format(op=operation[1], **english_words)), digits_reference),
        "sum",
    )


def price_sentence(rng: Random) -> Sentence:
    """Return a sentence about a price."""
    nominative, accusative, item, lowest, highest = rng.choice(lexicon.GOODS)
    return _filled(
        rng.choice(lexicon.PRICE_FRAMES),
        phrases.price(rng, lowest, highest),
        "price",
        nominative=(nominative, ""),
        accusative=(accusative, ""),
        item=("", item),
    )


def clock_sentence(rng: Random) -> Sentence:
    """Return a sentence about an event at a clock time."""
    return event_sentence(rng, phrases.clock(rng), "clock", dated=False)


def date_sentence(rng: Random) -> Sentence:
    """Return a sentence about an event on a date."""
    if rng.random() < 0.4:
        return history_sentence(rng, "date")
    day = rng.choice((phrases.date, phrases.date, phrases.weekday_and_date))(rng)
    return event_sentence(rng, day, "date", dated=True)


def year_sentence(rng: Random) -> Sentence:
    """Return a sentence about the year of a past event."""
    return history_sentence(rng, "year")


def schedule_sentence(rng: Random) -> Sentence:
    """Return a sentence about an event on a day at a clock time."""
    day = rng.choice((phrases.date, phrases.weekday))(rng)
    time = phrases.joined(day, phrases.clock(rng))
    return event_sentence(rng, time, "schedule", dated=True)


# For each kind: its weight and its generator. With these weights, slightly less than half of all
# sentences are ambiguous.
KINDS: dict[str, tuple[float, Callable[[Random], Sentence]]] = {
    "number": (0.20, number_sentence),
    "count": (0.08, count_sentence),
    "sum": (0.06, sum_sentence),
    "price": (0.15, price_sentence),
    "clock": (0.20, clock_sentence),
    "date": (0.14, date_sentence),
    "year": (0.07, year_sentence),
    "schedule": (0.10, schedule_sentence),
}
