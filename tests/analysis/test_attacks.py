"""Attacks on hand-made classifiers find the words that matter, and stay within their limits."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fairseq_stochattn.analysis.attacks import methods
from fairseq_stochattn.analysis.attacks.checks import Similarity, lexicon_tagger, nltk_tagger
from fairseq_stochattn.analysis.attacks.methods import Limits, Resources, build
from fairseq_stochattn.analysis.attacks.search import Attack, Example, Method, attack_all
from fairseq_stochattn.analysis.attacks.summary import summarise
from fairseq_stochattn.analysis.attacks.text import Place, Text, replaced, with_case_of
from fairseq_stochattn.analysis.attacks.typos import KEYBOARD, LOOK_ALIKES, neighbours, typos
from fairseq_stochattn.core.errors import InputError
from runner import ROOT
from voters import VOTES, Voter, attacked

SYNONYMS = {"superb": ["great", "fair"], "fine": ["fair", "fine", "great"], "film": ["movie"]}


def method(name: str = "textfooler", limits: dict | None = None, **resources: object) -> Method:
    """The attack with synonyms, and with these limits and resources."""
    return build(name, Resources(**{"synonyms": SYNONYMS, **resources}), Limits(**(limits or {})))


def test_attacks_need_no_fairseq() -> None:
    code = "import sys; sys.modules['fairseq'] = None; "
    code += "from fairseq_stochattn.analysis.attacks import encoders, methods, search, summary"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@given(st.text(st.characters(codec="utf-8"), max_size=40))
def test_a_split_text_joins_to_itself(text: str) -> None:
    found = Text.split(text)
    assert str(found) == " ".join(text.split())
    for index in range(len(found.words)):
        assert str(found.replaced(index, found.words[index])) == str(found)
        before, after = found.around(index)
        assert " ".join(f"{before} {after}".split()).count(" ") <= str(found).count(" ") + 2
    assert str(Text.split("Two  words, don't they?").replaced(2, "do")) == "Two words, do they?"
    assert Text.split("Two words, don't they?").around(1) == ("Two", ", don't they?")
    assert Text.split("a b c, d e").window(2, 3) == "b c, d"


def test_the_most_important_words_are_replaced_first_and_by_the_most_harmful_synonym() -> None:
    """Without superb, the votes fall by 3; without fine, by 1. Film and plot have no votes."""
    voter = Voter()
    (found,) = attack_all([Example(0, ("a fine superb film plot",), 1)], method(), voter)
    assert found == Attack(
        **{"number": 0, "texts": ("a fine superb film plot",), "label": 1, "prediction": 1},
        **{"attacked": ("a fair fair film plot",), "status": "failed", "words": 5, "changed": 2},
        # The text, three deletions (a and plot have no synonyms), 2 + 2 + 1 synonyms.
        queries=1 + 3 + 2 + 2 + 1,
    )
    asked = [[query[0] for query in batch] for batch in voter.batches]
    assert asked[1] == ["a superb film plot", "a fine film plot", "a fine superb plot"]
    assert asked[2] == ["a fine great film plot", "a fine fair film plot"]
    assert asked[3] == ["a fair fair film plot", "a great fair film plot"]


def test_the_attack_stops_when_the_prediction_changes() -> None:
    # The sum of votes is 2.8, then 0.2 with fair for superb, then −0.4 with fair for fine too.
    found = attacked(method(), "superb dull film fine")
    assert found.attacked == ("fair dull film fair",)
    assert (found.status, found.prediction, found.changed) == ("succeeded", 0, 2)
    assert found.queries == 1 + 3 + 2 + 2


def test_greedy_ranks_by_unknown_tokens_and_counts_what_is_between_spaces() -> None:
    voter = Voter()
    greedy = method("greedy", {"share": 0.5})
    (found,) = attack_all([Example(0, ("superb , superb fine .",), 1)], greedy, voter)
    assert voter.batches[1][0] == ("\0 , superb fine .",)
    assert (found.attacked, found.words, found.changed) == (("fair , fair fine .",), 5, 2)
    # Greedy replaces stop-words too.
    found = attacked(method("greedy", {"share": 1}, synonyms={"the": ["poor"]}), "the fine film")
    assert found.attacked == ("poor fine film",)


@pytest.mark.parametrize("name", ["greedy", "textfooler", "textbugger", "bae"])
def test_share_and_queries_are_bounded(name: str) -> None:
    fill_mask = lambda before, after, count: ["fair", "poor", "fine"][:count]  # noqa: E731
    text = "superb superb superb fine great superb superb film"
    for share, allowed in ((0, 0), (0.124, 0), (0.125, 1), (0.5, 4), (1, 8)):
        found = attacked(method(name, {"share": share}, fill_mask=fill_mask), text)
        assert found.changed <= allowed
        different = sum(
            a != b for a, b in zip(text.split(), found.attacked[0].split(), strict=False)
        )
        assert found.changed == allowed or found.status == "succeeded" or allowed > 6
        if name != "textbugger":  # which may split a word
            assert different == found.changed
    unbounded = attacked(method(name, fill_mask=fill_mask), text).queries
    for most in (1, 2, 9, 12, unbounded):
        found = attacked(method(name, {"max_queries": most}, fill_mask=fill_mask), text)
        assert found.queries == min(most, unbounded)


def test_texts_that_are_classified_wrongly_are_skipped() -> None:
    found = attacked(method(), "superb film", label=0)
    assert (found.status, found.queries, found.changed) == ("skipped", 1, 0)
    assert found.attacked == found.texts == ("superb film",)


@pytest.mark.parametrize("text", ["", "...", "a", "unheard words only"])
@pytest.mark.parametrize("name", ["greedy", "textfooler"])
def test_a_text_without_synonyms_or_words_is_classified_once(text: str, name: str) -> None:
    found = attacked(method(name), text, label=0)  # 0 votes: the first class is predicted
    assert (found.status, found.queries, found.attacked) == ("failed", 1, (text,))


def test_stop_words_stay() -> None:
    votes = {"The": 3.0, "fine": 1.0}
    synonyms = {"the": ["poor"], "fine": ["poor"]}
    for kept, expected in ((("the",), "The poor film"), ((), "Poor fine film")):
        attacks = method(synonyms=synonyms, stop_words=kept)
        (found,) = attack_all([Example(0, ("The fine film",), 1)], attacks, Voter(votes))
        assert found.attacked == (expected,) or found.changed == 2
        assert ("The" in found.attacked[0]) == bool(kept)
    assert {"the", "not", "n't", "she", "of"} <= Resources().stop_words
    assert not {"good", "film", "bad", "well"} & Resources().stop_words


PAIR = ("superb fine", "fine film fine")


@pytest.mark.parametrize(
    ("parts", "expected", "words"),
    [
        ("first", ("fair fair", "fine film fine"), 2),
        ("second", ("superb fine", "fair film fair"), 3),
        ("longer", ("superb fine", "fair film fair"), 3),
        ("all", ("fair fair", "fair film fair"), 5),
    ],
)
def test_the_chosen_text_of_a_pair_is_attacked(parts: str, expected: tuple, words: int) -> None:
    found = attacked(method(limits={"parts": parts}), *PAIR)
    assert (found.attacked, found.words) == (expected, words)
    alone = attacked(method(limits={"parts": parts}), "superb")
    assert alone.attacked == ("fair",)


def test_of_two_texts_of_the_same_length_longer_is_the_second() -> None:
    chosen = [methods.attacked_parts(tuple(map(Text.split, x)), "longer") for x in (PAIR, "ab")]
    assert chosen == [[1], [1]]
    assert methods.attacked_parts(tuple(map(Text.split, PAIR[::-1])), "longer") == [0]


def test_results_depend_neither_on_the_number_of_parallel_attacks_nor_on_their_order() -> None:
    rng = random.Random(1)
    texts = [" ".join(rng.choices([*VOTES, "film", "plot"], k=rng.randrange(9))) for _ in range(60)]
    examples = [Example(n, (text,), n % 2) for n, text in enumerate(texts)]
    attacks = method("textbugger", {"seed": 5})
    results = [
        sorted(attack_all(given, attacks, Voter(), together), key=lambda x: x.number)
        for given, together in ((examples, 1), (examples, 64), (examples[::-1], 7))
    ]
    assert results[0] == results[1] == results[2]
    assert {x.status for x in results[0]} == {"skipped", "failed", "succeeded"}
    other = list(attack_all(examples, method("textbugger", {"seed": 6}), Voter(), 1))
    assert [x.attacked for x in other] != [x.attacked for x in results[0]]


def test_no_text_is_classified_twice_by_an_attack() -> None:
    voter = Voter()
    text = "superb superb fine superb fine"
    (found,) = attack_all([Example(0, (text,), 1)], method(), voter)
    asked = [query for batch in voter.batches for query in batch]
    assert len(asked) == len(set(asked)) < found.queries


def test_tags_must_agree_but_nouns_may_replace_verbs() -> None:
    tags = {"fine": ["ADJ"], "fair": ["NOUN"], "poor": ["ADJ"], "shot": ["NOUN"], "fire": ["VERB"]}
    synonyms = {"fine": ["fair", "poor", "unlisted"], "shot": ["fire", "poor"]}
    tagged = method(synonyms=synonyms, tagger=lexicon_tagger(tags))
    for word, expected in (("fine", ["poor", "unlisted"]), ("shot", ["fire"])):
        texts = (Text.split(f"a {word} film"),)
        assert tagged.candidates(0, texts, texts, Place(0, 1)).words == expected


def test_the_tagger_of_nltk_reads_the_whole_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the package: a word after "to" is a verb, any other a noun."""

    def pos_tag(words: list[str], tagset: str) -> list[tuple[str, str]]:
        assert tagset == "universal"
        pairs = pairwise(["", *words])
        return [(word, "VERB" if before == "to" else "NOUN") for before, word in pairs]

    monkeypatch.setitem(sys.modules, "nltk", SimpleNamespace(pos_tag=pos_tag))
    assert nltk_tagger()(["a", "run", "to", "run"]) == [
        frozenset({x}) for x in ("NOUN", "NOUN", "NOUN", "VERB")
    ]

    def missing(words: list[str], tagset: str) -> None:
        raise LookupError("Resource averaged_perceptron_tagger_eng not found.")

    monkeypatch.setitem(sys.modules, "nltk", SimpleNamespace(pos_tag=missing))
    with pytest.raises(InputError, match="its data is missing"):
        nltk_tagger()(["a"])
    monkeypatch.setitem(sys.modules, "nltk", None)
    with pytest.raises(InputError, match="--pos nltk needs nltk: pip install nltk"):
        nltk_tagger()


def by_direction(texts: list[str]) -> Tensor:
    """Vectors of two components: the direction of a text turns by 0.3 with every "turn"."""
    angles = torch.tensor([0.3 * text.split().count("turn") for text in texts])
    return torch.stack([angles.cos(), angles.sin()], dim=1)


def test_similarity_is_the_cosine_with_the_original_or_the_current_text() -> None:
    original, current = (Text.split("a b c d"),), (Text.split("a turn c d"),)
    turned = math.cos(0.3)
    for to_original, expected in ((True, [turned**2 * 2 - 1, turned]), (False, [turned, 1])):
        check = Similarity(by_direction, -1, to_original=to_original)
        words, cosines = check(original, current, Place(0, 3), ["turn", "d"])
        assert words == ["turn", "d"]
        torch.testing.assert_close(cosines, torch.tensor(expected), rtol=0, atol=1e-6)
        check = Similarity(by_direction, turned - 1e-6, to_original=to_original)
        assert (
            check(original, current, Place(0, 3), ["turn", "d"])[0] == ["turn", "d"][to_original:]
        )


def test_only_a_window_of_long_texts_is_compared() -> None:
    check = Similarity(by_direction, 0.9, window=3)
    short, long = (Text.split("a b"),), (Text.split("turn a b c turn"),)
    assert check(short, short, Place(0, 1), ["turn"]) == (["turn"], None)
    changed = replaced(long, Place(0, 0), "turn")
    words, cosines = check(long, changed, Place(0, 2), ["b", "turn"])
    assert words == ["b", "turn"]
    torch.testing.assert_close(cosines, torch.tensor([1, math.cos(0.3)]))


def test_of_the_successful_changes_the_most_similar_is_chosen() -> None:
    """Both synonyms change the prediction; dull lowers the probability less but turns less."""
    synonyms = {"superb": ["poor turn", "dull"]}
    found = attacked(method("textbugger", synonyms=synonyms), "superb fine")
    assert found.attacked == ("poor turn fine",)
    found = attacked(method("textbugger", synonyms=synonyms, encoder=by_direction), "superb fine")
    assert found.attacked == ("dull fine",)


def edits(a: str, b: str) -> int:
    """Levenshtein's distance."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        last, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (x != y))
    return row[-1]


@given(st.text("abcxyzABl0-'é", max_size=12), st.integers(0, 99))
def test_misspellings_are_at_most_five_and_at_distance_one_or_two(word: str, seed: int) -> None:
    found = typos(word, random.Random(seed))
    assert len(found) <= 5
    assert len(set(found)) == len(found)
    assert all(1 <= edits(word, typo) <= 2 for typo in found)
    assert found == typos(word, random.Random(seed))


def test_every_kind_of_misspelling_occurs_and_keeps_the_ends() -> None:
    found = {typo for seed in range(50) for typo in typos("blow", random.Random(seed))}
    keys = {f"b{x}ow" for x in neighbours("l")} | {f"bl{x}w" for x in neighbours("o")}
    spaces, letters = {"b low", "bl ow", "blo w"}, {"bow", "blw", "bolw"}
    assert found == spaces | letters | {"b1ow", "bl0w"} | keys
    assert not any(
        " " in typo for seed in range(50) for typo in typos("wonder", random.Random(seed))
    )
    assert [typos(word, random.Random(1)) for word in ("", "b", "12", "--")] == [[]] * 4


def test_neighbours_on_the_keyboard_are_mutual() -> None:
    letters = "".join(KEYBOARD)
    assert sorted(letters) == [chr(x) for x in range(ord("a"), ord("z") + 1)]
    for letter in letters:
        assert all(letter in neighbours(other) for other in neighbours(letter))
        assert 2 <= len(neighbours(letter)) <= 6
    assert set(neighbours("g")) == set("ftyhbv")
    assert set(neighbours("p")) == set("ol")
    assert neighbours("é") == ""
    assert all(len(x) == 1 for x in LOOK_ALIKES.values())


def test_misspellings_are_tried_besides_synonyms() -> None:
    bugs = method("textbugger", synonyms={"superb": ["great", "fair"]})
    texts = (Text.split("superb"),)
    words = bugs.candidates(3, texts, texts, Place(0, 0)).words
    assert words[-2:] == ["great", "fair"]
    assert words == bugs.candidates(3, texts, texts, Place(0, 0)).words
    assert words != bugs.candidates(4, texts, texts, Place(0, 0)).words
    alone = method("textbugger", synonyms=None)
    assert alone.candidates(3, texts, texts, Place(0, 0)).words == words[:-2]


def test_bae_replaces_words_by_those_of_a_masked_language_model() -> None:
    asked = []

    def fill_mask(before: str, after: str, count: int) -> list[str]:
        asked.append((before, after, count))
        return ["fine", "superb", "poor"]

    found = attacked(method("bae", fill_mask=fill_mask), "a superb film")
    assert found.attacked == ("a poor film",)
    assert asked == [("a", "film", 50)]
    assert found.queries == 1 + 2 + 2  # superb is no candidate for itself


@pytest.mark.parametrize("name", ["greedy", "textfooler", "bae"])
def test_an_attack_names_what_it_needs(name: str) -> None:
    with pytest.raises(InputError, match=f"the attack {name} needs "):
        build(name, Resources(), Limits())


def test_case_of_replacements() -> None:
    cases = [("film", "x"), ("Film", "X"), ("FILM", "XY"), ("A", "Xy")]
    assert [with_case_of(model, word.lower()) for model, word in cases] == [w for _, w in cases]


def test_summary() -> None:
    def one(status: str, words: int, changed: int, queries: int) -> Attack:
        return Attack(0, ("",), ("",), 1, 1, status, words, changed, queries)

    found = summarise(
        [
            one("succeeded", 4, 1, 10),
            *(one("succeeded", 2, 1, 4), one("failed", 2, 1, 7), one("skipped", 2, 0, 1)),
        ]
    )
    assert (found.clean, found.attacked, found.changed, found.queries) == (0.75, 0.25, 0.375, 7)
    assert found.failure_rate == pytest.approx(1 / 3)
    nothing = summarise([one("skipped", 2, 0, 1)])
    assert (nothing.clean, nothing.attacked) == (0, 0)
    assert math.isnan(nothing.failure_rate)
    assert math.isnan(nothing.changed)
    assert math.isnan(nothing.queries)
