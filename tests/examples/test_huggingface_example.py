"""examples/huggingface trains and evaluates a tiny model with every method."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import hub
import runner
import squad_corpus

pytestmark = pytest.mark.usefixtures("transformers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT in ``bert``, and MRPC and RTE in ``glue``."""
    out = tmp_path_factory.mktemp("huggingface")
    hub.write_model(out / "bert", "BertModel")
    pairs = [*enumerate(hub.PAIRS)] * 4
    mrpc = [f"{n % 2}\t1\t2\t{a}\t{b}" for n, (a, b) in pairs]
    rte = [f"{n}\t{a}\t{b}\t{'not_' * (n % 2)}entailment" for n, (a, b) in pairs]
    for task, rows in (("MRPC", mrpc), ("RTE", rte)):
        (out / "glue" / task).mkdir(parents=True)
        for split in ("train", "dev"):
            text = "".join(f"{row}\n" for row in ["header", *rows])
            (out / "glue" / task / f"{split}.tsv").write_text(text)
    return out


@pytest.mark.parametrize("method", ["plain", "babn", "alignment", "asa", "repulsive"])
def test_finetune_and_evaluate(
    method: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.syspath_prepend(str(runner.ROOT / "examples" / "huggingface"))
    for name in ("finetune", "evaluate"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import evaluate
    import finetune

    glue = ["--glue", str(folder / "glue"), "--task", "MRPC"]
    model = ["--model", str(folder / "bert"), "--max-steps", "2", "--samples", "3"]
    assert finetune.main([*glue, *model, "--method", method, "--output", str(tmp_path)]) == 0
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["updates"] == 2
    assert 0 <= result["accuracy"] <= 100
    capsys.readouterr()
    flags = ["--outside", "RTE", "--samples", "3"]
    assert evaluate.main([str(tmp_path / "model"), *glue, *flags]) == 0
    found = json.loads(capsys.readouterr().out)
    assert 0 <= found["pavpu"] <= 1
    assert (found["mutual_information"] > 0) == (method == "babn")
    assert "auroc_outside_predictive_entropy" in found
    assert finetune.main([*glue[:1], str(tmp_path), *model, "--output", str(tmp_path)]) == 2
    assert "does not exist" in capsys.readouterr().err


@pytest.mark.parametrize("method", ["plain", "babn", "alignment", "asa"])
def test_squad(
    method: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    """Two updates and the answers; the answers are the file's, one for each question."""
    monkeypatch.syspath_prepend(str(runner.ROOT / "examples" / "huggingface"))
    for name in ("finetune", "squad"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import squad

    corpus = squad_corpus.write(tmp_path / "squad", articles=3, contexts=2)
    model = ["--model", str(folder / "bert"), "--max-steps", "2", "--samples", "2"]
    windows = ["--articles", "2", "1", "--max-length", "40", "--overlap", "8"]
    out = tmp_path / "out"
    args = [*model, *windows, "--squad", str(corpus), "--method", method, "--output", str(out)]
    assert squad.main(args) == 0
    result = json.loads((out / "result.json").read_text())
    assert (result["updates"], result["questions"]) == (2, 4)
    assert 0 <= result["f1"] <= 100
    answers = json.loads((out / "answers.json").read_text())
    assert list(answers) == ["2-0a", "2-0u", "2-1a", "2-1u"]
    capsys.readouterr()
    assert squad.main([*args, "--articles", "3", "3"]) == 2
    assert "has 3 articles" in capsys.readouterr().err


def test_windows_of_transformers_have_the_answer(folder: Path, monkeypatch, tmp_path) -> None:
    """The labelled tokens of every window cover the answer; the context's tokens are in order."""
    monkeypatch.syspath_prepend(str(runner.ROOT / "examples" / "huggingface"))
    for name in ("finetune", "squad"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import squad
    import transformers

    corpus = squad_corpus.write(tmp_path / "squad", articles=2, contexts=3)
    articles = squad.prepare_squad.read_articles(
        squad.prepare_squad.TextFile(corpus / "dev-v2.0.json")
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "bert")
    found = squad.encode(articles, tokenizer, 40, 8)
    assert len(found.inputs) > len(found.questions)
    labelled = 0
    for question in found.questions:
        assert question.context.starts == sorted(question.context.starts)
        for row, first, count in question.windows:
            start, end = (found.inputs[row][name] for name in ("start_positions", "end_positions"))
            place = found.places[row]
            assert place.stop - place.start == count
            if start:
                text = question.context.span(first + start - place.start, first + end - place.start)
                assert text == question.answers[0]
                labelled += 1
    assert labelled >= 6
