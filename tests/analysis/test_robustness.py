"""Synonym substitution attacks a hand-made classifier, and its script attacks a trained one."""

from __future__ import annotations

import importlib.util
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

import labelled
import prepare_glue
import runner
import sizes
from fairseq_stochattn.analysis.substitution import Attack, Words, attack, summarise
from fairseq_stochattn.compat import UsageError

SCRIPT = runner.ROOT / "examples" / "asa" / "robustness.py"
_spec = importlib.util.spec_from_file_location("robustness", SCRIPT)
robustness = importlib.util.module_from_spec(_spec)
sys.modules["robustness"] = robustness
_spec.loader.exec_module(robustness)

# Votes of words for class 1. All other words, and the unknown token, have 0 votes.
VOTES = {"superb": 3.0, "great": 2.0, "fine": 1.0, "fair": 0.4, "poor": -2.0, "dull": -1.2}
SYNONYMS = {"superb": ["great", "fair"], "fine": ["fair", "fine", "great"], "film": ["movie"]}


def by_votes(sentences: Sequence[Words]) -> Tensor:
    """A classifier: the logit of class 1 is the sum of the votes of all words."""
    votes = torch.tensor([sum(VOTES.get(word, 0.0) for word in words) for words in sentences])
    return torch.stack([-votes, votes], dim=1).softmax(dim=-1)


def attacked(text: str, share: float = 1.0, label: int = 1) -> Attack:
    return attack(text.split(), label, SYNONYMS, by_votes, share)


def test_words_are_replaced_in_the_order_of_importance_by_the_most_harmful_synonym() -> None:
    """First superb and then fine are replaced by fair. The words Superb and film have 0 votes, so
    no synonym lowers the probability, and they are not replaced."""
    found = attacked("a fine Superb superb film")
    assert found == Attack(
        words=["a", "fair", "Superb", "fair", "film"],
        **{"right": True, "survived": True, "changed": 2},
        # One original sentence, four with an unknown token, and one per synonym of each word.
        queries=1 + 4 + 2 + 2 + 2 + 1,
    )


def test_attack_stops_when_the_prediction_changes() -> None:
    # The sum of votes is 2.8, then 0.2 with fair for superb, then −0.4 with fair for fine too.
    found = attacked("superb dull film fine")
    assert found.words == ["fair", "dull", "film", "fair"]
    assert (found.right, found.survived, found.changed) == (True, False, 2)
    assert found.queries == 1 + 3 + 2 + 2


def test_share_limits_the_number_of_replaced_words() -> None:
    text = "superb superb fine film"
    assert [attacked(text, share).changed for share in (0, 0.24, 0.25, 0.5, 1)] == [0, 0, 1, 2, 3]
    assert attacked(text, 0.25).words == ["fair", "superb", "fine", "film"]


def test_wrongly_classified_sentences_are_not_attacked() -> None:
    assert attacked("superb film", label=0) == Attack(["superb", "film"], False, False, 0, 1)
    assert attacked("poor thing", label=0) == Attack(["poor", "thing"], True, True, 0, 1)


def test_summary_of_attacks() -> None:
    rows = [
        Attack(["a"] * 4, right=True, survived=False, changed=1, queries=10),
        Attack(["a"] * 2, right=True, survived=False, changed=1, queries=4),
        Attack(["a"] * 2, right=True, survived=True, changed=1, queries=7),
        Attack(["a"] * 2, right=False, survived=False, changed=0, queries=1),
    ]
    found = summarise(rows)
    assert (found.clean, found.attacked, found.changed, found.queries) == (0.75, 0.25, 0.375, 7)


FILLERS = [f"{a}{b}" for a in "bdg" for b in ("ola", "umi")]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Data, dev.tsv and a checkpoint. One of the five words in a sentence determines the label."""
    folder, rng = tmp_path_factory.mktemp("sst"), random.Random(1)
    files = {}
    for name, count in (("train", 256), ("dev", 24)):
        lines = ["sentence\tlabel"]
        for number in range(count):
            words = [*rng.choices(FILLERS, k=4), ("bad", "good")[number % 2]]
            rng.shuffle(words)
            lines.append(f"{' '.join(words)} \t{number % 2}")
        files[f"SST-2/{name}.tsv"] = "\n".join([*lines, ""])
    origin, data = labelled.write(folder / "glue", files), folder / "data"
    more = ("--task", "SST-2", "--subwords", "spm-unigram", "--size", 20)
    assert labelled.run(prepare_glue, origin, data, *more) == 0
    flags = ("--arch", "roberta_deterministic", *sizes.ROBERTA, *sizes.CLASSIFICATION)
    flags = (*flags, "--num-classes", 2, "--init-token", 0, "--dropout", 0, "--lr", 0.01)
    flags = (*flags, "--batch-size", 64, "--max-tokens", 4000, "--max-update", 50)
    runner.train(data, folder / "run", *flags, "--disable-validation")
    return data, origin / "SST-2" / "dev.tsv", folder / "run" / "checkpoint_last.pt"


def run(trained: tuple, tmp_path: Path, synonyms: dict, *more: object) -> list[dict]:
    """Run the script and return the attacks that it writes."""
    data, sentences, checkpoint = trained
    (tmp_path / "synonyms.json").write_text(json.dumps(synonyms))
    flags = ("--sentences", sentences, "--synonyms", tmp_path / "synonyms.json", "--cpu")
    out = tmp_path / "attacks.jsonl"
    argv = [data, checkpoint, *flags, "--output", out, *more]
    assert robustness.main([str(argument) for argument in argv]) == 0
    return [json.loads(line) for line in out.read_text().splitlines()]


def table(capsys: pytest.CaptureFixture) -> list[float]:
    """The numbers in the last row of the printed table."""
    header, row = capsys.readouterr().out.splitlines()[-2:]
    assert header.split() == ["checkpoint", *" ".join(robustness.COLUMNS).split()]
    return [float(x) for x in row.split()[1:]]


def test_one_replaced_word_changes_every_prediction(trained: tuple, tmp_path: Path, capsys) -> None:
    """The word that determines the label has its opposite as a synonym; others are harmless."""
    opposite = {"good": ["bad"], "bad": ["good"], **{word: FILLERS[:2] for word in FILLERS}}
    found = run(trained, tmp_path, opposite)
    assert len(found) == 24
    assert all(one["right"] and not one["survived"] for one in found)
    clean, under_attack, changed, _ = table(capsys)
    assert (clean, under_attack, changed) == (100.0, 0.0, 20.0)
    lines = trained[1].read_text().splitlines()[1:]
    for one, line in zip(found, lines, strict=True):
        words = line.split("\t")[0].split()
        expected = [{"good": "bad", "bad": "good"}.get(word, word) for word in words]
        assert one["words"] == expected


def test_harmless_synonyms_change_no_prediction(trained: tuple, tmp_path: Path, capsys) -> None:
    found = run(trained, tmp_path, {w: FILLERS for w in FILLERS}, "--limit", 6, "--batch-size", 4)
    assert len(found) == 6
    assert all(one["survived"] for one in found)
    assert table(capsys)[:3] == [100.0, 100.0, 0.0]


@pytest.mark.parametrize(
    ("flags", "cause"),
    [
        (("--share", 2), "--share is within 0 and 1"),
        (("--synonyms", SCRIPT), "is not a JSON object"),
        (("--sentences", SCRIPT), "has no column 'sentence'"),
        (("--sentences", "other"), "6 of 6 sentences are not those of valid"),
        (("--subset", "test"), "no test set"),
    ],
)
def test_bad_input_is_reported(trained: tuple, tmp_path: Path, flags: tuple, cause: str) -> None:
    if flags[1] == "other":
        (tmp_path / "other.tsv").write_text("sentence\tlabel\n" + "bola bad good\t1\n" * 6)
        flags = ("--sentences", tmp_path / "other.tsv")
    with pytest.raises(UsageError, match=cause):
        run(trained, tmp_path, {"good": ["bad"]}, *flags)
    assert not (tmp_path / "attacks.jsonl").exists()
