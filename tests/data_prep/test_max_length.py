"""--max-length: pairs are cut, the longer text first, and long examples never abort a training."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

import labelled
import prepare_dream
import prepare_glue
import runner
import sizes
from steps.finetuning import Encoding, cut_pair

WORDS = ("--subwords", "none")


def test_cut_pairs_equal_removing_one_token_at_a_time() -> None:
    for room in range(2, 9):
        for first in range(1, 12):
            for second in range(1, 12):
                a, b = first, second
                while a + b > room:
                    a, b = (a, b - 1) if b >= a else (a - 1, b)
                assert cut_pair(first, second, room) == (a, b)


@pytest.mark.parametrize(
    ("inputs", "two", "room"), [(1, True, 126), (2, True, 124), (4, False, 125)]
)
def test_room_is_what_the_special_tokens_leave(inputs: int, two: bool, room: int) -> None:
    """<s> a </s> has two, <s> a </s> </s> b </s> four, [CLS] a [SEP] b [SEP] three."""
    assert Encoding("none", 0, 128 - 2, two_separators=two).room(inputs) == room


def test_pairs_have_the_length_that_was_asked_for(tmp_path: Path) -> None:
    rows = ["index\tsentence1\tsentence2\tlabel"]
    draw = random.Random(0)
    for n in range(30):
        texts = (
            " ".join("ab"[draw.random() > 0.5] for _ in range(draw.randint(1, 40))) for _ in "12"
        )
        rows.append("\t".join([str(n), *texts, "entailment"]))
    table = "\n".join(rows) + "\n"
    origin = labelled.write(tmp_path / "from", {"RTE/train.tsv": table, "RTE/dev.tsv": table})
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert labelled.run(prepare_glue, origin, whole, "--task", "RTE", *WORDS) == 0
    assert labelled.run(prepare_glue, origin, cut, "--task", "RTE", "--max-length", 24, *WORDS) == 0
    for before, after in zip(
        labelled.rows(whole, "train"), labelled.rows(cut, "train"), strict=True
    ):
        lengths = [len(text.split()) for text in before[:2]]
        expected = cut_pair(*lengths, 20)
        for text, full, length in zip(after, before[:2], expected, strict=False):
            assert text.split() == full.split()[:length]
    shortest = ("--max-length", 5)
    assert labelled.run(prepare_glue, origin, tmp_path / "x", "--task", "RTE", *shortest) == 1


def test_a_dialogue_of_600_tokens_prepares_and_trains(tmp_path: Path) -> None:
    """It loses its first turns, so that the question stays."""
    dialogue = [f"M: word{n % 7} of turn {n}" for n in range(120)]
    question = {"question": "who is right ?", "choice": ["Ann", "Bob", "Eve"], "answer": "Bob"}
    short = [["W: hi"], [question], "2"]
    data = json.dumps([[dialogue, [question], "1"], *[short] * 6])
    files = {name: data for name in ("train.json", "dev.json", "test.json")}
    out = tmp_path / "out"
    origin = labelled.write(tmp_path / "from", files)
    assert labelled.run(prepare_dream, origin, out, *WORDS) == 0
    context = labelled.rows(out, "train")[0][0].split()
    assert len(" ".join(dialogue).split()) == 600
    assert len(context) == 512 - 4 - 1
    assert context[-4:] == question["question"].split()
    model = (*sizes.ROBERTA, *sizes.CHOICE, "--num-classes", 3, "--max-positions", 512)
    flags = ("--arch", "roberta_deterministic", *model, "--separator-token", 2, "--batch-size", 4)
    output = runner.train(
        out, tmp_path / "run", *flags, "--max-tokens", 4000, "--max-update", 3, "--no-save"
    )
    assert len(output.losses()) == 3
