"""The example method in CONTRIBUTING.md works; archs, make targets and files in the docs exist."""

from __future__ import annotations

import re
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from fairseq.models import ARCH_MODEL_REGISTRY

import runner
import sizes
import zoo
from fairseq_stochattn.core.losses import take_losses
from fairseq_stochattn.core.method import METHODS
from fairseq_stochattn.core.settings import flag_name
from fairseq_stochattn.methods.repulsive.settings import RepulsiveSettings

ROOT = runner.ROOT
DOCUMENTS = [
    *(ROOT / "README.md", ROOT / "CONTRIBUTING.md"),
    *sorted(ROOT.glob("docs/*.md")),
    *sorted(ROOT.glob("docs/*/*.md")),
    *sorted(ROOT.glob("examples/*/*.md")),
]


def test_the_method_in_contributing_works(
    translation_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A method in one file: its archs exist, fairseq-train knows its flag, its loss is logged."""
    document = (ROOT / "CONTRIBUTING.md").read_text()
    source = re.search(r"```python\n(.*?)```", document, re.S).group(1)
    (tmp_path / "temperature_method.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "temperature_method", raising=False)
    __import__("temperature_method")
    assert "temperature" in METHODS
    for backbone in zoo.BACKBONES:
        model = zoo.build(f"{backbone}_temperature").train()
        zoo.run(model, backbone, zoo.sentences(5, 3), zoo.sentences(4, 2))
        assert {name for name, _ in take_losses(model)} == {"temperature"}
    flags = ("--arch", "transformer_temperature_iwslt_de_en", *sizes.TRANSFORMER)
    criterion = ("--criterion", "attention_losses", "--temperature-weight", 0.5, "--max-update", 2)
    output = runner.train(translation_data, tmp_path / "run", *flags, *criterion)
    assert float(output.stats["train_inner"][-1]["temperature_weight"]) == 0.5


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_named_archs_flags_and_files_exist(document: Path) -> None:
    text = document.read_text()
    for arch in set(re.findall(r"--arch ([a-z]\w+)", text)):
        assert arch in ARCH_MODEL_REGISTRY or "temperature" in arch, arch
    for target in re.findall(r"`make (\w+)`", text):
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.M), target
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        if "://" not in link:
            assert (document.parent / link).exists(), link


def test_the_numbers_in_flags_md_are_the_defaults() -> None:
    text = (ROOT / "docs" / "flags.md").read_text()
    rows = dict(re.findall(r"^\| `(--[a-z0-9-]+)[^`]*` \| `?([^|`]+?)`? \|", text, re.M))
    compared = 0
    for settings in (RepulsiveSettings, *(method.Settings for method in METHODS.values())):
        for entry in fields(settings):
            flag = "--" + flag_name(settings, entry).replace("_", "-")
            default = getattr(settings(), entry.name)
            if flag in rows and type(default) in (int, float):
                assert float(rows[flag].split(";")[0].split(":")[0]) == default, flag
                compared += 1
    assert compared > 30
