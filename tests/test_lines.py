"""Reading text that misleads: mended and counted, or a clear error; never out of step."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from pathlib import Path

import pytest

import commands
from steps.errors import PrepError
from steps.lines import Report, TextFile, read_lines, read_pairs

PLAIN = "eins\nzwei ä\n\ndrei"
LINES = ["eins", "zwei ä", "", "drei"]


def write(path: Path, content: bytes) -> TextFile:
    path.write_bytes(content)
    return TextFile(path)


def all_forms(folder: Path) -> dict[str, TextFile]:
    raw = PLAIN.encode()
    forms = {
        "plain": write(folder / "a.txt", raw),
        "gz": write(folder / "a.gz", gzip.compress(raw)),
        "bz2": write(folder / "a.bz2", bz2.compress(raw)),
        "xz": write(folder / "a.xz", lzma.compress(raw)),
    }
    with zipfile.ZipFile(folder / "a.zip", "w") as archive:
        archive.writestr("in/a.txt", raw)
    forms["zip"] = TextFile(folder / "a.zip", "in/a.txt")
    for name in ("a.tar", "a.tgz"):
        with tarfile.open(folder / name, "w:gz" if name == "a.tgz" else "w") as archive:
            info = tarfile.TarInfo("in/a.txt")
            info.size = len(raw)
            archive.addfile(info, io.BytesIO(raw))
        forms[name] = TextFile(folder / name, "in/a.txt")
    return forms


@pytest.mark.parametrize("form", ["plain", "gz", "bz2", "xz", "zip", "a.tar", "a.tgz"])
def test_every_form_gives_the_same_lines(form: str, tmp_path: Path) -> None:
    report = Report()
    assert list(read_lines(all_forms(tmp_path)[form], report)) == LINES
    assert report == Report(lines=4)


@pytest.mark.parametrize(
    ("content", "lines", "mended"),
    [
        (b"\xef\xbb\xbfeins\nzwei", ["eins", "zwei"], {"byte order mark": 1}),
        (b"eins\r\nzwei\r\n", ["eins", "zwei"], {"CR at the line end": 2}),
        (b"ei\rns\nzwei", ["ei ns", "zwei"], {"other line ends inside a line": 1}),
        (
            "ei\u2028ns\x85\x0b!\nzwei".encode(),
            ["ei ns  !", "zwei"],
            {"other line ends inside a line": 1},
        ),
        (b"ei\x00ns\nzwei", ["eins", "zwei"], {"NUL": 1}),
    ],
    ids=["BOM", "CRLF", "CR inside", "Unicode line ends", "NUL"],
)
def test_what_misleads_is_mended_and_counted(
    content: bytes, lines: list[str], mended: dict[str, int], tmp_path: Path
) -> None:
    report = Report()
    assert list(read_lines(write(tmp_path / "a", content), report)) == lines
    assert report.mended == mended
    assert not report.dropped


def test_misencoded_lines_keep_the_sides_in_step(tmp_path: Path) -> None:
    source = write(tmp_path / "a.de", "eins\nzwölf\ndrei\n".encode("latin-1"))
    target = write(tmp_path / "a.en", b"one\ntwelve\nthree\n")
    report = Report()
    assert list(read_pairs(source, target, report)) == [("eins", "one"), ("drei", "three")]
    assert report.lines == 3
    assert report.dropped == {"not UTF-8": 1}


@pytest.mark.parametrize(("short", "long"), [(2, 3), (0, 5)])
def test_unequal_sides_are_an_error(short: int, long: int, tmp_path: Path) -> None:
    files = [write(tmp_path / f"a.{n}", b"x\n" * n) for n in (short, long)]
    for source, target in (files, files[::-1]):
        with pytest.raises(PrepError, match=r"lines .* they do not pair") as caught:
            list(read_pairs(source, target, Report()))
        assert f"has {short}" in str(caught.value)
        assert f"has {long}" in str(caught.value)


@pytest.mark.parametrize("form", ["gz", "bz2", "xz", "a.tgz"])
def test_cut_off_archives(form: str, tmp_path: Path) -> None:
    file = all_forms(tmp_path)[form]
    whole = file.path.read_bytes()
    file.path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(PrepError, match=file.path.name):
        list(read_lines(file, Report()))


@pytest.mark.parametrize("form", ["zip", "a.tar", "a.tgz"])
def test_missing_members_and_files(form: str, tmp_path: Path) -> None:
    archive = all_forms(tmp_path)[form].path
    with pytest.raises(PrepError, match=f"{archive.name} has no file in/b.txt"):
        list(read_lines(TextFile(archive, "in/b.txt"), Report()))
    with pytest.raises(PrepError, match=r"gone\.gz does not exist"):
        list(read_lines(TextFile(tmp_path / "gone.gz"), Report()))


def test_multi30k_pairs() -> None:
    folder = commands.ROOT.parent / "shared" / "data" / "multi30k"
    if not folder.is_dir():
        pytest.skip(f"the Multi30k corpus is not at {folder}")
    report = Report()
    pairs = list(read_pairs(*(TextFile(folder / f"train.{x}.gz") for x in ("de", "en")), report))
    assert len(pairs) == 29_000
    assert pairs[0][1] == "Two young, White males are outside near many bushes."
    assert not report.dropped
