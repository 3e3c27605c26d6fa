"""Domain shift end to end on miniature files in the corpora's own formats, and its table."""

from __future__ import annotations

import csv
import io
import json
import random
import re
import sys
from pathlib import Path

import pytest
from test_example_scripts import calls

import evaluated
import labelled
import prepare_glue
import prepare_hellaswag
import prepare_snli
import prepare_swag
import prepare_twitterppdb
import runner
import sizes
from fairseq_stochattn.commands import evaluate

sys.path.insert(0, str(runner.ROOT / "examples" / "domain_shift"))
import domain_table

WORDS = ("--subwords", "none")
COLA = runner.ROOT.parent / "shared" / "data" / "glue" / "CoLA"
CLASSES = ("contradiction", "neutral", "entailment")


def sentences(seed: int, count: int) -> list[tuple[str, str]]:
    rng = random.Random(seed)
    words = ["man", "woman", "dog", "runs", "sits", "red", "blue", "house"]
    return [tuple(" ".join(rng.choices(words, k=5)) for _ in range(2)) for _ in range(count)]


def snli(folder: Path) -> Path:
    def rows(seed: int, count: int) -> str:
        pairs = enumerate(sentences(seed, count))
        lines = (
            {"gold_label": CLASSES[n % 3], "sentence1": a, "sentence2": b} for n, (a, b) in pairs
        )
        return "".join(json.dumps(line) + "\n" for line in lines)

    splits = enumerate(("train", "dev", "test"))
    files = {f"snli_1.0/snli_1.0_{split}.jsonl": rows(seed, 12) for seed, split in splits}
    return labelled.write(folder, {"snli_1.0.zip": files})


def mnli(folder: Path) -> Path:
    head = "index\tsentence1\tsentence2\tgold_label\n"
    rows = [f"{n}\t{a}\t{b}\t{CLASSES[n % 3]}\n" for n, (a, b) in enumerate(sentences(5, 12))]
    names = ("train", "dev_matched", "dev_mismatched")
    return labelled.write(folder, {f"MNLI/{name}.tsv": head + "".join(rows) for name in names})


def qqp(folder: Path) -> Path:
    head = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    rows = [f"{n}\t1\t2\t{a}\t{b}\t{n % 2}\n" for n, (a, b) in enumerate(sentences(6, 12))]
    return labelled.write(folder, {f"QQP/{x}.tsv": head + "".join(rows) for x in ("train", "dev")})


def twitter(folder: Path) -> Path:
    rows = [f"{a}\t{b}\t({n % 7}, 6)\thttp://t\n" for n, (a, b) in enumerate(sentences(7, 21))]
    text = "".join([*rows, "a\tb\t(9, 6)\thttp://t\n", "a tweet with too few columns\n"])
    return labelled.write(folder, dict.fromkeys(prepare_twitterppdb.FILES.values(), text))


def swag(folder: Path) -> Path:
    def rows(labels: bool) -> str:
        text = io.StringIO()
        writer = csv.writer(text)
        head = ["startphrase", *(f"ending{n}" for n in range(4))]
        writer.writerow([*head, "label"] if labels else head)
        for n, (a, b) in enumerate(sentences(8, 12)):
            row = [a, b, f"{b} red", f"{b} dog", "dog"]
            writer.writerow([*row, n % 4] if labels else row)
        return text.getvalue()

    names = {"train.csv": True, "val.csv": True, "test.csv": False}
    return labelled.write(folder, {name: rows(labels) for name, labels in names.items()})


def hellaswag(folder: Path) -> Path:
    lines = [
        json.dumps({"ctx": a, "endings": [b, "dog", "red", "man runs"], "label": n % 4}) + "\n"
        for n, (a, b) in enumerate(sentences(9, 12))
    ]
    names = (f"hellaswag_{split}.jsonl" for split in ("train", "val", "test"))
    return labelled.write(folder, dict.fromkeys(names, "".join(lines)))


# Pair → (script, flags, writer) of both corpora, the number of classes, and the flags of training.
CLASSIFY = (
    *("--task", "sentence_prediction", "--criterion", "sentence_prediction"),
    *("--init-token", 0),
)
PAIRS = {
    "snli-mnli": (
        (prepare_snli, (), snli), (prepare_glue, ("--task", "MNLI"), mnli),
        (*CLASSIFY, "--num-classes", 3, "--separator-token", 2),
    ),
    "qqp-twitterppdb": (
        (prepare_glue, ("--task", "QQP"), qqp), (prepare_twitterppdb, (), twitter),
        (*CLASSIFY, "--num-classes", 2, "--separator-token", 2),
    ),
    "swag-hellaswag": (
        (prepare_swag, (), swag), (prepare_hellaswag, (), hellaswag), sizes.CHOICE,
    ),
}  # fmt: skip


def prepared(part: tuple, folder: Path, *flags: object) -> Path:
    script, own, write = part
    origin, out = write(folder / "from"), folder / "data"
    assert labelled.run(script, origin, out, *own, *WORDS, "--halve", *flags) == 0
    return out


@pytest.mark.parametrize("pair", PAIRS)
def test_a_pair_end_to_end(pair: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Trained on one corpus, a model is measured on the test halves of both."""
    first, second, task = PAIRS[pair]
    inside = prepared(first, tmp_path / "a")
    outside = prepared(second, tmp_path / "b", "--model-from", inside)
    halves = [len(labelled.labels(inside, split)) for split in ("valid", "test")]
    assert halves == [6, 6]
    flags = ("--arch", "roberta_babn", *sizes.ROBERTA, *task, "--max-positions", 64)
    runner.train(inside, tmp_path / "run", *flags, "--max-update", 2)
    checkpoint, file = tmp_path / "run" / "checkpoint_last.pt", tmp_path / "x-seed1.json"
    args = (
        *(inside, "--path", checkpoint, "--samples", 3, "--cpu", "--json", file),
        *("--gen-subset", "test", "--out-of-domain", outside, "--out-of-domain-subset", "test"),
    )
    capsys.readouterr()
    assert evaluate.main([str(x) for x in args]) == 0
    assert "out of domain:" in capsys.readouterr().out
    (found,) = json.loads(file.read_text())["checkpoints"]
    other = found["out_of_domain"]["metrics"]
    # Out of domain the figures are those of an evaluation of that set itself.
    alone = tmp_path / "alone.json"
    args = (
        *(outside, "--path", checkpoint, "--samples", 0, "--cpu"),
        *("--gen-subset", "test", "--json", alone),
    )
    assert evaluate.main([str(x) for x in args]) == 0
    (itself,) = json.loads(alone.read_text())["checkpoints"]
    assert other["nll_mean_attention"] == pytest.approx(itself["metrics"]["nll"], abs=1e-4)
    assert set(other) >= {"accuracy", "ece", "pavpu"}
    assert domain_table.main([str(file)]) == 0
    lines = capsys.readouterr().out.strip().splitlines()[-2:]
    headings = [x for name in ("accuracy", "ECE", "PAvPU") for x in (name, "in", name, "out")]
    assert lines[0].split() == headings
    shown = [float(x) for x in lines[1].split()[1:]]
    expected = [
        factor * metrics[name]
        for name, factor in (("accuracy", 1), ("ece", 100), ("pavpu", 100))
        for metrics in (found["metrics"], other)
    ]
    assert shown == pytest.approx(expected, abs=0.006)


def test_votes_of_twitterppdb(tmp_path: Path) -> None:
    out = tmp_path / "data"
    origin = twitter(tmp_path / "from")
    assert labelled.run(prepare_twitterppdb, origin, out, *WORDS) == 0
    votes = [n % 7 for n in range(21) if n % 7 != 3]
    assert labelled.labels(out, "valid") == [str(int(n >= 4)) for n in votes]
    dropped = json.loads((out / "manifest.json").read_text())["splits"]["valid"]["dropped"]
    assert dropped == {
        "undecided: 3 of 6 votes": 3, "row without votes such as (4, 6)": 1,
        "wrong number of columns": 1,
    }  # fmt: skip


def test_twitterppdb_without_its_files(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert labelled.run(prepare_twitterppdb, tmp_path, tmp_path / "out") == 1
    error = capsys.readouterr().err
    assert "Twitter_URL_Corpus_train.txt does not exist" in error
    assert len(error.splitlines()) == 1


def test_labels_that_mean_something_else_are_not_used(tmp_path: Path) -> None:
    """Data with other classes is compared by uncertainty alone."""
    first, _, task = PAIRS["snli-mnli"]
    inside = prepared(first, tmp_path / "a")
    other = (prepare_glue, ("--task", "QQP"), qqp)
    outside = prepared(other, tmp_path / "b", "--model-from", inside)
    flags = ("--arch", "roberta_deterministic", *sizes.ROBERTA, *task, "--max-positions", 64)
    runner.train(inside, tmp_path / "run", *flags, "--max-update", 1)
    file = tmp_path / "x.json"
    args = (
        *(inside, "--path", tmp_path / "run" / "checkpoint_last.pt", "--cpu", "--json", file),
        *("--gen-subset", "test", "--out-of-domain", outside, "--out-of-domain-subset", "test"),
    )
    assert evaluate.main([str(x) for x in args]) == 0
    (found,) = json.loads(file.read_text())["checkpoints"]
    assert "metrics" not in found["out_of_domain"]
    assert 0 <= found["out_of_domain"]["auroc"]["entropy"] <= 1
    with pytest.raises(SystemExit, match="that set has no labels"):
        domain_table.main([str(file)])


@pytest.mark.skipif(not COLA.is_dir(), reason=f"no CoLA at {COLA}")
def test_domains_of_cola_are_those_of_its_paper(tmp_path: Path) -> None:
    out = tmp_path / "data"
    flags = ("--task", "CoLA", "--domains", "--subwords", "none")
    assert labelled.run(prepare_glue, COLA.parent, out, *flags) == 0
    sizes_of = {x: len(labelled.labels(out, x)) for x in ("train", "valid", "valid_outside")}
    assert sizes_of == {"train": 8551, "valid": 527, "valid_outside": 516}
    halved = tmp_path / "halved"
    assert labelled.run(prepare_glue, COLA.parent, halved, *flags, "--halve") == 0
    names = ("valid", "test", "valid_outside", "test_outside")
    assert [len(labelled.labels(halved, x)) for x in names] == [264, 263, 258, 258]
    whole, parts = labelled.rows(out, "valid"), [labelled.rows(halved, x) for x in names[:2]]
    assert whole[::2] == parts[0]
    assert whole[1::2] == parts[1]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--task", "QQP", "--domains"), "--domains is for --task CoLA"),
        (("--task", "QQP", "--halve", "--holdout", 3), "--holdout cannot be combined"),
    ],
)
def test_flags_that_do_not_fit(
    flags: tuple, message: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert labelled.run(prepare_glue, qqp(tmp_path / "from"), tmp_path / "out", *flags) == 1
    assert message in capsys.readouterr().err


def test_the_table_averages_seeds(tmp_path: Path) -> None:
    paths = []
    for seed, shift in ((1, 0.1), (2, 0.3)):
        entry = evaluated.checkpoint(f"babn-seed{seed}", shift)
        metrics = {"accuracy": 70.0 + seed, "ece": shift / 2, "pavpu": 0.5}
        entry["out_of_domain"] = {**entry["out_of_domain"], "metrics": metrics}
        path = tmp_path / f"{seed}.json"
        path.write_text(json.dumps({"checkpoints": [entry]}))
        paths.append(path)
    row = domain_table.as_table(domain_table.read_values(paths)).splitlines()[1]
    assert row.split("  ")[0] == "babn"
    assert re.findall(r"[\d.]+ ± [\d.]+", row) == [
        "81.25 ± 0.00", "71.50 ± 0.71", "20.00 ± 14.14", "10.00 ± 7.07", "83.00 ± 0.00",
        "50.00 ± 0.00",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("pair", "variables", "script"),
    [
        ("snli-mnli", {}, "prepare_glue.py"),
        ("qqp-twitterppdb", {"OUTSIDE": "tweets"}, "prepare_twitterppdb.py"),
        ("swag-hellaswag", {"PRESET": "roberta"}, "prepare_hellaswag.py"),
        ("cola", {"PRESET": "small"}, None),
    ],
)
def test_the_script_halves_both_development_sets(
    pair: str, variables: dict[str, str], script: str | None, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    import test_example_scripts as scripts

    monkeypatch.setattr(scripts, "COMMANDS", (*scripts.COMMANDS, "stochattn-evaluate"))
    # What the import and the preparation leave, which the stubs do not.
    tasks = {"snli": "SNLI", "qqp": "QQP", "swag": "SWAG", "cola": "CoLA"}
    (tmp_path / "out" / tasks[pair.partition("-")[0]]).mkdir(parents=True)
    manifest = {"model": {"flags": "--x 1", "two_separators": True}}
    (tmp_path / "out" / "imported").mkdir()
    (tmp_path / "out" / "imported" / "manifest.json").write_text(json.dumps(manifest))
    (tmp_path / "out" / "imported" / "model.pt").write_text("")
    found = calls(tmp_path, "domain_shift/run.sh", pair, "out", METHODS="babn", **variables)
    (training,) = [call for call in found if call[0] == "fairseq-train"]
    assert training[training.index("--arch") + 1] == "roberta_babn"
    made = [call for call in found if "prepare_" in str(call)]
    assert len(made) == (1 if script is None else 2)
    assert all("--halve" in call for call in made)
    (evaluation,) = [call for call in found if call[0] == "stochattn-evaluate"]
    subset = evaluation[evaluation.index("--out-of-domain-subset") + 1]
    assert subset == ("test_outside" if script is None else "test")
    if script is not None:
        assert made[1][1].endswith(script)
        assert made[1][made[1].index("--model-from") + 1] == "out/imported"
