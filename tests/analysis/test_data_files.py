"""Files of binarised data are checked against their index before fairseq maps them."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest
import torch

from fairseq_stochattn.analysis.data_files import (
    Vocabularies,
    require_complete,
    require_folders,
    require_known_tokens,
)
from fairseq_stochattn.core.errors import InputError

NAME = "valid.src-tgt.src"
HEADER = 26  # bytes


@pytest.fixture
def data(translation_data: Path, tmp_path: Path) -> Path:
    shutil.copytree(translation_data, tmp_path / "data")
    return tmp_path / "data"


def overwrite(path: Path, start: int, content: bytes) -> None:
    old = path.read_bytes()
    path.write_bytes(old[:start] + content + old[start + len(content) :])


def test_complete_files_pass(data: Path) -> None:
    for split in ("train", "valid", "test"):
        require_complete(str(data), split)


@pytest.mark.parametrize(
    ("start", "content", "cause"),
    [
        (0, b"X", "does not start like an index"),
        (9, struct.pack("<Q", 2), "its header is unknown"),
        (17, b"\x63", "its header is unknown"),
        (18, struct.pack("<Q", 41), "bytes instead of 518"),
        (18, struct.pack("<Q", 2**62), "bytes instead of"),
        (HEADER + 4 * 3, struct.pack("<i", -1), "sentence 3 is not within them"),
        (HEADER + 4 * 3, struct.pack("<i", 2**31 - 1), "sentence 3 is not within them"),
        (HEADER + 4 * 40 + 8 * 5, struct.pack("<q", -8), "sentence 5 is not within them"),
        (HEADER + 4 * 40 + 8 * 5, struct.pack("<q", 2**62), "sentence 5 is not within them"),
    ],
)
def test_damaged_index(data: Path, start: int, content: bytes, cause: str) -> None:
    overwrite(data / f"{NAME}.idx", start, content)
    with pytest.raises(InputError, match=cause):
        require_complete(str(data), "valid")
    require_complete(str(data), "test")  # other splits are not concerned


def test_an_index_of_another_format_is_left_to_fairseq(data: Path) -> None:
    overwrite(data / f"{NAME}.idx", 0, b"TNTIDX\x00\x00")
    require_complete(str(data), "valid")


def test_all_folders_of_the_data_are_checked(data: Path, translation_data: Path) -> None:
    overwrite(data / f"{NAME}.idx", 0, b"X")
    with pytest.raises(InputError, match="is damaged"):
        require_complete(f"{translation_data}:{data}", "valid")
    with pytest.raises(InputError, match="nowhere does not exist"):
        require_folders(f"{translation_data}:nowhere")


def test_tokens_beyond_the_dictionary() -> None:
    def batch(source: list[int], previous: list[int]) -> dict:
        inputs = {"src_tokens": torch.tensor(source), "prev_output_tokens": torch.tensor(previous)}
        return {"id": torch.tensor([0]), "net_input1": inputs}

    known = Vocabularies(10, 20)
    require_known_tokens(batch([0, 9], [19]), known, "the set")
    require_known_tokens(batch([], []), known, "the set")
    require_known_tokens(batch([10**6], [19]), Vocabularies(None, 20), "the set")
    for source, previous, odd in (([10], [0], 10), ([0], [20], 20), ([-3], [0], -3)):
        with pytest.raises(InputError, match=f"the set has the token id {odd}"):
            require_known_tokens(batch(source, previous), known, "the set")
