"""examples/huggingface trains and evaluates a tiny model with every method."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import hub
import runner

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
