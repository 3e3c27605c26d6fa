"""Commands print their own messages only: nothing that libraries log or warn about on import."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from pathlib import Path

import pytest

import runner
import sizes
from fairseq_stochattn.commands.command import command, log_level


def test_messages_of_libraries_are_hidden(caplog: pytest.LogCaptureFixture) -> None:
    @command
    def main(argv: Sequence[str] | None) -> int:
        for module in ("fairseq.tasks.fairseq_task", "hydra", "fairseq_stochattn.methods", "mine"):
            warnings.warn_explicit(f"from {module}", FutureWarning, "file.py", 1, module=module)
        for name in ("fairseq.tasks", "hydra.core", "fairseq_stochattn.models"):
            logging.getLogger(name).info("info of %s", name)
        logging.getLogger("fairseq.tasks").warning("a warning of fairseq")
        with log_level(logging.INFO, "fairseq_stochattn"):
            logging.getLogger("fairseq_stochattn.models").info("wanted")
        return 0

    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        assert main([]) == 0
    assert [str(x.message) for x in shown] == ["from fairseq_stochattn.methods", "from mine"]
    assert [x.getMessage() for x in caplog.records] == ["a warning of fairseq", "wanted"]


def test_levels_are_restored() -> None:
    before = [logging.getLogger(name).level for name in ("", "fairseq")]
    with pytest.raises(ZeroDivisionError), log_level(logging.ERROR, "", "fairseq"):
        raise ZeroDivisionError
    assert [logging.getLogger(name).level for name in ("", "fairseq")] == before


def test_stderr_is_empty(translation_data: Path, tmp_path: Path) -> None:
    """A list, and an evaluation with a model that samples."""
    listing = runner.run("stochattn-methods")
    assert (listing.returncode, listing.stderr) == (0, "")
    flags = ("--arch", "transformer_babn", *sizes.TRANSFORMER, "--max-update", 1)
    runner.train(translation_data, tmp_path, *flags)
    path = ("--path", tmp_path / "checkpoint_last.pt", "--cpu", "--samples", 2, "--tokenized-bleu")
    done = runner.run("stochattn-evaluate", translation_data, *path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "mutual information" in done.stdout
