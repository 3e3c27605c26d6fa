"""The recipe in docs/robustness.md: an exported model predicts the same through its tokenizer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import hub
import labelled
import prepare_glue
import runner
from fairseq_stochattn.analysis.attacked_model import AttackedModel, Recipe, read_examples
from fairseq_stochattn.analysis.loading import load_models
from fairseq_stochattn.commands import export, import_model
from fairseq_stochattn.core.json_input import read_json

SENTENCES = [*hub.SENTENCES, "The lazy dog is no man !", "a  fox , a dog  and a man ? "]
TEXTS = {
    "SST-2": ("sentence\tlabel", [f"{x}\t{n % 2}" for n, x in enumerate(SENTENCES)]),
    "MRPC": (
        "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String",
        [f"{n % 2}\t1\t2\t{a}\t{b}" for n, (a, b) in enumerate(hub.PAIRS)],
    ),
}


@pytest.fixture(scope="module", params=[("BertModel", 1), ("RobertaModel", 2)], ids=lambda x: x[0])
def imported(
    request: pytest.FixtureRequest,
    transformers: ModuleType,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """The import of a small model; BERT's pairs have one separator, RoBERTa's two."""
    name, separators = request.param
    folder = tmp_path_factory.mktemp(name)
    hub.write_model(folder / "hf", name, segments=separators == 1)
    names = (folder / "hf", folder / "imported", "--arch", "roberta_alignment")
    assert import_model.main([str(x) for x in names]) == 0
    return folder / "imported"


def fine_tuned(imported: Path, task: str, folder: Path) -> tuple[Path, Path]:
    """Prepare a task and fine-tune the model for a few updates: data and checkpoint."""
    header, rows = TEXTS[task]
    table = "\n".join([header, *rows, ""])
    origin = labelled.write(folder / "glue", {f"{task}/{x}.tsv": table for x in ("train", "dev")})
    data = folder / "data"
    assert labelled.run(prepare_glue, origin, data, "--task", task, "--model-from", imported) == 0
    manifest = read_json(data / "manifest.json")
    flags = [*manifest["model"]["flags"].split(), "--task", "sentence_prediction"]
    if task == "MRPC" and manifest["model"]["two_separators"]:
        flags += ["--separator-token", 2]
    flags += ["--criterion", "alignment", "--num-classes", 2, "--init-token", 0, "--max-update", 4]
    runner.train(data, folder / "run", *flags, "--disable-validation", user_dir=None)
    return data, folder / "run" / "checkpoint_last.pt"


def as_textattack(tokenizer: Any, model: Any, texts: Sequence[Any]) -> Tensor:
    """Class probabilities: TextAttack pads all texts to the length that the model takes."""
    inputs = tokenizer(
        list(texts), padding="max_length", max_length=64, truncation=True, return_tensors="pt"
    )
    with torch.no_grad():
        return model(**inputs).logits.softmax(dim=-1)


@pytest.mark.parametrize("task", TEXTS)
def test_an_exported_model_predicts_the_same_for_raw_texts(
    imported: Path, task: str, transformers: ModuleType, tmp_path: Path
) -> None:
    data, checkpoint = fine_tuned(imported, task, tmp_path)
    command = (checkpoint, tmp_path / "exported", "--to", "huggingface", "--like", imported)
    assert export.main([str(x) for x in command]) == 0
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "exported")
    auto = transformers.AutoModelForSequenceClassification
    theirs = auto.from_pretrained(tmp_path / "exported").eval()
    recipe = Recipe(data)
    ours = AttackedModel(load_models([str(checkpoint)], str(data), {}), recipe, 2, 0)
    examples = read_examples(tmp_path / "glue" / task / "dev.tsv", recipe, None, None, 1)
    texts = [x.texts for x in examples]
    found = as_textattack(tokenizer, theirs, [x[0] if len(x) == 1 else x for x in texts])
    torch.testing.assert_close(ours(texts), found, rtol=0, atol=1e-4)
    assert found[:, 0].std() > 1e-3  # the texts make a difference


def test_the_lines_of_the_recipe_run(
    imported: Path,
    transformers: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They run with a stand-in for TextAttack, which classifies every example of the data set."""
    _, checkpoint = fine_tuned(imported, "SST-2", tmp_path)
    (tmp_path / "SST-2").mkdir()
    rows = (tmp_path / "glue" / "SST-2" / "dev.tsv").read_text()
    (tmp_path / "SST-2" / "dev.tsv").write_text(rows)
    command = (checkpoint, tmp_path / "exported", "--to", "huggingface", "--like", imported)
    assert export.main([str(x) for x in command]) == 0
    attacked = []

    class Attacker:
        def __init__(self, attack: Any, dataset: list, args: Any) -> None:
            self.attack, self.dataset, self.args = attack, dataset, args

        def attack_dataset(self) -> None:
            model, tokenizer = self.attack
            found = as_textattack(tokenizer, model, [text for text, _ in self.dataset])
            attacked.append((found, [label for _, label in self.dataset], self.args))

    recipes = SimpleNamespace(TextFoolerJin2019=SimpleNamespace(build=lambda wrapper: wrapper))
    wrappers = SimpleNamespace(HuggingFaceModelWrapper=lambda model, tokenizer: (model, tokenizer))
    stand_in = SimpleNamespace(
        **{"models": SimpleNamespace(wrappers=wrappers), "attack_recipes": recipes},
        **{"datasets": SimpleNamespace(Dataset=list), "AttackArgs": dict, "Attacker": Attacker},
    )
    monkeypatch.setitem(__import__("sys").modules, "textattack", stand_in)
    monkeypatch.chdir(tmp_path)
    document = (runner.ROOT / "docs" / "robustness.md").read_text(encoding="utf-8")
    lines = re.search(r"<!-- textattack: begin -->\n```python\n(.*?)```", document, re.S).group(1)
    exec(compile(lines, "docs/robustness.md", "exec"), {})
    ((found, labels, args),) = attacked
    assert found.shape == (len(SENTENCES), 2)
    assert labels == [n % 2 for n in range(len(SENTENCES))]
    assert args["num_examples"] == 200
