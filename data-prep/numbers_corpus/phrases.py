"""Draw random German phrases for numbers, dates, times and prices, with all English translations.

A phrase has several correct translations only if the German phrase leaves one of these open:
whether a number below 100 is in words or digits, whether the time is a.m. or p.m., the order of day
and month, or the wording of an approximate time ("gegen drei": "around three" or "at about three").
All other phrases have exactly one correct translation.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from numbers_corpus import english, german

# 29 February is left out, so that every date exists in every year.
_DAYS_IN_MONTH = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)

# German divides the day more finely than a.m. and p.m.; hour 0 is "zwölf Uhr nachts".
_DAY_PARTS = (
    ("nachts", (0, 1, 2, 3, 23)),
    ("früh", (4, 5, 6, 7, 8)),
    ("morgens", (5, 6, 7, 8, 9)),
    ("vormittags", (9, 10, 11)),
    ("mittags", (12, 13)),
    ("nachmittags", (14, 15, 16, 17)),
    ("abends", (18, 19, 20, 21, 22)),
)


@dataclass(frozen=True)
class Phrase:
    """A German phrase and all its correct English translations, which are distinct."""

    german: str
    english: tuple[str, ...]


def joined(first: Phrase, second: Phrase) -> Phrase:
    """Return two phrases one after the other, in the same order in both languages."""
    pairs = tuple(f"{left} {right}" for left in first.english for right in second.english)
    return Phrase(f"{first.german} {second.german}", pairs)


def small_count(rng: Random) -> Phrase:
    """Return a number in 2..99. German words may become words or digits; digits stay digits."""
    n = rng.randint(2, 99)
    if rng.random() < 0.2:
        return Phrase(str(n), (str(n),))
    return Phrase(german.number_to_german(n), (english.number_to_english(n), str(n)))


def large_count(rng: Random) -> Phrase:
    """Return a number of at least 100 in front of a plural noun, in digits in English."""
    n = _large_number(rng)
    while n % 100 == 1:
        # Such numbers are left out, because "hunderteins Bücher" and "hundertundein Buch" are both
        # in use.
        n = _large_number(rng)
    return _large_phrase(rng, n)


def bare_number(rng: Random) -> Phrase:
    """Return a number of at least 100 without a noun, where "hunderteins" is correct."""
    n = _large_number(rng)
    if rng.random() < 0.1:
        n = n // 100 * 100 + 1
    return _large_phrase(rng, n)


def room_number(rng: Random) -> Phrase:
    """Return a room number in 101..999, in words in German."""
    n = rng.randint(101, 999)
    return Phrase(german.number_to_german(n, explicit_one=rng.random() < 0.5), (str(n),))


def _large_number(rng: Random) -> int:
    # Long numbers are drawn less often: they are hard only because they are long.
    low, high = rng.choices(
        ((100, 999), (1_000, 9_999), (10_000, german.MAX_NUMBER)), weights=(4, 5, 2)
    )[0]
    n = rng.randint(low, high)
    if rng.random() < 0.2:
        n -= n % 100
    return n


def _large_phrase(rng: Random, n: int) -> Phrase:
    if rng.random() < 0.15:
        return Phrase(german.group_digits_german(n), (f"{n:,}",))
    return Phrase(german.number_to_german(n, explicit_one=rng.random() < 0.5), (f"{n:,}",))


def year(rng: Random, earliest: int, latest: int) -> Phrase:
    """Return a year in words or digits, with or without "im Jahr"."""
    value = rng.randint(earliest, latest)
    spelt = str(value) if rng.random() < 0.2 else german.year_to_german(value)
    return Phrase(rng.choice(("im Jahr ", "")) + spelt, (f"in {value}",))


def date(rng: Random, years: tuple[int, int] | None = None) -> Phrase:
    """Return a date with "am", and with a year if a range of years is given.

    A day in digits has several correct translations, a day in words has one.
    """
    month = rng.randint(1, 12)
    day = rng.randint(1, _DAYS_IN_MONTH[month - 1])
    year_number = rng.randint(*years) if years else None
    day_in_words = rng.random() < 0.45
    year_german = ""
    if year_number is not None:
        spell_year = day_in_words and rng.random() < 0.5
        year_german = german.year_to_german(year_number) if spell_year else str(year_number)
    phrase = "am " + german.date_to_german(day, month, year_german, day_in_words=day_in_words)
    month_first, day_first, spelt = english.date_to_english(day, month)
    if year_number is not None:
        month_first = f"{month_first}, {year_number}"
        day_first, spelt = f"{day_first} {year_number}", f"{spelt} {year_number}"
    forms = (spelt,) if day_in_words else (month_first, day_first, spelt)
    return Phrase(phrase, tuple(f"on {form}" for form in forms))


def weekday(rng: Random) -> Phrase:
    """Return a weekday with "am": "am Montag"."""
    index = rng.randrange(7)
    return Phrase(f"am {german.WEEKDAYS[index]}", (f"on {english.WEEKDAYS[index]}",))


def weekday_and_date(rng: Random) -> Phrase:
    """Return a weekday and a date: "am Montag, dem 3. Mai," with the comma after the apposition."""
    day_name, day = weekday(rng), date(rng)
    apposition = day.german.replace("am ", "dem ", 1)
    forms = tuple(f"{day_name.english[0]}, {form.removeprefix('on ')}" for form in day.english)
    return Phrase(f"{day_name.german}, {apposition},", forms)


def clock(rng: Random) -> Phrase:
    """Return a clock time with its preposition; some times may mean a.m. or p.m."""
    return rng.choices((_open_clock, _day_part_clock, _clock_24h), weights=(12, 5, 5))[0](rng)


def _open_clock(rng: Random) -> Phrase:
    hour = rng.randint(1, 12)
    if rng.random() < 0.15:
        spelt = english.number_to_english(hour)
        opening, forms = rng.choice(
            (
                ("kurz vor", ("shortly before", "just before")),
                ("kurz nach", ("shortly after", "just after")),
                ("gegen", ("around", "at about")),
            )
        )
        return Phrase(
            f"{opening} {german.number_to_german(hour)}", tuple(f"{form} {spelt}" for form in forms)
        )
    minute = rng.choice((0, 0, 0, 30, 30, 30, 15, 15, 45, 45, 5, 10, 20, 25, 35, 40, 50, 55))
    spoken = rng.choice(german.clock_to_german(hour, minute))
    in_words = english.clock_to_english(hour, minute)
    if minute:
        forms = (in_words, f"{hour}:{minute:02d}")
    else:
        forms = (
            in_words,
            *(english.clock_24h_to_english(h, 0) for h in (hour % 12, hour % 12 + 12)),
        )
    return Phrase(f"um {spoken}", tuple(f"at {form}" for form in forms))


def _day_part_clock(rng: Random) -> Phrase:
    part, hours = rng.choice(_DAY_PARTS)
    hour = rng.choice(hours)
    minute = rng.choice((0, 0, 30, 15, 45))
    spoken = rng.choice(german.clock_to_german((hour - 1) % 12 + 1, minute))
    return Phrase(f"um {spoken} {part}", (f"at {english.clock_24h_to_english(hour, minute)}",))


def _clock_24h(rng: Random) -> Phrase:
    in_words = rng.random() < 0.4
    # In words, hours up to twelve may mean a.m. or p.m.; in digits they mean a.m.
    hour = rng.randint(13 if in_words else 0, 23)
    minute = rng.choice((0, 15, 30, 45, rng.randint(1, 59)))
    shown = german.clock_24h_to_german(hour, minute, in_words=in_words, mark=rng.choice(".:"))
    return Phrase(f"um {shown}", (f"at {english.clock_24h_to_english(hour, minute)}",))


def price(rng: Random, lowest: int, highest: int) -> Phrase:
    """Return a price between two amounts in euros; only prices below 100 euros have cents."""
    euros = rng.randint(lowest, highest)
    in_words = rng.random() < 0.65
    if euros >= 100:
        # Rounding to tens also avoids "hunderteins Euro".
        euros -= euros % 10
        return Phrase(
            german.price_to_german(euros, 0, in_words=in_words),
            (english.price_to_english(euros, 0),),
        )
    cents = rng.choice((0, 50, 99, rng.randrange(10, 100, 5), rng.randint(10, 99)))
    if not euros and not cents:
        cents = 50
    digits = english.price_to_english(euros, cents)
    if not in_words:
        return Phrase(german.price_to_german(euros, cents, in_words=False), (digits,))
    if not euros:
        digits = f"{cents} cents"
    return Phrase(
        german.price_to_german(euros, cents, in_words=True),
        (digits, english.price_to_english_words(euros, cents)),
    )
