"""A real corpus, Multi30k, in the real commands; skipped if the corpus is not available."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

import runner
import sizes
from fairseq_stochattn.commands import export

MULTI30K = runner.ROOT.parent / "shared" / "data" / "multi30k"

pytestmark = pytest.mark.skipif(
    not MULTI30K.is_dir(), reason=f"the Multi30k corpus is not at {MULTI30K}"
)


@pytest.fixture(scope="module")
def captions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Binarise 1,500 training captions: lower-case words, punctuation separated."""
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
    runner.preprocess("-s", "de", "-t", "en", *splits, *vocabulary, out=out)
    return out


@pytest.mark.parametrize(
    ("backbone", "size"), [("transformer", sizes.TRANSFORMER), ("lstm", sizes.LSTM)]
)
def test_deterministic_attention_learns_the_same_as_plain_fairseq(
    backbone: str, size: tuple, captions: Path, tmp_path: Path
) -> None:
    """Equal losses over 60 updates without dropout; equal BLEU of the checkpoint and its export."""
    common = (*size, "--dropout", 0, "--max-tokens", 1200, "--max-update", 60, "--lr", 0.003)
    plain = runner.train(captions, tmp_path / "plain", "--arch", backbone, *common)
    arch = f"{backbone}_deterministic"
    ours = runner.train(captions, tmp_path / "ours", "--arch", arch, *common)
    assert ours.losses() == pytest.approx(plain.losses(), abs=5e-3)
    assert ours.losses()[-1] < ours.losses()[0] - 2
    checkpoint, exported = tmp_path / "ours" / "checkpoint_last.pt", tmp_path / "exported.pt"
    export.main([str(checkpoint), str(exported)])
    scores = [
        re.search(r"BLEU4 = [^\n]+", runner.generate(captions, path, "--max-len-b", 30).text)
        for path in (checkpoint, exported)
    ]
    assert scores[0].group(0).split(" (")[0] == scores[1].group(0).split(" (")[0]
