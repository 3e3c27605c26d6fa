"""The manifest beside an output: what it was made of and by; and outputs that are whole or absent.

Everything is made in a hidden folder beside the output, which gets its name when all is done. A
second call with the same arguments and sources finds the manifest and does nothing.
"""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from steps.errors import PrepError
from steps.fetch import sha256_of

NAME = "manifest.json"
PACKAGES = (
    *("fairseq-fixed", "sacremoses", "subword-nmt", "sentencepiece", "tokenizers", "syntok"),
    *("numpy", "torch"),
)


def describe_sources(files: Iterable[Path]) -> dict[str, str]:
    """SHA-256 of every source, by name: what the corpus was really made of."""
    found = {}
    distinct = sorted(set(files))
    for name, file in zip(distinct_names(distinct), distinct, strict=True):
        if not file.is_file():
            raise PrepError(f"{file} does not exist")
        found[name] = sha256_of(file)
    return found


def distinct_names(files: Sequence[Path]) -> list[str]:
    """The files' names, with as many of their folders as it takes to tell them apart."""
    depth, names = 1, [file.name for file in files]
    while len(set(names)) < len(set(files)):
        depth += 1
        names = ["/".join(file.parts[-depth:]) for file in files]
    return names


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def make_output(
    out: Path,
    arguments: dict[str, Any],
    sources: Iterable[Path],
    make: Callable[[Path], dict[str, Any]],
    force: bool = False,
) -> dict[str, Any]:
    """Let ``make`` fill ``out`` unless it is there already; return its manifest.

    ``make`` gets a folder to write to and returns figures for the manifest.
    """
    if out.exists() and not out.is_dir():
        raise PrepError(f"{out} is a file: name a folder")
    asked = {"arguments": arguments, "sources": describe_sources(sources)}
    done = read_manifest(out)
    if done is not None and not force:
        if {key: done.get(key) for key in asked} == asked:
            return {**done, "fresh": False}
        raise PrepError(f"{out} was made with other arguments or sources (--force makes it anew)")
    if out.exists() and any(out.iterdir()) and done is None:
        raise PrepError(f"{out} holds other files: name a new folder")
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        figures = make(partial)
        files = sorted(p for p in partial.rglob("*") if p.is_file())
        listing = {
            str(p.relative_to(partial)): {"bytes": p.stat().st_size, "sha256": sha256_of(p)}
            for p in files
        }
        manifest = {**asked, **figures, "versions": versions(), "files": listing}
        text = json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"
        (partial / NAME).write_text(text, encoding="utf-8")
        if out.exists():
            shutil.rmtree(out)
        partial.replace(out)
    except OSError as error:
        raise PrepError(f"{out}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return {**manifest, "fresh": True}


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest in a folder, if it has one."""
    path = folder / NAME
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError:
        raise PrepError(f"{path} is damaged: delete its folder to make it anew") from None
