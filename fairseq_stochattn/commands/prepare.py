"""``stochattn-prepare CORPUS``: turn a corpus into the data that ``fairseq-train`` reads.

The scripts are those of data-prep/. A wheel contains them as ``fairseq_stochattn/data_prep``; in a
clone they are next to the package. They import their shared modules (``steps``) by plain names, so
that they also run without this command.
"""

from __future__ import annotations

import ast
import difflib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..analysis.data_prep import script_module, scripts_folder
from ..core.errors import InputError

PROG = "stochattn-prepare"
EXAMPLE = "stochattn-prepare multi30k --out data-bin/multi30k"
PREFIXES = ("prepare_", "generate_")  # prepare_glue.py prepares the corpus "glue"


def find_scripts(folder: Path) -> dict[str, Path]:
    """Return the scripts of all corpora by the name of the corpus, in alphabetical order."""
    scripts = {
        path.stem.removeprefix(prefix): path
        for prefix in PREFIXES
        for path in folder.glob(f"{prefix}*.py")
    }
    return dict(sorted(scripts.items()))


def describe(script: Path) -> str:
    """Return the first line of the docstring of a script, without importing it."""
    docstring = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or ""
    return docstring.partition("\n")[0]


def help_text(scripts: dict[str, Path]) -> str:
    """Return the text of --help, with one line per corpus."""
    width = max(map(len, scripts), default=0)
    return "\n".join(
        [
            f"usage: {PROG} CORPUS [flags]",
            "",
            "Prepare a corpus for fairseq-train. CORPUS is one of:",
            *(f"  {name:<{width}}  {describe(script)}" for name, script in scripts.items()),
            "",
            f"{PROG} CORPUS --help shows the flags of a corpus.",
            f"Example: {EXAMPLE}",
        ]
    )


def unknown_corpus(name: str, scripts: dict[str, Path]) -> str:
    """Return the error message for a corpus without a script: one line with similar names."""
    similar = difflib.get_close_matches(name.lower(), scripts, cutoff=0.5)
    hint = f"did you mean {' or '.join(similar)}?" if similar else f"choose {', '.join(scripts)}"
    return f"unknown corpus {name!r}: {hint} ({PROG} --help describes all)"


@contextmanager
def program_name(name: str) -> Iterator[None]:
    """Set the name that the help and the errors of a script begin with."""
    original = sys.argv[0]
    sys.argv[0] = name
    try:
        yield
    finally:
        sys.argv[0] = original


def main(argv: Sequence[str] | None = None) -> int:
    """Run the script of one corpus with the remaining arguments, and return its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        folder = scripts_folder()
    except InputError as error:
        print(f"{PROG}: error: {error}", file=sys.stderr)
        return 1
    scripts = find_scripts(folder)
    if arguments[:1] in (["-h"], ["--help"]):
        print(help_text(scripts))
        return 0
    if not arguments or arguments[0] not in scripts:
        message = (
            unknown_corpus(arguments[0], scripts)
            if arguments
            else f"the name of a corpus is missing ({PROG} --help lists all)"
        )
        print(f"{PROG}: error: {message}", file=sys.stderr)
        return 2
    corpus, *flags = arguments
    script = script_module(scripts[corpus].stem)
    with program_name(f"{PROG} {corpus}"):
        return script.main(flags)


if __name__ == "__main__":
    sys.exit(main())
