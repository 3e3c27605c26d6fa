"""The log reader returns exactly the numbers that fairseq wrote, in each of its formats."""

from __future__ import annotations

from pathlib import Path

import pytest

import runner
import sizes
from fairseq_stochattn.analysis.run_folder import find_log
from fairseq_stochattn.analysis.training_log import Series, of_layer, read_log
from fairseq_stochattn.core.errors import InputError


@pytest.fixture(scope="module")
def logged(
    translation_data: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[runner.Output, Path]:
    """A run of two epochs, and the folder with its log in three formats."""
    folder = tmp_path_factory.mktemp("logged")
    flags = ("--arch", "transformer_babn", *sizes.TRANSFORMER, "--criterion", "elbo")
    flags = (*flags, "--max-epoch", 2, "--tensorboard-logdir", folder / "events", "--no-save")
    output = runner.train(translation_data, folder, *flags, "--log-file", folder / "json.log")
    simple = ("--log-format", "simple", "--log-file", folder / "simple.log")
    runner.train(translation_data, folder, *flags[:-3], *simple)
    return output, folder


def numbers(row: dict, part: str) -> dict[str, float]:
    """A logged row as numbers, without the part in front of the names."""
    return {name.removeprefix(f"{part}_"): float(value) for name, value in row.items()}


@pytest.mark.parametrize("file", ["json.log", "simple.log", "events"])
def test_every_number_of_the_log_is_read(logged: tuple[runner.Output, Path], file: str) -> None:
    output, folder = logged
    log = read_log([folder / file])
    assert set(log.parts) == {"train_inner", "train", "valid"} == set(output.stats)
    named = {"loss", "nll_loss", "kl", "kl_weight", "elbo", "nll", "noise", "objective", "ppl"}
    assert set(log.losses()) == {*named, "nll_sampled"}
    assert log.series("train", "nll_sampled") is None  # only validation has it
    for part, rows in output.stats.items():
        rows = [numbers(row, part) for row in rows]
        for name in named:
            series = log.series(part, name)
            assert series.updates == [row["num_updates"] for row in rows]
            # fairseq prints six digits, and tensorboard stores all digits of a float.
            assert series.values == pytest.approx([row[name] for row in rows], rel=5e-6)


def test_find_log_finds_all_text_logs_of_a_folder(logged: tuple[runner.Output, Path]) -> None:
    _, folder = logged
    (folder / "notes.txt").write_text("epoch one went well\n")
    _, files = find_log(folder, None)
    assert files == [folder / "json.log", folder / "simple.log"]


def test_lines_with_prefixes_of_loggers_and_of_hydra_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(
        "2026-01-01 10:00:00 | INFO | fairseq_cli.train | {'not': 'json', 'loss': 7}\n"
        '2026-01-01 10:00:00 | INFO | train_inner | {"epoch": 1, "update": 0.5, "loss": "5.25", '
        '"best": null, "num_updates": "5"}\n'
        '[2026-01-01 10:00:00][valid1][INFO] - {"epoch": 1, "valid1_loss": "4.5", '
        '"valid1_num_updates": "6"}\n'
        "2026-01-01 | INFO | train | epoch 001 | loss 5.5 | ppl None | num_updates 6\n"
        "INFO | x | epoch 002 | valid on 'valid1' subset | loss 4.25 | num_updates 12\n"
        "loss 3 in an unrelated line\n"
    )
    log = read_log([tmp_path / "a.log"])
    assert log.series("train_inner", "loss") == Series([5], [5.25])
    assert log.series("valid1", "loss") == Series([6, 12], [4.5, 4.25])
    assert log.series("train", "loss") == Series([6], [5.5])
    assert log.series("train", "ppl") is None
    assert log.validated == ["valid1"]
    assert log.losses() == ["loss"]


def test_repeated_updates_are_read_once_with_their_last_value(tmp_path: Path) -> None:
    """--log-file repeats lines, and a resumed run logs some updates again."""
    lines = [f'{{"epoch": 1, "update": 1, "loss": "{x}", "num_updates": "{n}"}}\n' for n, x in
             ((10, 3), (20, 2), (20, 2), (10, 2.5), (30, 1))]  # fmt: skip
    (tmp_path / "a.log").write_text("".join(lines))
    assert read_log([tmp_path / "a.log"]).trained("loss") == Series([10, 20, 30], [2.5, 2, 1])


def test_names_of_series_are_split_into_quantity_site_and_layer() -> None:
    assert of_layer("masked_share_encoder_11") == ("masked_share", "encoder", 11)
    assert of_layer("drop_cross_0") == ("drop", "cross", 0)
    assert of_layer("loss") is None
    assert of_layer("encoder_0") is None


def test_a_missing_log_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        read_log([tmp_path / "no.log"])
