"""Helpers for tests of fine-tuning data: write a tiny corpus, run a script, read its output."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType

from fairseq.data import Dictionary, data_utils

Content = str | bytes | dict[str, str | bytes]


def _bytes(content: str | bytes) -> bytes:
    return content if isinstance(content, bytes) else content.encode()


def write(folder: Path, files: dict[str, Content]) -> Path:
    """Write files by name; a dictionary becomes a zip or tar.gz archive with these members."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not isinstance(content, dict):
            path.write_bytes(_bytes(content))
        elif name.endswith(".zip"):
            with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
                for member, text in content.items():
                    archive.writestr(member, _bytes(text))
        else:
            with tarfile.open(path, "w:gz") as archive:
                for member, text in content.items():
                    entry = tarfile.TarInfo(member)
                    entry.size = len(_bytes(text))
                    archive.addfile(entry, io.BytesIO(_bytes(text)))
    return folder


def run(script: ModuleType, origin: Path, out: Path, *more: object) -> int:
    """Run a script on the files in ``origin`` and return its exit status."""
    given = ("--from", origin, "--out", out, "--workers", 1, *more)
    return script.main([str(argument) for argument in given])


def decoded(folder: Path, split: str) -> list[str]:
    """Return the rows of binarised data as text."""
    dictionary = Dictionary.load(str(folder / "dict.txt"))
    data = data_utils.load_indexed_dataset(str(folder / split), dictionary)
    return [dictionary.string(row) for row in data]


def labels(out: Path, split: str) -> list[str] | None:
    """Return the labels of a split as text; None if it has none."""
    text = out / "label" / f"{split}.label"
    if text.exists():
        return text.read_text().splitlines()
    return decoded(out / "label", split) if (out / "label" / f"{split}.bin").exists() else None


def rows(out: Path, split: str) -> list[tuple]:
    """Return (input0, input1, …, label) of every example."""
    parts = sorted(path.name for path in out.iterdir() if path.name.startswith("input"))
    inputs = [decoded(out / part, split) for part in parts]
    found = labels(out, split)
    return list(zip(*inputs, found or [None] * len(inputs[0]), strict=True))


def classes_of(out: Path) -> list[str]:
    """Return the entries of the dictionary of the labels."""
    return [line.split()[0] for line in (out / "label" / "dict.txt").read_text().splitlines()]
