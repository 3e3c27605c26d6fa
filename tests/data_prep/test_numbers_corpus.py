"""The number corpus: correct German and English, all translations listed, no leakage."""

from __future__ import annotations

import json
import operator
import re
from collections import defaultdict
from random import Random

import pytest

import generate_numbers
from numbers_corpus import carriers, english, german


def table(text: str) -> list[tuple[int, str]]:
    """Parse "1 eins, 2 zwei" into (value, word) pairs."""
    pairs = (entry.split() for entry in text.split(","))
    return [(int(value), word) for value, word in pairs]


NUMBERS = table(
    "0 null, 1 eins, 6 sechs, 7 sieben, 11 elf, 12 zwölf, 16 sechzehn, 17 siebzehn, 20 zwanzig, "
    "21 einundzwanzig, 30 dreißig, 36 sechsunddreißig, 61 einundsechzig, 70 siebzig, "
    "77 siebenundsiebzig, 99 neunundneunzig, 100 hundert, 101 hunderteins, 105 hundertfünf, "
    "111 hundertelf, 217 zweihundertsiebzehn, 1000 tausend, 1001 tausendeins, "
    "1100 tausendeinhundert, 2344 zweitausenddreihundertvierundvierzig, "
    "16016 sechzehntausendsechzehn, 21000 einundzwanzigtausend, 101000 hunderteintausend, "
    "100100 hunderttausendeinhundert, "
    "999999 neunhundertneunundneunzigtausendneunhundertneunundneunzig"
)
EXPLICIT_ONES = table(
    "21 einundzwanzig, 100 einhundert, 105 einhundertfünf, 1000 eintausend, "
    "1101 eintausendeinhunderteins, 101101 einhunderteintausendeinhunderteins"
)
ORDINALS = table(
    "1 ersten, 2 zweiten, 3 dritten, 4 vierten, 7 siebten, 8 achten, 12 zwölften, 19 neunzehnten, "
    "20 zwanzigsten, 21 einundzwanzigsten, 30 dreißigsten, 31 einunddreißigsten, 100 hundertsten, "
    "103 hundertdritten, 1121 tausendeinhunderteinundzwanzigsten"
)
ENGLISH_ORDINALS = table(
    "1 first, 2 second, 3 third, 4 fourth, 5 fifth, 8 eighth, 9 ninth, 12 twelfth, 19 nineteenth, "
    "20 twentieth, 21 twenty-first, 22 twenty-second, 30 thirtieth, 31 thirty-first"
)
YEARS = table(
    "1066 tausendsechsundsechzig, 1100 elfhundert, 1253 zwölfhundertdreiundfünfzig, "
    "1701 siebzehnhunderteins, 1900 neunzehnhundert, 1987 neunzehnhundertsiebenundachtzig, "
    "2000 zweitausend, 2004 zweitausendvier, 2021 zweitausendeinundzwanzig"
)
CLOCK_TIMES = [
    ("eins", 1, 0, "one o'clock"),
    ("ein Uhr", 1, 0, "one o'clock"),
    ("fünf Uhr", 5, 0, "five o'clock"),
    ("halb drei", 2, 30, "half past two"),
    ("halb eins", 12, 30, "half past twelve"),
    ("Viertel nach vier", 4, 15, "a quarter past four"),
    ("viertel fünf", 4, 15, "a quarter past four"),
    ("Viertel vor acht", 7, 45, "a quarter to eight"),
    ("drei viertel acht", 7, 45, "a quarter to eight"),
    ("Viertel vor eins", 12, 45, "a quarter to one"),
    ("zehn nach zwölf", 12, 10, "ten past twelve"),
    ("zehn vor halb sieben", 6, 20, "twenty past six"),
    ("zwanzig nach sechs", 6, 20, "twenty past six"),
    ("fünf vor halb neun", 8, 25, "twenty-five past eight"),
    ("fünf nach halb neun", 8, 35, "twenty-five to nine"),
    ("zehn nach halb elf", 10, 40, "twenty to eleven"),
    ("fünf vor eins", 12, 55, "five to one"),
]
DAY_TIMES = [
    (14, 30, "14.30 Uhr", "vierzehn Uhr dreißig", "2:30 p.m."),
    (13, 1, "13.01 Uhr", "dreizehn Uhr eins", "1:01 p.m."),
    (21, 0, "21 Uhr", "einundzwanzig Uhr", "9 p.m."),
    (5, 0, "5 Uhr", "fünf Uhr", "5 a.m."),
    (1, 5, "1.05 Uhr", "ein Uhr fünf", "1:05 a.m."),
    (0, 15, "0.15 Uhr", "null Uhr fünfzehn", "12:15 a.m."),
    (12, 45, "12.45 Uhr", "zwölf Uhr fünfundvierzig", "12:45 p.m."),
    (12, 0, "12 Uhr", "zwölf Uhr", "noon"),
    (0, 0, "0 Uhr", "null Uhr", "midnight"),
]
PRICES = [
    (3, 50, "3,50 Euro", "drei Euro fünfzig", "€3.50"),
    (1, 20, "1,20 Euro", "ein Euro zwanzig", "€1.20"),
    (1, 0, "1 Euro", "ein Euro", "€1"),
    (0, 99, "0,99 Euro", "neunundneunzig Cent", "€0.99"),
    (0, 1, "0,01 Euro", "ein Cent", "€0.01"),
    (21, 5, "21,05 Euro", "einundzwanzig Euro fünf", "€21.05"),
    (12_500, 0, "12.500 Euro", "zwölftausendfünfhundert Euro", "€12,500"),
]
DATES = [
    (3, 5, "", False, "3. Mai"),
    (3, 5, "", True, "dritten Mai"),
    (21, 3, "1987", True, "einundzwanzigsten März 1987"),
    (1, 1, "2004", False, "1. Januar 2004"),
    (7, 12, "zweitausendvier", True, "siebten Dezember zweitausendvier"),
]

# An independent parser of German number words, which shares no code with the generator.
WORD_VALUES = {
    word: value
    for value, word in table(
        "0 null, 1 eins, 2 zwei, 3 drei, 4 vier, 5 fünf, 6 sechs, 7 sieben, 8 acht, 9 neun, "
        "10 zehn, 11 elf, 12 zwölf, 13 dreizehn, 14 vierzehn, 15 fünfzehn, 16 sechzehn, "
        "17 siebzehn, 18 achtzehn, 19 neunzehn, 20 zwanzig, 30 dreißig, 40 vierzig, 50 fünfzig, "
        "60 sechzig, 70 siebzig, 80 achtzig, 90 neunzig"
    )
}


def read_german_number(word: str, last: bool = True) -> int:
    """Return the value of a number word; only its end may be "eins"."""
    for unit, value in (("tausend", 1000), ("hundert", 100)):
        before, match, after = word.partition(unit)
        if match:
            factor = read_german_number(before, last=False) if before else 1
            return factor * value + (read_german_number(after, last) if after else 0)
    if word == "ein" and not last:
        return 1
    if word in WORD_VALUES:
        assert last or word != "eins", word
        return WORD_VALUES[word]
    units, _, tens = word.partition("und")
    assert WORD_VALUES.get(tens, 0) >= 20, word
    return WORD_VALUES[tens] + read_german_number(units, last=False)


@pytest.fixture(scope="module")
def corpus():
    return generate_numbers.build_corpus({"train": 4000, "valid": 300, "test": 300}, seed=1)


@pytest.mark.parametrize(("value", "word"), NUMBERS)
def test_german_numbers(value, word):
    assert german.number_to_german(value) == word


@pytest.mark.parametrize(("value", "word"), EXPLICIT_ONES)
def test_german_numbers_with_explicit_one(value, word):
    assert german.number_to_german(value, explicit_one=True) == word


def test_ordinals_and_years():
    assert [(value, german.ordinal_to_german(value)) for value, _ in ORDINALS] == ORDINALS
    assert [(n, english.ordinal_to_english(n)) for n, _ in ENGLISH_ORDINALS] == ENGLISH_ORDINALS
    assert [(value, german.year_to_german(value)) for value, _ in YEARS] == YEARS
    for value in range(1000, 2100):
        assert read_german_number(german.year_to_german(value)) == value


@pytest.mark.parametrize(("spoken", "hour", "minute", "in_english"), CLOCK_TIMES)
def test_spoken_clock(spoken, hour, minute, in_english):
    assert spoken in german.clock_to_german(hour, minute)
    assert english.clock_to_english(hour, minute) == in_english


def test_no_spoken_clock_form_is_ambiguous():
    meanings = defaultdict(set)
    for hour in range(1, 13):
        for minute in range(0, 60, 5):
            for form in german.clock_to_german(hour, minute):
                meanings[form].add((hour, minute))
    assert all(len(times) == 1 for times in meanings.values())


@pytest.mark.parametrize(("hour", "minute", "digits", "words", "in_english"), DAY_TIMES)
def test_time_of_day(hour, minute, digits, words, in_english):
    assert german.clock_24h_to_german(hour, minute) == digits
    assert german.clock_24h_to_german(hour, minute, in_words=True) == words
    assert english.clock_24h_to_english(hour, minute) == in_english


@pytest.mark.parametrize(("euros", "cents", "digits", "words", "in_english"), PRICES)
def test_prices(euros, cents, digits, words, in_english):
    assert german.price_to_german(euros, cents, in_words=False) == digits
    assert german.price_to_german(euros, cents, in_words=True) == words
    assert english.price_to_english(euros, cents) == in_english


@pytest.mark.parametrize(("day", "month", "year", "day_in_words", "expected"), DATES)
def test_dates(day, month, year, day_in_words, expected):
    assert german.date_to_german(day, month, year, day_in_words=day_in_words) == expected


def test_english_dates_and_prices_in_words():
    assert english.date_to_english(3, 5) == ("May 3", "3 May", "the third of May")
    assert english.price_to_english_words(1, 20) == "one euro twenty"
    assert english.price_to_english_words(5, 0) == "five euros"
    assert english.price_to_english_words(0, 99) == "ninety-nine cents"


@pytest.mark.parametrize("explicit_one", [False, True])
def test_number_round_trip(explicit_one):
    for value in (*range(10_000), *Random(7).sample(range(10_000, 1_000_000), 5_000)):
        word = german.number_to_german(value, explicit_one=explicit_one)
        assert read_german_number(word) == value


@pytest.mark.parametrize(
    ("function", "bad"),
    [
        *((german.number_to_german, (value,)) for value in (-1, 1_000_000)),
        *((german.clock_to_german, time) for time in ((13, 0), (0, 0), (3, 7))),
        *((english.clock_24h_to_english, time) for time in ((24, 0), (3, 60))),
        *((german.clock_24h_to_german, time) for time in ((24, 0), (3, 60))),
        *((german.ordinal_to_german, (0,)), (english.number_to_english, (100,))),
    ],
)
def test_values_out_of_range_raise_an_error(function, bad):
    with pytest.raises(ValueError, match=r"must|need|no such"):
        function(*bad)


def test_sentence_endings():
    assert carriers.finished("am Montag, dem 3. Mai,") == "Am Montag, dem 3. Mai."
    assert carriers.finished("am Montag, dem 3. Mai,?") == "Am Montag, dem 3. Mai?"
    assert carriers.finished("at 8 a.m.") == "At 8 a.m."


def test_all_sources_are_distinct_across_splits(corpus):
    sources = {split: [sentence.german for sentence, _ in pairs] for split, pairs in corpus.items()}
    together = [source for split in sources.values() for source in split]
    assert len(set(together)) == len(together) == 4600
    assert not set(sources["train"]) & (set(sources["valid"]) | set(sources["test"]))


def test_ambiguous_sentences_have_several_translations(corpus):
    for pairs in corpus.values():
        for sentence, target in pairs:
            assert len(set(sentence.references)) == len(sentence.references) >= 1
            assert target in sentence.references
            record = json.loads(generate_numbers.as_json(sentence, target))
            assert record["ambiguous"] is (len(record["references"]) > 1)
        share = sum(sentence.ambiguous for sentence, _ in pairs) / len(pairs)
        assert 0.35 <= share <= 0.50


def test_training_targets_include_every_reference(corpus):
    positions = defaultdict(set)
    for sentence, target in corpus["train"]:
        positions[len(sentence.references)].add(sentence.references.index(target))
    assert {1, 2, 3} <= set(positions)
    for count in (2, 3):
        assert positions[count] == set(range(count))


def test_a_source_always_has_the_same_translations():
    rng = Random(3)
    known: dict[str, tuple[str, ...]] = {}
    for name, (_, draw) in carriers.KINDS.items():
        for sentence in (draw(rng) for _ in range(2_000)):
            assert sentence.kind == name
            assert known.setdefault(sentence.german, sentence.references) == sentence.references


def test_sentences_are_well_formed(corpus):
    for pairs in corpus.values():
        for sentence, target in pairs:
            for text in (sentence.german, target):
                assert text[0].isupper() or text[0].isdigit() or text[0] == "€", text
                assert text[-1] in ".?", text
                assert not re.search(r"[{}]|  | [.?,]|,[.?]$|\.\.$|^ | $", text), text


def test_separable_verbs_are_split_in_main_clauses_and_joined_in_subordinate_ones(corpus):
    joined = split = 0
    for sentence, _ in corpus["train"]:
        if re.search(r", (dass|ob) der Zug .*kommt\.$", sentence.german):
            assert sentence.german.endswith("ankommt.")
            joined += 1
        if re.match(r"Der Zug fährt ", sentence.german):
            assert sentence.german.endswith(" ab.")
            split += 1
    assert joined
    assert split


def test_numbers_keep_their_value(corpus):
    checked = 0
    for sentence, target in corpus["train"]:
        if sentence.kind not in {"number", "year"}:
            continue
        in_english = int(re.search(r"\d[\d,]*", target)[0].replace(",", ""))
        digits = re.search(r"\d[\d.]*\d|\d", sentence.german)
        if digits:
            assert int(digits[0].replace(".", "")) == in_english
        else:
            words = (word.rstrip(".?,").lower() for word in sentence.german.split())
            assert in_english in [read_german_number(w) for w in words if is_number_word(w)]
        checked += 1
    assert checked > 900


def is_number_word(word: str) -> bool:
    try:
        read_german_number(word)
    except AssertionError:
        return False
    return True


def test_sums_are_correct(corpus):
    compute = {"plus": operator.add, "minus": operator.sub, "times": operator.mul}
    checked = 0
    for sentence, _ in corpus["train"]:
        found = re.search(r"(\d+) (\w+) (\d+) (?:is|makes) (\d+)", sentence.references[-1])
        if sentence.kind == "sum" and found:
            a, operation, b, c = found.groups()
            assert compute[operation](int(a), int(b)) == int(c)
            checked += 1
    assert checked > 50
