"""A real corpus through the real commands: Multi30k, read from beside the project."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

import commands
import sizes
from fairseq_stochattn import cli

MULTI30K = commands.ROOT.parent / "shared" / "data" / "multi30k"

pytestmark = pytest.mark.skipif(
    not MULTI30K.is_dir(), reason=f"the Multi30k corpus is not at {MULTI30K}"
)


@pytest.fixture(scope="module")
def captions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1,500 training captions, lower-cased words with punctuation set apart."""
    text, out = tmp_path_factory.mktemp("captions"), tmp_path_factory.mktemp("captions-bin")
    for split, name, count in (
        ("train", "train", 1500),
        ("valid", "val", 100),
        ("test", "test_2016_flickr", 100),
    ):
        for side in ("de", "en"):
            with gzip.open(MULTI30K / f"{name}.{side}.gz", "rt", encoding="utf-8") as lines:
                rows = [next(lines).strip().lower() for _ in range(count)]
            words = [" ".join(re.findall(r"\w+|[^\w\s]", row)) for row in rows]
            (text / f"{split}.{side}").write_text("\n".join(words) + "\n", encoding="utf-8")
    splits = [x for s in ("train", "valid", "test") for x in (f"--{s}pref", text / s)]
    vocabulary = ("--nwordssrc", 1500, "--joined-dictionary")
    commands.preprocess("-s", "de", "-t", "en", *splits, *vocabulary, out=out)
    return out


@pytest.mark.parametrize(
    ("backbone", "size"), [("transformer", sizes.TRANSFORMER), ("lstm", sizes.LSTM)]
)
def test_plain_and_ours_learn_the_same(
    backbone: str, size: tuple, captions: Path, tmp_path: Path
) -> None:
    """Sixty updates with dropout 0, then the same BLEU from our arch and from its export."""
    common = (*size, "--dropout", 0, "--max-tokens", 1200, "--max-update", 60, "--lr", 0.003)
    plain = commands.train(captions, tmp_path / "plain", "--arch", backbone, *common)
    arch = f"{backbone}_deterministic"
    ours = commands.train(captions, tmp_path / "ours", "--arch", arch, *common)
    assert ours.losses() == pytest.approx(plain.losses(), abs=5e-3)
    assert ours.losses()[-1] < ours.losses()[0] - 2
    checkpoint, exported = tmp_path / "ours" / "checkpoint_last.pt", tmp_path / "exported.pt"
    cli.export_main([str(checkpoint), str(exported)])
    found = [
        re.search(r"BLEU4 = [^\n]+", commands.generate(captions, path, "--max-len-b", 30).text)
        for path in (checkpoint, exported)
    ]
    assert found[0].group(0).split(" (")[0] == found[1].group(0).split(" (")[0]
