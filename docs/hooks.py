"""Builds the site from pages that lie outside docs/ too, and makes their links work there.

mkdocs calls ``on_files`` and ``on_page_markdown``. The pages themselves stay plain Markdown with
links that a code host follows. On the site

- the READMEs of examples/ and the documents of the project's root are pages;
- a link to any other file of the repository leads to a page that shows the file;
- ``file.py#name`` leads to the line that defines ``name`` (a function, or ``Class.method``);
- ``<!-- api: name -->`` becomes the reference of the public name ``fairseq_stochattn.name``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from posixpath import normpath, relpath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "fairseq_stochattn"
LANGUAGES = {".py": "python", ".sh": "bash", ".toml": "toml", ".json": "json", ".css": "css"}
IMAGES = {".png", ".svg"}
LARGEST = 200_000  # bytes of a file that is shown on a page

_LINK = re.compile(r"\]\(([^()\s]+)\)")
_FENCE = re.compile(r"^ *```")
_API = re.compile(r"<!-- api: (\w+) -->")


@cache
def documents() -> dict[str, str]:
    """Return all documents that are pages of the site: path in the repository → path in docs/."""
    found = {
        "README.md": "project/readme.md",
        "CONTRIBUTING.md": "project/contributing.md",
        "CHANGELOG.md": "project/changelog.md",
    }
    for path in sorted(ROOT.glob("examples/*/README.md")):
        found[_name(path)] = f"examples/{path.parent.name}.md"
    for path in sorted(ROOT.glob("docs/**/*.md")):
        found[_name(path)] = path.relative_to(ROOT / "docs").as_posix()
    return found


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def links(markdown: str) -> Iterator[str]:
    """Yield the targets of all links outside of code blocks."""
    targets: list[str] = []
    replace_links(markdown, lambda target: targets.append(target) or target)
    yield from targets


def replace_links(markdown: str, replace: Callable[[str], str]) -> str:
    """Return the text with the target of every link outside of code blocks replaced."""
    lines, in_code = [], False
    for line in markdown.split("\n"):
        in_code ^= bool(_FENCE.match(line))
        if not in_code:
            line = _LINK.sub(lambda match: f"]({replace(match[1])})", line)
        lines.append(line)
    return "\n".join(lines)


def target_of(document: str, link: str) -> str | None:
    """Return the path in the repository that a link leads to; None if there is no such file."""
    path = link.partition("#")[0]
    if "://" in link or not path:
        return None
    target = normpath(f"{Path(document).parent.as_posix()}/{path}")
    return target if (ROOT / target).exists() else None


def page_of(target: str) -> str:
    """Return the path below docs/ of the page or picture that shows a file of the repository."""
    known = documents()
    for name in (target, f"{target}/README.md"):
        if name in known:
            return known[name]
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    return f"source/{target}" if Path(target).suffix in IMAGES else f"source/{target}.md"


@cache
def definitions(path: Path) -> dict[str, int]:
    """Return the first line of every function and class in a Python file, by qualified name."""
    found: dict[str, int] = {}

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                found[prefix + node.name] = node.lineno
                if isinstance(node, ast.ClassDef):
                    visit(node.body, f"{prefix}{node.name}.")

    visit(ast.parse(path.read_text(encoding="utf-8")).body, "")
    return found


def shown(target: str) -> str:
    """Return a page with the content of a file, or with links to the files of a folder."""
    path = ROOT / target
    head = f"---\ntitle: {path.name}\nsearch:\n  exclude: true\n---\n\n# {target}\n\n"
    if path.is_dir():
        files = sorted(x.name for x in path.iterdir() if x.is_file())
        return head + "".join(f"- [{x}]({path.name}/{x}.md)\n" for x in files)
    if path.stat().st_size > LARGEST:
        return f"{head}The file is too long to be shown here.\n"
    text = path.read_text(encoding="utf-8").rstrip("\n")
    language = LANGUAGES.get(path.suffix, "text")
    return f'{head}``````{{ .{language} linenums="1" }}\n{text}\n``````\n'


def sources() -> dict[str, str]:
    """Return all files and folders that pages link to: path in the repository → path in docs/."""
    known, found = documents(), {}
    for document in known:
        for link in links((ROOT / document).read_text(encoding="utf-8")):
            target = target_of(document, link)
            if target is None or target.startswith("docs/") or page_of(target) in known.values():
                continue
            found[target] = page_of(target)
            if (ROOT / target).is_dir():
                names = (_name(x) for x in sorted((ROOT / target).iterdir()) if x.is_file())
                found |= {name: page_of(name) for name in names}
    return found


def site_link(document: str, link: str) -> str:
    """Return the link of a page as the site needs it: relative to the page, with its anchor."""
    target = target_of(document, link)
    if target is None:
        return link
    _, _, anchor = link.partition("#")
    page = relpath(page_of(target), Path(documents()[document]).parent.as_posix())
    if target.endswith(".py") and anchor:
        return f"{page}?line={definitions(ROOT / target)[anchor]}"
    return f"{page}#{anchor}" if anchor else page


@cache
def public_names() -> dict[str, str]:
    """Return the names of the API reference and the modules that define them."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    (table,) = (
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "_PUBLIC"
    )
    public = ast.literal_eval(table)
    more = {
        "uncertainty": "uncertainty.measures",
        "RepulsiveSettings": "methods.repulsive.settings",
    }
    return {**public, **more}


def reference(match: re.Match[str]) -> str:
    """Return the directive of mkdocstrings for ``<!-- api: name -->``."""
    name = match[1]
    return f"::: {PACKAGE.name}.{public_names()[name]}.{name}"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages outside docs/ to the site."""
    from mkdocs.structure.files import File

    for target, page in documents().items():
        if not target.startswith("docs/") and (ROOT / target).is_file():
            files.append(File.generated(config, page, abs_src_path=str(ROOT / target)))
    for target, page in sources().items():
        if Path(target).suffix in IMAGES:
            files.append(File.generated(config, page, abs_src_path=str(ROOT / target)))
        else:
            files.append(File.generated(config, page, content=shown(target)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite the links of a page and insert the reference of public names."""
    document = {src: name for name, src in documents().items()}.get(page.file.src_uri)
    if document is not None:
        markdown = replace_links(markdown, partial(site_link, document))
    return _API.sub(reference, markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn ``?line=N`` of links into the anchor of that line.

    mkdocs checks anchors before the code is highlighted, which is what creates these.
    """
    return re.sub(r'\.html\?line=(\d+)"', r'.html#__codelineno-0-\1"', html)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Name the search dialog, which the theme does not do, for readers with a screen reader."""
    return output.replace('role="dialog"', 'role="dialog" aria-label="Search"')
