"""Every ``stochattn-*`` command line in the documents can be parsed by the command."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import NoReturn

import pytest

import runner
from console import SCRIPTS, parse
from fairseq_stochattn.commands import prepare
from steps.command import OneLineParser as DataParser


def commands_in(text: str) -> Iterator[str]:
    """Yield the command lines of all shell blocks, except those with left-out parts."""
    for block in re.findall(r"```bash\n(.*?)```", text, re.S):
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("stochattn-") and "…" not in line and "$" not in line:
                yield line


PLACES = ("*.md", "docs/**/*.md", "examples/*/*.md")
DOCUMENTS = [path for place in PLACES for path in sorted(runner.ROOT.glob(place))]
LINES = sorted({line for path in DOCUMENTS for line in commands_in(path.read_text())})


class Parsed(Exception):  # noqa: N818  (not an error: it ends a script after its parser)
    """The arguments of a corpus script have been parsed."""


@pytest.mark.parametrize("line", LINES)
def test_a_documented_command_is_parsed(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runner.ROOT)  # where --user-dir fairseq_stochattn is
    script, *arguments = shlex.split(line, comments=True)
    if script != "stochattn-prepare":
        parse(script, arguments)
        return
    parse_args = DataParser.parse_args

    def parse_only(parser: DataParser, argv: list[str]) -> NoReturn:
        parse_args(parser, argv)
        raise Parsed

    monkeypatch.setattr(DataParser, "parse_args", parse_only)
    with pytest.raises(Parsed):
        prepare.main(arguments)


def test_there_are_documented_commands() -> None:
    assert {shlex.split(line)[0] for line in LINES} >= set(SCRIPTS) - {"stochattn-methods"}
