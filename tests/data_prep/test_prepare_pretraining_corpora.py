"""Tiny versions of Wikipedia and OpenWebText in their own formats, intact and damaged."""

from __future__ import annotations

import bz2
import io
import json
import tarfile
from pathlib import Path

import pytest

import prepare_openwebtext
import prepare_wikipedia
from running_text import WORDS, manifest, prepare, rows, story

ARTICLES = {"Cats": "Cats &amp; dogs.\n\nThey are 1 &lt; 2.", "Empty": "", "Dogs": "Dogs bark."}


def wiki(folder: Path) -> Path:
    """Write both formats of WikiExtractor, plain and compressed, with one name in two folders."""
    for name in ("AA", "AB"):
        (folder / name).mkdir(parents=True)
    header = '<doc id="{}" url="https://en.wikipedia.org/wiki?curid={}" title="{}">\n'
    text = "".join(
        f"{header.format(i, i, title)}{title}\n\n{body}\n\n</doc>\n"
        for i, (title, body) in enumerate(ARTICLES.items())
    )
    (folder / "AA" / "wiki_00").write_text(text)
    objects = [
        {"id": "7", "url": "u", "title": "Birds", "text": "Birds\nfly\u2028high.\n\nFar."},
        {"id": "8", "url": "u", "title": "None"},
        {"id": "9", "url": "u", "title": "Odd", "text": "Half a \ud83d pair.\nFine."},
    ]
    lines = "\n".join([*map(json.dumps, objects), '{"cut": "o'])
    (folder / "AB" / "wiki_00.bz2").write_bytes(bz2.compress(lines.encode()))
    (folder / "AB" / "wiki_01").write_text(text.replace("Dogs", "Wolves").replace("Cats", "Lions"))
    return folder


def test_wikipedia_extracts(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    folder = wiki(tmp_path / "from")
    flags = ("--from", folder, *WORDS, "--valid-share", 0.3, "--no-split-sentences", "--keep-text")
    out = prepare(prepare_wikipedia.main, tmp_path / "out", *flags)
    found = [
        document
        for split in ("train", "valid")
        for document in (out / "text" / split).read_text().split("\n\n")
    ]
    articles = {document.strip() for document in found} - {""}
    assert articles == {
        *("Cats\nCats & dogs.\nThey are 1 < 2.", "Lions\nLions & dogs.\nThey are 1 < 2."),
        *("Empty", "Dogs\nDogs bark.", "Wolves\nWolves bark.", "Birds\nfly high.\nFar.", "Fine."),
    }
    stats = manifest(out)["splits"]["train"]
    assert stats["lines_dropped"] == {"not JSON": 1, "without text": 1, "not UTF-8": 1}
    (folder / "AA" / "wiki_00").write_text('<doc id="1">\nNo end\n')
    prepare(prepare_wikipedia.main, tmp_path / "cut", *flags, status=1)
    assert "AA/wiki_00 is truncated: its last <doc> has no </doc>" in capsys.readouterr().err
    (folder / "AA" / "wiki_00").write_text("Just text\n")
    prepare(prepare_wikipedia.main, tmp_path / "cut", *flags, status=1)
    assert "AA/wiki_00: line 1 is neither <doc …> nor JSON" in capsys.readouterr().err


def test_wikipedia_needs_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    prepare(prepare_wikipedia.main, tmp_path / "out", status=1)
    assert "no official download: give its folder with --from FOLDER" in capsys.readouterr().err
    prepare(prepare_wikipedia.main, tmp_path / "out", "--from", tmp_path, status=1)
    assert (
        f"{tmp_path} has no files of WikiExtractor, such as AA/wiki_00" in capsys.readouterr().err
    )


def tar_xz(contents: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:xz") as archive:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def pages(start: int) -> bytes:
    names = {f"{i:07}-abc.txt": "\n\n".join(story(i)).encode() for i in range(start, start + 4)}
    return tar_xz(names)


def test_openwebtext_as_one_archive_and_unpacked(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    inner = {f"openwebtext/urlsf_subset00-{i}_data.xz": pages(4 * i) for i in range(3)}
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    (whole / "openwebtext.tar.xz").write_bytes(tar_xz(inner))
    for name, content in inner.items():
        (parts / name).parent.mkdir(parents=True, exist_ok=True)
        (parts / name).write_bytes(content)
    flags = (*WORDS, "--valid-share", 0.3)
    outs = [
        prepare(prepare_openwebtext.main, tmp_path / f"out-{folder.name}", "--from", folder, *flags)
        for folder in (whole, parts)
    ]
    assert rows(outs[0]) == rows(outs[1])
    kept = [row for split in ("train", "valid") for row in rows(outs[0], split) if row]
    assert len(kept) == 48
    assert "Nobody knows why." in kept
    capsys.readouterr()
    broken = pages(0)[:-80]
    for damaged, named in (
        (tar_xz({"openwebtext/urlsf_subset00-1_data.xz": broken}), "urlsf_subset00-1_data.xz is"),
        (tar_xz(inner)[:-700], "openwebtext.tar.xz is"),
        (tar_xz({"README": b"nothing"}), "contains no archives"),
    ):
        (whole / "openwebtext.tar.xz").write_bytes(damaged)
        target = tmp_path / "damaged"
        prepare(prepare_openwebtext.main, target, "--from", whole, *flags, status=1)
        assert named in capsys.readouterr().err
        assert not target.exists()
