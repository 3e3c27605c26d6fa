"""stochattn-prepare: finds the script of a corpus, runs it and lists all corpora."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fairseq_stochattn.commands import prepare
from fairseq_stochattn.core.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
CAPTIONS = {"de": "Ein Mann läuft {} Meter .", "en": "A man walks {} metres ."}


@pytest.fixture
def captions(tmp_path: Path) -> Path:
    """A tiny Multi30k under the names of the real files."""
    folder = tmp_path / "from"
    folder.mkdir()
    for name in ("train", "val", "test_2016_flickr"):
        for lang, sentence in CAPTIONS.items():
            text = "".join(f"{sentence.format(n)}\n" for n in range(30))
            (folder / f"{name}.{lang}.gz").write_bytes(gzip.compress(text.encode()))
    return folder


def run(*arguments: object, cwd: Path) -> subprocess.CompletedProcess:
    """Run the command in a new process, in which data-prep is not on the import path yet."""
    code = "import sys; from fairseq_stochattn.commands.prepare import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )


def test_a_corpus_is_prepared_with_two_workers(captions: Path, tmp_path: Path) -> None:
    flags = ("--from", captions, "--out", "data", "--size", 20, "--workers", 2)
    done = run("multi30k", *flags, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "train: 30 pairs kept, dropped: none" in done.stdout
    splits = json.loads((tmp_path / "data" / "manifest.json").read_text())["splits"]
    assert {split: stats["kept"] for split, stats in splits.items()} == dict.fromkeys(splits, 30)
    for name in ("train.de-en.de.bin", "valid.de-en.en.idx", "dict.de.txt", "codes"):
        assert (tmp_path / "data" / name).is_file()


def test_numbers_are_generated(tmp_path: Path) -> None:
    sizes = ("--train", 9, "--valid", 4, "--test", 4)
    done = run("numbers", "--out", "numbers", *sizes, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "numbers" / "train.de").read_text().splitlines()) == 9


def test_errors_and_help_of_a_script_begin_with_the_command(tmp_path: Path) -> None:
    missing = run("multi30k", "--from", "nowhere", "--out", "data", cwd=tmp_path)
    expected = "stochattn-prepare multi30k: error: nowhere/train.de.gz does not exist\n"
    assert (missing.returncode, missing.stderr) == (1, expected)
    bad_flag = run("numbers", "--out", "data", "--train", "0", cwd=tmp_path)
    assert bad_flag.returncode == 2
    assert bad_flag.stderr.startswith("stochattn-prepare numbers: error: argument --train:")
    assert bad_flag.stderr.count("\n") == 1
    shown = run("glue", "--help", cwd=tmp_path)
    assert shown.returncode == 0
    assert shown.stdout.startswith("usage: stochattn-prepare glue [-h]")
    assert "Prepare GLUE: CoLA, SST-2" in shown.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_program_name_is_restored(tmp_path: Path) -> None:
    before = sys.argv[0]
    flags = ["--out", str(tmp_path / "data"), "--from", str(tmp_path / "nowhere")]
    assert prepare.main(["multi30k", *flags]) == 1
    assert sys.argv[0] == before


def test_help_lists_every_script(capsys: pytest.CaptureFixture) -> None:
    assert prepare.main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    listed = {line.split()[0]: line for line in lines if line.startswith("  ")}
    scripts = {path.stem.partition("_")[2] for path in (ROOT / "data-prep").glob("*_*.py")}
    assert set(listed) == scripts > {"multi30k", "glue", "numbers", "text", "pairs"}
    assert "Prepare Multi30k German-English: image captions" in listed["multi30k"]
    for name, line in listed.items():
        assert line.split(maxsplit=2)[1] in ("Prepare", "Generate"), name


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["multi3k", "--out", "x"], "unknown corpus 'multi3k': did you mean multi30k"),
        (["GLUE"], "did you mean glue"),
        (["zzzzzz"], "unknown corpus 'zzzzzz': choose age, agenda, anli, "),
        ([], "the name of a corpus is missing"),
    ],
    ids=["similar", "upper case", "nothing similar", "no corpus"],
)
def test_an_unknown_corpus_gives_one_line(
    arguments: list[str], hint: str, capsys: pytest.CaptureFixture
) -> None:
    assert prepare.main(arguments) == 2
    message = capsys.readouterr().err
    assert message.startswith("stochattn-prepare: error: ")
    assert hint in message
    assert message.count("\n") == 1


def test_scripts_are_found_in_an_installed_package_and_in_a_clone(tmp_path: Path) -> None:
    package = tmp_path / "fairseq_stochattn"
    package.mkdir()
    with pytest.raises(InputError, match="the corpus scripts are missing"):
        prepare.scripts_folder(package)
    (tmp_path / "data-prep").mkdir()
    assert prepare.scripts_folder(package) == tmp_path / "data-prep"
    (package / "data_prep").mkdir()
    assert prepare.scripts_folder(package) == package / "data_prep"
