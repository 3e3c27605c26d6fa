"""Lines with problems are repaired and counted, or raise an error; pairs stay aligned."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from pathlib import Path

import pytest

import runner
from steps.errors import PrepError
from steps.lines import Report, TextFile, read_lines, read_pairs

PLAIN = "eins\nzwei ä\n\ndrei"
LINES = ["eins", "zwei ä", "", "drei"]


def write(path: Path, content: bytes) -> TextFile:
    path.write_bytes(content)
    return TextFile(path)


def all_formats(folder: Path) -> dict[str, TextFile]:
    raw = PLAIN.encode()
    formats = {
        "plain": write(folder / "a.txt", raw),
        "gz": write(folder / "a.gz", gzip.compress(raw)),
        "bz2": write(folder / "a.bz2", bz2.compress(raw)),
        "xz": write(folder / "a.xz", lzma.compress(raw)),
    }
    with zipfile.ZipFile(folder / "a.zip", "w") as archive:
        archive.writestr("in/a.txt", raw)
    formats["zip"] = TextFile(folder / "a.zip", "in/a.txt")
    for name in ("a.tar", "a.tgz"):
        with tarfile.open(folder / name, "w:gz" if name == "a.tgz" else "w") as archive:
            info = tarfile.TarInfo("in/a.txt")
            info.size = len(raw)
            archive.addfile(info, io.BytesIO(raw))
        formats[name] = TextFile(folder / name, "in/a.txt")
    return formats


@pytest.mark.parametrize("format_", ["plain", "gz", "bz2", "xz", "zip", "a.tar", "a.tgz"])
def test_all_formats_give_the_same_lines(format_: str, tmp_path: Path) -> None:
    report = Report()
    assert list(read_lines(all_formats(tmp_path)[format_], report)) == LINES
    assert report == Report(lines=4)


@pytest.mark.parametrize(
    ("content", "lines", "repaired"),
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
def test_repairs_are_made_and_counted(
    content: bytes, lines: list[str], repaired: dict[str, int], tmp_path: Path
) -> None:
    report = Report()
    assert list(read_lines(write(tmp_path / "a", content), report)) == lines
    assert report.repaired == repaired
    assert not report.dropped


def test_pairs_with_a_line_that_is_not_utf8_are_dropped(tmp_path: Path) -> None:
    source = write(tmp_path / "a.de", "eins\nzwölf\ndrei\n".encode("latin-1"))
    target = write(tmp_path / "a.en", b"one\ntwelve\nthree\n")
    report = Report()
    assert list(read_pairs(source, target, report)) == [("eins", "one"), ("drei", "three")]
    assert report.lines == 3
    assert report.dropped == {"not UTF-8": 1}


@pytest.mark.parametrize(("short", "long"), [(2, 3), (0, 5)])
def test_sides_with_different_line_counts_raise_an_error(
    short: int, long: int, tmp_path: Path
) -> None:
    files = [write(tmp_path / f"a.{n}", b"x\n" * n) for n in (short, long)]
    for source, target in (files, files[::-1]):
        with pytest.raises(
            PrepError, match=r"lines but .* need the same number of lines"
        ) as caught:
            list(read_pairs(source, target, Report()))
        assert f"has {short}" in str(caught.value)
        assert f"has {long}" in str(caught.value)


@pytest.mark.parametrize("format_", ["gz", "bz2", "xz", "a.tgz"])
def test_truncated_files_raise_an_error_that_names_them(format_: str, tmp_path: Path) -> None:
    file = all_formats(tmp_path)[format_]
    whole = file.path.read_bytes()
    file.path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(PrepError, match=file.path.name):
        list(read_lines(file, Report()))


@pytest.mark.parametrize("format_", ["zip", "a.tar", "a.tgz"])
def test_missing_archive_members_and_missing_files_raise_errors(
    format_: str, tmp_path: Path
) -> None:
    archive = all_formats(tmp_path)[format_].path
    with pytest.raises(PrepError, match=f"{archive.name} has no file in/b.txt"):
        list(read_lines(TextFile(archive, "in/b.txt"), Report()))
    with pytest.raises(PrepError, match=r"gone\.gz does not exist"):
        list(read_lines(TextFile(tmp_path / "gone.gz"), Report()))


def test_real_multi30k_pairs() -> None:
    folder = runner.ROOT.parent / "shared" / "data" / "multi30k"
    if not folder.is_dir():
        pytest.skip(f"the Multi30k corpus is not at {folder}")
    report = Report()
    pairs = list(read_pairs(*(TextFile(folder / f"train.{x}.gz") for x in ("de", "en")), report))
    assert len(pairs) == 29_000
    assert pairs[0][1] == "Two young, White males are outside near many bushes."
    assert not report.dropped
