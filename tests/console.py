"""The console scripts in setup.py: their modules, and how each parses its arguments."""

from __future__ import annotations

import importlib
import runpy
from collections.abc import Callable
from types import ModuleType
from typing import Any

import setuptools

import runner
from fairseq_stochattn.commands import evaluate, generate, generate_flags
from fairseq_stochattn.commands.command import replaced


def setup_arguments() -> dict[str, Any]:
    """Return what setup.py passes to ``setup``."""
    found: dict[str, Any] = {}
    with replaced(setuptools, "setup", lambda **arguments: found.update(arguments)):
        runpy.run_path(str(runner.ROOT / "setup.py"))
    return found


SCRIPTS = dict(
    map(str.strip, line.split("=")) for line in setup_arguments()["entry_points"]["console_scripts"]
)


def module_of(script: str) -> ModuleType:
    return importlib.import_module(SCRIPTS[script].partition(":")[0])


def parse_generate(arguments: list[str]) -> object:
    _, flags = generate.build_parser().parse_known_args(arguments)
    return generate_flags.parse_flags("stochattn-generate", flags)


# Commands whose flags are not all in their parser.
_PARSE: dict[str, Callable[[list[str]], object]] = {
    "stochattn-generate": parse_generate,
    "stochattn-evaluate": evaluate.parse_arguments,
}


def parse(script: str, arguments: list[str]) -> object:
    """Parse the arguments as the command does; bad ones end with ``SystemExit``."""
    return (_PARSE.get(script) or module_of(script).build_parser().parse_args)(arguments)
