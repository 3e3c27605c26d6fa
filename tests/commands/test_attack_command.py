"""stochattn-attack on small trained models: singles, pairs, sampled attention, BAE, bad input."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

import hub
import labelled
import prepare_glue
import runner
import sizes
from bad_input import refusal
from fairseq_stochattn.analysis.attacked_model import AttackedModel, Recipe, read_examples
from fairseq_stochattn.analysis.loading import load_models
from fairseq_stochattn.analysis.text_models import load_fill_mask, load_sentence_encoder
from fairseq_stochattn.commands import attack, import_model
from fairseq_stochattn.core.errors import InputError

FILLERS = [f"{a}{b}" for a in "bdg" for b in ("ola", "umi")]
OPPOSITE = {"good": ["bad"], "bad": ["good"], **{word: FILLERS[:2] for word in FILLERS}}
FEW = ("--limit", 8, "--cpu")


Trained = tuple[Path, Path, Path]  # data, dev.tsv and a checkpoint


def train(folder: Path, task: str, header: str, row: Callable, arch: str) -> Trained:
    """Write a corpus with a ``row`` per text and label, and train a model that learns it."""
    rng, files = random.Random(1), {}
    for name, count in (("train", 256), ("dev", 24)):
        lines = [header]
        for number in range(count):
            words = [*rng.choices(FILLERS, k=4), ("bad", "good")[number % 2]]
            rng.shuffle(words)
            lines.append(row(" ".join(words), number % 2, rng))
        files[f"{task}/{name}.tsv"] = "\n".join([*lines, ""])
    origin, data = labelled.write(folder / "glue", files), folder / "data"
    more = ("--task", task, "--subwords", "spm-unigram", "--size", 24 if task == "RTE" else 20)
    assert labelled.run(prepare_glue, origin, data, *more) == 0
    flags = ("--arch", arch, *sizes.ROBERTA, *sizes.CLASSIFICATION, "--num-classes", 2)
    if task == "RTE":
        flags = (*flags, "--separator-token", 2)
    flags = (*flags, "--init-token", 0, "--dropout", 0, "--lr", 0.01, "--max-positions", 64)
    flags = (
        *flags,
        "--batch-size",
        64,
        "--max-tokens",
        8000,
        "--max-update",
        120 if task == "RTE" else 60,
    )
    runner.train(data, folder / "run", *flags, "--disable-validation")
    return data, origin / task / "dev.tsv", folder / "run" / "checkpoint_last.pt"


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Sentences of which one word determines the label."""
    folder = tmp_path_factory.mktemp("sst")
    row = lambda text, label, rng: f"{text} \t{label}"  # noqa: E731
    return train(folder, "SST-2", "sentence\tlabel", row, "roberta_deterministic")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Pairs: one word of the second sentence determines the label."""

    def row(text: str, label: int, rng: random.Random) -> str:
        first = " ".join(rng.choices(FILLERS, k=6))
        return f"0\t{first}, {rng.choice(FILLERS)}.\t{text}\t{'not_' * (1 - label)}entailment"

    header = "index\tsentence1\tsentence2\tlabel"
    return train(tmp_path_factory.mktemp("rte"), "RTE", header, row, "roberta_babn")


def arguments(trained: Trained, synonyms: Path, *more: object) -> list[str]:
    data, sentences, checkpoint = trained
    flags = ("--sentences", sentences, "--synonyms", synonyms, "--cpu", *more)
    return [str(x) for x in (data, "--path", checkpoint, *flags)]


@pytest.fixture
def run(tmp_path: Path):
    """Return a function that runs the command and returns the attacks and the figures."""

    def call(trained: Trained, *more: object, synonyms: dict = OPPOSITE) -> tuple[list, dict]:
        (tmp_path / "synonyms.json").write_text(json.dumps(synonyms))
        out, figures = tmp_path / "attacks.jsonl", tmp_path / "figures.json"
        flags = ("--output", out, "--json", figures, *more)
        assert attack.main(arguments(trained, tmp_path / "synonyms.json", *flags)) == 0
        found = [json.loads(line) for line in out.read_text().splitlines()]
        return found, json.loads(figures.read_text())

    return call


@pytest.mark.parametrize("name", ["greedy", "textfooler"])
def test_the_decisive_word_is_replaced(single: Trained, run, capsys, name: str) -> None:
    """It has its opposite as a synonym. Other words are harmless, but may rank first."""
    found, figures = run(single, "--attack", name)
    lines = single[1].read_text().splitlines()[1:]
    for number, (one, line) in enumerate(zip(found, lines, strict=True)):
        text = line.split("\t")[0].strip()
        assert (one["number"], one["status"]) == (number, "succeeded")
        assert (one["texts"], one["label"]) == ([text], line[-1])
        assert one["prediction"] != one["label"]
        words = list(zip(text.split(), one["attacked"][0].split(), strict=True))
        assert (("bad", "good") in words) == (one["label"] == "0")
        assert (("good", "bad") in words) == (one["label"] == "1")
        assert all(new == old or new in OPPOSITE[old] for old, new in words)
        assert one["changed"] == sum(old != new for old, new in words)
        assert name != "greedy" or one["changed"] == 1  # a quarter of five words
    assert figures["checkpoint"] == str(single[2])
    assert (figures["clean"], figures["attacked"], figures["failure_rate"]) == (1, 0, 0)
    assert figures["changed"] == pytest.approx(sum(one["changed"] for one in found) / 24 / 5)
    assert figures["queries"] == sum(one["queries"] for one in found) / 24
    header, row = capsys.readouterr().out.splitlines()[-2:]
    assert header.split() == ["checkpoint", *" ".join(attack.COLUMNS).split()]
    assert [float(x) for x in row.split()[1:4]] == [100.0, 0.0, 0.0]


def test_each_checkpoint_has_a_row(single: Trained, tmp_path: Path, capsys) -> None:
    data, sentences, checkpoint = single
    other = checkpoint.with_name("other.pt")
    shutil.copy(checkpoint, other)
    figures = tmp_path / "figures.json"
    flags = ("--sentences", sentences, "--attack", "textbugger", "--json", figures, *FEW)
    assert attack.main([str(x) for x in (data, "--path", checkpoint, other, *flags)]) == 0
    _, *rows = (line.split() for line in capsys.readouterr().out.splitlines())
    assert [row[0] for row in rows] == [str(checkpoint), str(other)]
    assert rows[0][1:] == rows[1][1:]
    found = [json.loads(line) for line in figures.read_text().splitlines()]
    assert [one["checkpoint"] for one in found] == [str(checkpoint), str(other)]


def test_harmless_synonyms_change_no_prediction(single: Trained, run) -> None:
    found, figures = run(single, *FEW, synonyms={word: FILLERS for word in FILLERS})
    assert [one["status"] for one in found] == ["failed"] * 8
    assert (figures["clean"], figures["attacked"], figures["failure_rate"]) == (1, 1, 1)
    assert figures["changed"] is None


def test_batch_size_changes_nothing_but_the_seed_changes_misspellings(single: Trained, run) -> None:
    bugs = (single, *FEW, "--attack", "textbugger", "--seed", 3)
    alone, together = (run(*bugs, "--batch-size", size, synonyms={}) for size in (1, 64))
    assert alone == together
    assert any(one["attacked"] != one["texts"] for one in alone[0])
    other, _ = run(*bugs, "--seed", 4, synonyms={})
    assert [one["attacked"] for one in other] != [one["attacked"] for one in alone[0]]


def test_sampled_attention_is_attacked_and_follows_the_seed(pairs: Trained, run) -> None:
    first, again = (run(pairs, *FEW, "--samples", 3, "--seed", 1) for _ in range(2))
    assert first == again
    assert all(one["status"] == "succeeded" for one in first[0])


def test_only_the_chosen_text_of_a_pair_changes(pairs: Trained, run) -> None:
    found, figures = run(pairs, *FEW)
    assert {one["status"] for one in found} == {"succeeded"}
    assert figures["clean"] == 1
    for one in found:
        assert one["attacked"][0] == one["texts"][0]
        assert one["words"] == 5
        changed = zip(one["texts"][1].split(), one["attacked"][1].split(), strict=True)
        assert one["changed"] == sum(old != new for old, new in changed) >= 1
    found, _ = run(pairs, *FEW, "--attacked", "first")
    assert {one["status"] for one in found} == {"failed"}
    assert {one["words"] for one in found} == {7}
    assert all(one["attacked"][1] == one["texts"][1] for one in found)
    found, _ = run(pairs, *FEW, "--attacked", "all")
    assert {(one["status"], one["words"]) for one in found} == {("succeeded", 12)}


def test_held_out_rows_are_found_by_the_manifest(single: Trained, run, tmp_path: Path) -> None:
    """With --holdout 8, the validation set is every eighth row of train.tsv."""
    data, dev, checkpoint = single
    origin, out = dev.parents[1], tmp_path / "held"
    more = ("--task", "SST-2", "--model-from", data, "--holdout", 8)
    assert labelled.run(prepare_glue, origin, out, *more) == 0
    found, _ = run((out, dev.parent / "train.tsv", checkpoint), "--limit", 5)
    rows = (dev.parent / "train.tsv").read_text().splitlines()[1:]
    assert [one["texts"][0] for one in found] == [r.split("\t")[0].strip() for r in rows[7:40:8]]
    found, _ = run((out, dev, checkpoint), "--gen-subset", "test", *FEW)
    assert len(found) == 8


def test_raw_texts_get_the_tokens_of_prepared_data(pairs: Trained, single: Trained) -> None:
    """Also if a text is truncated, empty or has an unknown word."""
    for trained in (pairs, single):
        recipe = Recipe(trained[0])
        loaded = load_models([str(trained[2])], str(trained[0]), {})
        model = AttackedModel(loaded, recipe, 4, 0)
        examples = read_examples(trained[1], recipe, None, None, 1)
        model.require_same_tokens(examples, trained[0], "valid")
        symbols = loaded.task.source_dictionary
        parts = recipe.spec.inputs
        (empty,) = model.tokens([("",) * parts])
        assert empty.eq(symbols.unk()).sum() == parts
        (marked,) = model.tokens([("bola \0 dola",) * parts])
        (plain,) = model.tokens([("bola dola",) * parts])
        assert marked[marked.ne(symbols.unk())].tolist() == plain.tolist()
        assert len(marked) == len(plain) + parts
        (long,) = model.tokens([("bola " * 999,) * parts])
        assert len(long) <= loaded.models[0].max_positions()
        one_by_one = torch.cat([model([x.texts]) for x in examples])
        torch.testing.assert_close(model([x.texts for x in examples]), one_by_one)


@pytest.fixture(scope="module")
def masked(transformers: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with random masked language models of transformers and their imports."""
    folder = tmp_path_factory.mktemp("mlm")
    for kind in ("Bert", "Roberta"):
        hub.write_model(folder / kind, f"{kind}ForMaskedLM", segments=kind == "Bert")
        names = (folder / kind, folder / f"{kind}-imported", "--arch", "roberta_deterministic")
        assert import_model.main([str(name) for name in names]) == 0
    return folder


@pytest.mark.parametrize("kind", ["Bert", "Roberta"])
def test_an_import_proposes_the_same_words_as_transformers(masked: Path, kind: str) -> None:
    for before, after in (("The man", "the guitar."), ("", ""), ("the dog " * 60, "no " * 60)):
        found = [
            load_fill_mask(masked / name)(before, after, 6) for name in (kind, f"{kind}-imported")
        ]
        assert found[0] == found[1]
        assert len(found[0]) == len(set(found[0])) == 6
        assert all(word.isalnum() for word in found[0])


@pytest.mark.parametrize("kind", ["Bert", "Roberta"])
def test_sentences_are_the_means_of_hidden_states(
    masked: Path, kind: str, transformers: ModuleType
) -> None:
    """Both libraries agree, and vectors do not depend on the other texts of a batch."""
    texts = ["The man is playing.", "no", "The quick brown fox jumps over the lazy dog."]
    ours, theirs = (
        load_sentence_encoder(masked / name)(texts) for name in (f"{kind}-imported", kind)
    )
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)
    model = transformers.AutoModel.from_pretrained(masked / kind).eval()
    with torch.no_grad():
        for text, vector in zip(texts, theirs, strict=True):
            inputs = hub.encode(masked / kind, [text])
            (states,) = model(**inputs).last_hidden_state
            mean = torch.nn.functional.normalize(states.mean(dim=0), dim=0)
            torch.testing.assert_close(vector, mean, rtol=0, atol=1e-5)


def test_bae_with_a_random_model(single: Trained, masked: Path, run) -> None:
    """Its candidates are random words, which the classifier does not know."""
    bae = ("--attack", "bae", "--masked-lm", masked / "Bert", "--max-candidates", 3)
    found, figures = run(single, *FEW, *bae)
    assert figures["attack"] == "bae"
    for one in found:
        words = [x[0].split() for x in (one["texts"], one["attacked"])]
        assert len(words[0]) == len(words[1])
        assert one["changed"] == sum(a != b for a, b in zip(*words, strict=True))
        assert 1 <= one["queries"] <= 1 + 5 + 5 * 3
    checked = (*bae, "--sentence-encoder", masked / "Bert-imported", "--min-similarity", 1)
    # Texts of fewer than 15 words are not compared, as in the attack's authors' code.
    assert run(single, *FEW, *checked)[0] == found
    bugs = ("--attack", "textbugger", *checked[4:])
    assert all(one["changed"] == 0 for one in run(single, *FEW, *bugs, synonyms={})[0])


@pytest.mark.parametrize(
    ("flags", "cause"),
    [
        (("--share", 2), "--share 2 is not within 0 and 1"),
        (("--limit", 0), "--limit 0 must be positive"),
        (("--samples", -1), "--samples -1 must not be negative"),
        (("--attack", "bae"), "--attack bae needs --masked-lm FOLDER"),
        (("--min-similarity", 0.5), "--min-similarity needs --sentence-encoder FOLDER"),
        (("--synonyms", __file__), "is not JSON"),
        (("--synonyms", "list.json"), "is not a JSON object of words and lists of synonyms"),
        (("--pos", "missing.json"), "missing.json does not exist"),
        (("--stop-words", "missing.txt"), "missing.txt: No such file or directory"),
        (("--masked-lm", "."), "--masked-lm . has neither model.pt nor config.json"),
        (("--sentence-encoder", "nothing"), "--sentence-encoder nothing is not a folder"),
        (("--sentences", __file__), "has no column 'sentence'"),
        (("--sentences", "other.tsv"), "6 of 6 examples are not those of valid"),
        (("--sentences", "unlabelled.tsv"), "has no example with sentence and a label among 0, 1"),
        (("--columns", "sentence"), "--columns must name 2 columns"),
        (("--columns", "a", "b", "c"), "--columns must name 2 columns"),
        (("--gen-subset", "test"), "no test set"),
        (("--attack", "nonsense"), "invalid choice: 'nonsense'"),
        (("--output", "."), "--output . is a directory"),
    ],
)
def test_bad_input_gives_one_line(
    single: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple, cause: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "synonyms.json").write_text(json.dumps(OPPOSITE))
    (tmp_path / "list.json").write_text('{"good": "bad"}')
    (tmp_path / "other.tsv").write_text("sentence\tlabel\n" + "bola bad good\t1\n" * 6)
    (tmp_path / "unlabelled.tsv").write_text("sentence\tgold\nbola bad\t1\n")
    given = arguments(single, tmp_path / "synonyms.json", "--json", "figures.json", *flags)
    assert cause in refusal(attack.main, *given)
    assert not (tmp_path / "figures.json").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"recipe": None},
        *({"recipe": {"subwords": x, "lowercase": y}} for x, y in ((3, False), ("none", "no"))),
        *({"arguments": x} for x in ([], {}, {"max_tokens": "many"})),
        {"arguments": {"max_tokens": 9, "kind": "classification", "inputs": 1, "labels": "01"}},
    ],
)
def test_a_damaged_manifest_gives_one_line(tmp_path: Path, change: dict) -> None:
    good = {"max_tokens": 9, "kind": "classification", "inputs": 1, "labels": ["0", "1"]}
    whole = {"recipe": {"subwords": "none", "lowercase": False}, "arguments": good}
    (tmp_path / "manifest.json").write_text(json.dumps(whole))
    assert Recipe(tmp_path).spec.labels == ("0", "1")
    (tmp_path / "manifest.json").write_text(json.dumps({**whole, **change}))
    with pytest.raises(InputError, match=r"has no manifest\.json of data-prep"):
        Recipe(tmp_path)


def test_models_that_cannot_be_attacked_are_refused(
    single: Trained,
    regression_data: Path,
    masked: Path,
    tmp_path: Path,
    transformers: ModuleType,
) -> None:
    (tmp_path / "synonyms.json").write_text(json.dumps(OPPOSITE))
    given = arguments((regression_data, *single[1:]), tmp_path / "synonyms.json")
    assert "has no manifest.json of data-prep" in refusal(attack.main, *given)
    given = arguments(single, tmp_path / "synonyms.json", "--samples", 2)
    assert "attention is not random" in refusal(attack.main, *given)
    hub.write_model(tmp_path / "headless", "BertModel")
    folders = (tmp_path / "headless", tmp_path / "imported")
    import_model.main([*map(str, folders), "--arch", "roberta_deterministic"])
    for folder in folders:
        with pytest.raises(InputError, match="head for masked language modelling"):
            load_fill_mask(folder)
