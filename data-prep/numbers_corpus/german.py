"""Write numbers, ordinals, years, dates, clock times and prices in German."""

from __future__ import annotations

MAX_NUMBER = 999_999

_SMALL = (
    *("null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"),
    *("zehn", "elf", "zwölf", "dreizehn", "vierzehn", "fünfzehn", "sechzehn", "siebzehn"),
    *("achtzehn", "neunzehn"),
)
_TENS = ("zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig")
# The stems of all other ordinals are the cardinal number followed by "t".
_IRREGULAR_ORDINALS = {1: "erst", 3: "dritt", 7: "siebt", 8: "acht"}

MONTHS = (
    *("Januar", "Februar", "März", "April", "Mai", "Juni"),
    *("Juli", "August", "September", "Oktober", "November", "Dezember"),
)
WEEKDAYS = ("Montag", "Dienstag", "Mittwoch", "Donnerstag", "Freitag", "Samstag", "Sonntag")


def number_to_german(n: int, *, explicit_one: bool = False, before_noun: bool = False) -> str:
    """Return 0 <= n <= 999,999 in words.

    ``explicit_one`` gives "einhundertfünf" and "eintausend" instead of the equally correct
    "hundertfünf" and "tausend". ``before_noun`` gives "ein" instead of a final "eins" ("ein Euro").
    """
    if not 0 <= n <= MAX_NUMBER:
        raise ValueError(f"number must be in 0..{MAX_NUMBER}, got {n}")
    if n == 0:
        return _SMALL[0]
    thousands, rest = divmod(n, 1000)
    words = ""
    if thousands:
        words = _thousands_prefix(thousands, explicit_one) + "tausend"
    if rest:
        # "tausendhundert" is not idiomatic: after "tausend" one says "einhundert".
        words += _below_thousand(
            rest, explicit_one=explicit_one or thousands > 0, final=not before_noun
        )
    return words


def _thousands_prefix(thousands: int, explicit_one: bool) -> str:
    if thousands == 1 and not explicit_one:
        return ""
    return _below_thousand(thousands, explicit_one=explicit_one, final=False)


def _below_thousand(n: int, *, explicit_one: bool, final: bool) -> str:
    hundreds, rest = divmod(n, 100)
    words = ""
    if hundreds:
        leading = _SMALL[hundreds] if hundreds > 1 else ("ein" if explicit_one else "")
        words = leading + "hundert"
    if rest:
        words += _below_hundred(rest, final=final)
    return words


def _below_hundred(n: int, *, final: bool) -> str:
    if n < 20:
        # Only the end of a number has "eins": "hunderteins", but "hunderteintausend".
        return "ein" if n == 1 and not final else _SMALL[n]
    tens, units = divmod(n, 10)
    if units == 0:
        return _TENS[tens - 2]
    return _below_hundred(units, final=False) + "und" + _TENS[tens - 2]


def ordinal_to_german(n: int, ending: str = "en") -> str:
    """Return an ordinal in words; the default ending is used after "am" ("am dritten Mai")."""
    if n < 1:
        raise ValueError(f"ordinal must be at least 1, got {n}")
    last = n % 100
    if not 1 <= last <= 19:
        return number_to_german(n) + "st" + ending
    prefix = number_to_german(n - last) if n > last else ""
    return prefix + _IRREGULAR_ORDINALS.get(last, _SMALL[last] + "t") + ending


def year_to_german(year: int) -> str:
    """Return a year in words: from 1100 to 1999 in hundreds, else as an ordinary number."""
    if not 1100 <= year <= 1999:
        return number_to_german(year)
    hundreds, rest = divmod(year, 100)
    return _SMALL[hundreds] + "hundert" + (number_to_german(rest) if rest else "")


def date_to_german(day: int, month: int, year: str = "", *, day_in_words: bool = False) -> str:
    """Return "3. Mai" or, with the ending used after "am", "dritten Mai", and append the year."""
    spelt_day = ordinal_to_german(day) if day_in_words else f"{day}."
    return f"{spelt_day} {MONTHS[month - 1]} {year}".rstrip()


def clock_to_german(hour: int, minute: int) -> list[str]:
    """Return all usual forms of a 12-hour time in words; ``minute`` is a multiple of 5.

    Regional forms name the coming hour: "viertel fünf" is 4:15, "drei viertel acht" is 7:45.
    """
    if not (1 <= hour <= 12 and 0 <= minute <= 59 and minute % 5 == 0):
        raise ValueError(f"need hour 1..12 and a multiple of 5 minutes, got {hour}:{minute:02d}")
    this_hour = number_to_german(hour)
    next_hour = number_to_german(hour % 12 + 1)
    if minute == 0:
        return [this_hour, f"{number_to_german(hour, before_noun=True)} Uhr"]
    if minute == 30:
        return [f"halb {next_hour}"]
    # "Viertel" is capitalised in front of vor/nach, but not directly in front of the hour.
    if minute == 15:
        return [f"Viertel nach {this_hour}", f"viertel {next_hour}"]
    if minute == 45:
        return [f"Viertel vor {next_hour}", f"drei viertel {next_hour}"]
    forms = []
    if minute <= 20:
        forms.append(f"{number_to_german(minute)} nach {this_hour}")
    if minute >= 40:
        forms.append(f"{number_to_german(60 - minute)} vor {next_hour}")
    if 20 <= minute < 30:
        forms.append(f"{number_to_german(30 - minute)} vor halb {next_hour}")
    if 30 < minute <= 40:
        forms.append(f"{number_to_german(minute - 30)} nach halb {next_hour}")
    return forms


def clock_24h_to_german(hour: int, minute: int, *, in_words: bool = False, mark: str = ".") -> str:
    """Return the official time of day: "14.30 Uhr", "14 Uhr" or "vierzehn Uhr dreißig"."""
    if not (0 <= hour <= 23 and 0 <= minute <= 59):
        raise ValueError(f"no such time of day: {hour}:{minute:02d}")
    if in_words:
        spelt = f"{number_to_german(hour, before_noun=True)} Uhr"
        return f"{spelt} {number_to_german(minute)}" if minute else spelt
    return f"{hour}{mark}{minute:02d} Uhr" if minute else f"{hour} Uhr"


def price_to_german(euros: int, cents: int, *, in_words: bool) -> str:
    """Return "3,50 Euro" or "drei Euro fünfzig"; "neunundneunzig Cent" below one euro."""
    if euros < 0 or not 0 <= cents <= 99 or euros == cents == 0:
        raise ValueError(f"no such price: {euros} euros {cents} cents")
    if not in_words:
        decimals = f",{cents:02d}" if cents else ""
        return f"{group_digits_german(euros)}{decimals} Euro"
    if not euros:
        return f"{number_to_german(cents, before_noun=True)} Cent"
    spelt = f"{number_to_german(euros, before_noun=True)} Euro"
    return f"{spelt} {number_to_german(cents)}" if cents else spelt


def group_digits_german(n: int) -> str:
    """Return n in digits with the German thousands separator: 12.500."""
    return f"{n:,}".replace(",", ".")
