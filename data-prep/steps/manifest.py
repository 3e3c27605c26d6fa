"""Write an output folder completely or not at all, with a manifest that describes how it was made.

The folder gets its final name only after all files are written. A second call with the same
arguments and source files finds the manifest and does nothing.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fairseq_stochattn.core.errors import InputError
from fairseq_stochattn.core.files import atomic_folder, exclusive_output
from fairseq_stochattn.core.json_input import read_json, short
from steps.errors import PrepError
from steps.fetch import sha256_of

NAME = "manifest.json"
PACKAGES = (
    *("fairseq-fixed", "sacremoses", "subword-nmt", "sentencepiece", "tokenizers", "syntok"),
    *("numpy", "torch"),
)


def describe_sources(files: Iterable[Path]) -> dict[str, str]:
    """Return the SHA-256 of every source file, by name."""
    checksums = {}
    distinct = sorted(set(files))
    for name, file in zip(distinct_names(distinct), distinct, strict=True):
        if not file.is_file():
            raise PrepError(f"{file} does not exist")
        checksums[name] = sha256_of(file)
    return checksums


def distinct_names(files: Sequence[Path]) -> list[str]:
    """Return the file names, with as many parent folders as are needed to make them distinct."""
    depth, names = 1, [file.name for file in files]
    while len(set(names)) < len(set(files)):
        depth += 1
        names = ["/".join(file.parts[-depth:]) for file in files]
    return names


def versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages that affect the output."""
    installed = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            installed[package] = version(package)
        except PackageNotFoundError:
            continue
    return installed


def make_output(
    out: Path,
    arguments: dict[str, Any],
    sources: Iterable[Path],
    build: Callable[[Path], dict[str, Any]],
    force: bool = False,
    verify: bool = False,
) -> dict[str, Any]:
    """Create the folder ``out`` with ``build`` unless it already exists, and return its manifest.

    ``build`` writes its files to the folder that is its argument, and returns statistics for the
    manifest. The key ``fresh`` of the returned manifest is False if ``out`` existed already. An
    existing output must have the file sizes of its manifest and, with ``verify``, the checksums.
    Only one process at a time makes an output; a second one waits for it.
    """
    if out.exists() and not out.is_dir():
        raise PrepError(f"--out {out} is a file: choose a folder")
    request = {"arguments": arguments, "sources": describe_sources(sources)}
    existing = existing_output(out, request, force, verify)
    if existing is not None:
        return {**existing, "fresh": False}
    try:
        with exclusive_output(out, lambda text: print(text, file=sys.stderr, flush=True)):
            # Another process may have made the output while this one waited for the lock.
            existing = existing_output(out, request, force, verify)
            if existing is not None:
                return {**existing, "fresh": False}
            return {**_build(out, request, build), "fresh": True}
    except InputError as error:
        raise PrepError(str(error)) from None


def existing_output(
    out: Path, request: dict[str, Any], force: bool, verify: bool
) -> dict[str, Any] | None:
    """Return the manifest of a complete output for this request, None if it has to be made.

    Raises if ``out`` holds anything else and ``force`` does not allow to replace it.
    """
    existing = read_manifest(out)
    if existing is not None and not force:
        if {key: existing.get(key) for key in request} == request:
            if damage := find_damage(out, existing, verify):
                raise PrepError(f"{out} is damaged: {damage}; make it again with --force")
            return existing
        raise PrepError(
            f"{out} was made with other arguments or source files: "
            "choose another folder, or replace it with --force"
        )
    if out.exists() and any(out.iterdir()) and existing is None:
        raise PrepError(
            f"{out} already contains other files, but no manifest.json: choose a new folder"
        )
    return None


def find_damage(out: Path, manifest: dict[str, Any], verify: bool) -> str | None:
    """Return what is wrong with the files of an output: sizes and, with ``verify``, checksums."""
    files = manifest.get("files")
    if not isinstance(files, dict):
        return f"{NAME} lists no files"
    present = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    for name, entry in files.items():
        path = out / name
        if name not in present:
            return f"{short(name)} is missing"
        if not isinstance(entry, dict):
            return f"{NAME} has no size of {name}"
        if path.stat().st_size != entry.get("bytes"):
            return f"{name} has {path.stat().st_size} bytes instead of {short(entry.get('bytes'))}"
        if verify and sha256_of(path) != entry.get("sha256"):
            return f"{name} has another checksum than when it was made"
    return None


def _build(
    out: Path, request: dict[str, Any], build: Callable[[Path], dict[str, Any]]
) -> dict[str, Any]:
    """Make the output in a temporary folder, with its manifest, and give it its name."""
    with atomic_folder(out) as folder:
        manifest = {**request, **build(folder), "versions": versions()}
        manifest["files"] = _list_files(folder)
        text = json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"
        (folder / NAME).write_text(text, encoding="utf-8")
    return manifest


def _list_files(folder: Path) -> dict[str, dict[str, Any]]:
    """Return size and SHA-256 of every file in a folder."""
    return {
        str(path.relative_to(folder)): {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Return the manifest in a folder, or None if the folder has no manifest."""
    path = folder / NAME
    if not path.exists():
        return None
    try:
        manifest = read_json(path)
    except InputError as error:
        cause = str(error).removeprefix(f"{path} ")
        raise PrepError(f"{path} is damaged ({cause}): delete its folder and run again") from None
    if not isinstance(manifest, dict):
        raise PrepError(f"{path} is damaged: delete its folder and run again")
    return manifest
