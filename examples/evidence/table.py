"""Write the pages about the results: docs/evidence, and the table in README.md.

python examples/evidence/table.py               # write the pages of all suites
python examples/evidence/table.py translation   # write the page of one suite, index and README
python examples/evidence/table.py --check       # exit 1 if a page does not agree with the results
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from layout import read_layouts
from pages import SuiteResults, index_page, readme_block

from fairseq_stochattn.analysis.loading import warnings_only
from fairseq_stochattn.commands.command import OneLineParser, command
from fairseq_stochattn.core.errors import InputError
from fairseq_stochattn.core.files import atomic_file

HERE = Path(__file__).resolve().parent
BEGIN, END = "<!-- evidence -->", "<!-- /evidence -->"


def build_parser() -> OneLineParser:
    """Return the parser of the command's arguments."""
    parser = OneLineParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("suites", nargs="*", metavar="SUITE", help="suites (default: all)")
    parser.add_argument(
        "--suites",
        dest="suite_folder",
        type=Path,
        default=HERE / "suites",
        metavar="DIR",
        help="folder of the suite files",
    )
    parser.add_argument(
        "--results",
        type=Path,
        default=HERE / "results",
        metavar="DIR",
        help="folder of the results, one subfolder per suite",
    )
    parser.add_argument(
        "--docs",
        type=Path,
        default=HERE.parents[1] / "docs",
        metavar="DIR",
        help="folder of the documentation; README.md is expected beside it",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing; name every file that does not agree with the results",
    )
    return parser


def pages(
    suites: Sequence[SuiteResults], chosen: Sequence[str], docs: Path
) -> dict[Path, str | None]:
    """Return the content of every file; None for a file that should not exist."""
    folder = docs / "evidence"
    files: dict[Path, str | None] = {folder / "README.md": index_page(suites)}
    for suite in suites:
        if not chosen or suite.layout.name in chosen:
            page, picture = (folder / f"{suite.layout.name}.{kind}" for kind in ("md", "svg"))
            files[page] = suite.page() if suite.results else None
            files[picture] = suite.picture or None
            files[folder / f"{suite.layout.name}-sweeps.svg"] = suite.sweep_picture or None
    readme = docs.parent / "README.md"
    if any(suite.layout.readme_measures for suite in suites):
        files[readme] = with_block(readme, readme_block(suites))
    return files


def with_block(page: Path, block: str) -> str:
    """Return the text of ``page`` with the block between its markers replaced."""
    text = page.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise InputError(f"{page} must contain {BEGIN} and then {END} once, around the table")
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{block}\n{END}{rest.split(END)[1]}"


def read_suites(suite_folder: Path, results: Path) -> list[SuiteResults]:
    """Return all suites with their results. Results without a suite are an error."""
    if not suite_folder.is_dir():
        raise InputError(f"--suites {suite_folder} is not a directory")
    layouts = read_layouts(suite_folder)
    for folder in sorted(results.glob("*/")):
        if folder.name not in layouts and any(folder.rglob("*.json")):
            raise InputError(f"{folder}: there is no suite file {folder.name}.toml")
    return [SuiteResults.read(layout, results) for layout in layouts.values()]


def differing(files: dict[Path, str | None]) -> list[str]:
    """Return one line for every file whose content is not as wanted."""
    lines = []
    for path, wanted in files.items():
        found = path.read_text(encoding="utf-8") if path.exists() else None
        if wanted is None and found is not None:
            lines.append(f"{path} exists, but there are no results for it")
        elif wanted is not None and found is None:
            lines.append(f"{path} is missing")
        elif wanted != found:
            lines.append(f"{path} does not agree with the results")
    return lines


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Write or check the pages."""
    args = build_parser().parse_args(argv)
    suites = read_suites(args.suite_folder, args.results)
    names = [suite.layout.name for suite in suites]
    for name in args.suites:
        if name not in names:
            raise InputError(f"there is no suite {name}: choose from {', '.join(names) or 'none'}")
    with warnings_only():
        files = pages(suites, args.suites, args.docs)
    if args.check:
        lines = differing(files)
        for line in lines:
            print(line, file=sys.stderr)
        return 1 if lines else 0
    for path, text in files.items():
        if text is None:
            path.unlink(missing_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as partial:
            partial.write_text(text, encoding="utf-8")
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
