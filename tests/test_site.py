"""The documentation site: its pages, links, references and navigation, checked without mkdocs."""

from __future__ import annotations

import importlib.util
import re
from types import ModuleType

import pytest

import fairseq_stochattn
import runner

ROOT = runner.ROOT


def load_hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs" / "hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


hooks = load_hooks()


@pytest.mark.parametrize("document", hooks.documents())
def test_links_lead_to_files_and_to_definitions(document: str) -> None:
    for link in hooks.links((ROOT / document).read_text(encoding="utf-8")):
        if "://" in link or link.startswith("#"):
            continue
        target = hooks.target_of(document, link)
        assert target is not None, link
        anchor = link.partition("#")[2]
        if target.endswith(".py") and anchor:
            assert anchor in hooks.definitions(ROOT / target), link


def test_links_become_links_of_the_site() -> None:
    link = "../fairseq_stochattn/core/attention.py#attend"
    line = hooks.definitions(ROOT / "fairseq_stochattn" / "core" / "attention.py")["attend"]
    expected = f"source/fairseq_stochattn/core/attention.py.md?line={line}"
    assert hooks.site_link("docs/equations.md", link) == expected
    moved = {
        ("examples/babn/README.md", "../../docs/costs.md"): "../costs.md",
        ("docs/evidence/README.md", "../../examples/evidence/README.md"): "../examples/evidence.md",
        ("README.md", "docs/methods.md#babn"): "../methods.md#babn",
        ("docs/faq.md", "https://example.org/a.md"): "https://example.org/a.md",
    }
    for (document, before), after in moved.items():
        assert hooks.site_link(document, before) == after


def test_links_in_code_stay() -> None:
    text = "[a](x.md)\n```python\nf[0](x.md)\n```\n[b](x.md)"
    replaced = hooks.replace_links(text, str.upper)
    assert replaced == "[a](X.MD)\n```python\nf[0](x.md)\n```\n[b](X.MD)"


@pytest.mark.parametrize("document", hooks.documents())
def test_pictures_are_small_and_described(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    for description, link in re.findall(r"!\[(.*?)\]\((\S+?)\)", text, re.S):
        assert len(description.split()) > 2, link
        assert (ROOT / hooks.target_of(document, link)).stat().st_size < 150_000, link


def test_the_reference_has_every_public_name() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    named = re.findall(r"<!-- api: (\w+) -->", page)
    assert set(named) == {*fairseq_stochattn.__all__, "RepulsiveSettings"}
    assert len(named) == len(set(named))
    for name, module in hooks.public_names().items():
        assert importlib.util.find_spec(f"fairseq_stochattn.{module}"), name


def test_the_navigation_has_every_page() -> None:
    configuration = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = set(re.findall(r"^ +- (?:.*: )?(\S+\.md)$", configuration, re.M))
    expected = {page for page in hooks.documents().values() if not page.startswith("evidence/")}
    assert pages == {*expected, "evidence/README.md"}
