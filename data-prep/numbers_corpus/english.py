"""Write numbers below 100, ordinals, dates, clock times and prices in English."""

from __future__ import annotations

_SMALL = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen"),
    "nineteen",
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_IRREGULAR_ORDINALS = {
    **{"one": "first", "two": "second", "three": "third", "five": "fifth"},
    **{"eight": "eighth", "nine": "ninth", "twelve": "twelfth"},
}

MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def number_to_english(n: int) -> str:
    """Return 0 <= n <= 99 in words; the corpus has larger numbers in digits only."""
    if not 0 <= n <= 99:
        raise ValueError(f"number must be in 0..99, got {n}")
    if n < 20:
        return _SMALL[n]
    tens, units = divmod(n, 10)
    return _TENS[tens - 2] + (f"-{_SMALL[units]}" if units else "")


def ordinal_to_english(n: int) -> str:
    """Return the ordinal of 1 <= n <= 99 in words."""
    if n < 1:
        raise ValueError(f"ordinal must be at least 1, got {n}")
    prefix, hyphen, last = number_to_english(n).rpartition("-")
    if last in _IRREGULAR_ORDINALS:
        last = _IRREGULAR_ORDINALS[last]
    elif last.endswith("y"):
        last = last[:-1] + "ieth"
    else:
        last += "th"
    return prefix + hyphen + last


def date_to_english(day: int, month: int) -> tuple[str, str, str]:
    """Return the three usual forms: "May 3", "3 May", "the third of May"."""
    name = MONTHS[month - 1]
    return f"{name} {day}", f"{day} {name}", f"the {ordinal_to_english(day)} of {name}"


def clock_to_english(hour: int, minute: int) -> str:
    """Return a 12-hour time in words: "a quarter to eight", "eight o'clock"."""
    if not (1 <= hour <= 12 and 0 <= minute <= 59 and minute % 5 == 0):
        raise ValueError(f"need hour 1..12 and a multiple of 5 minutes, got {hour}:{minute:02d}")
    if minute == 0:
        return f"{number_to_english(hour)} o'clock"
    shown_hour, distance, relation = hour, minute, "past"
    if minute > 30:
        shown_hour, distance, relation = hour % 12 + 1, 60 - minute, "to"
    spelt = {15: "a quarter", 30: "half"}.get(distance) or number_to_english(distance)
    return f"{spelt} {relation} {number_to_english(shown_hour)}"


def clock_24h_to_english(hour: int, minute: int) -> str:
    """Return a time of day in digits: "2:30 p.m.", "8 a.m.", "noon", "midnight"."""
    if not (0 <= hour <= 23 and 0 <= minute <= 59):
        raise ValueError(f"no such time of day: {hour}:{minute:02d}")
    if minute == 0 and hour % 12 == 0:
        return "noon" if hour else "midnight"
    half = "a.m." if hour < 12 else "p.m."
    shown_hour = (hour - 1) % 12 + 1
    return f"{shown_hour}:{minute:02d} {half}" if minute else f"{shown_hour} {half}"


def price_to_english(euros: int, cents: int) -> str:
    """Return a price in digits: "€3.50", "€12,500"."""
    return f"€{euros:,}" + (f".{cents:02d}" if cents else "")


def price_to_english_words(euros: int, cents: int) -> str:
    """Return a price below 100 euros in words: "three euros fifty", "ninety-nine cents"."""
    if not euros:
        return f"{number_to_english(cents)} {'cent' if cents == 1 else 'cents'}"
    spelt = f"{number_to_english(euros)} {'euro' if euros == 1 else 'euros'}"
    return f"{spelt} {number_to_english(cents)}" if cents else spelt
