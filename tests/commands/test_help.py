"""--help of every console script in setup.py: an example that parses, help and default of flags."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator

import pytest

from console import SCRIPTS, module_of, parse
from fairseq_stochattn.commands import prepare
from fairseq_stochattn.commands.command import EXAMPLE_MARK, OneLineParser

WITH_PARSER = [name for name in SCRIPTS if name != "stochattn-prepare"]


def parsers_of(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield the parser, then those of its subcommands."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.values()


def example_in(text: str) -> list[str]:
    """Return the words of the example at the end of a help text."""
    before, mark, example = text.partition(EXAMPLE_MARK)
    assert mark, before
    return shlex.split(example.replace("\\\n", " "))


@pytest.mark.parametrize("script", WITH_PARSER)
def test_the_help_ends_with_an_example_that_parses(script: str) -> None:
    parser = module_of(script).build_parser()
    assert isinstance(parser, OneLineParser)
    for each in parsers_of(parser):
        command, *arguments = example_in(each.format_help())
        assert command == script
        if each is not parser:
            assert arguments[0] == each.prog.split()[-1]
        parse(script, arguments)


@pytest.mark.parametrize("script", WITH_PARSER)
def test_every_option_has_help_and_shows_its_default(script: str) -> None:
    module = module_of(script)
    parser = module.build_parser()
    assert parser.description == module.DESCRIPTION
    for each in parsers_of(parser):
        formatter = each._get_formatter()
        for action in each._actions:
            if isinstance(action, argparse._SubParsersAction):
                continue
            assert action.help, action.dest
            text = formatter._expand_help(action)
            if action.option_strings and action.default not in (None, False, argparse.SUPPRESS):
                assert f"default: {action.default}" in text or "default:" in action.help, text


def test_prepare_shows_an_example_for_every_corpus(capsys: pytest.CaptureFixture) -> None:
    assert prepare.main(["--help"]) == 0
    command, corpus, *_ = example_in(capsys.readouterr().out)
    scripts = prepare.find_scripts(prepare.scripts_folder())
    assert (command, corpus in scripts) == ("stochattn-prepare", True)
    for name, path in scripts.items():
        assert f"{EXAMPLE_MARK}stochattn-prepare {name} " in path.read_text(encoding="utf-8"), path


def test_an_option_without_a_default_shows_none() -> None:
    parser = OneLineParser(prog="x", example="x --number 3")
    parser.add_argument("--number", type=int, default=2, help="a number")
    parser.add_argument("--named", default="a", help="a name (default: that of the data)")
    parser.add_argument("--switch", action="store_true", help="a switch")
    text = " ".join(parser.format_help().split())
    assert "a number (default: 2)" in text
    assert "a name (default: that of the data)" in text
    assert "a switch Example: x --number 3" in text
