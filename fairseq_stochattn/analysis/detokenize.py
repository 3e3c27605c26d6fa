"""Turns tokens of prepared data back into text.

``stochattn-prepare`` writes manifest.json into its output folder. Its recipe names the kind of
subwords, and says whether the text was tokenised by Moses' tokenizer.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq import utils

from ..core.optional import optional_import

logger = logging.getLogger(__name__)

# Kind of subwords in a manifest → value of fairseq's --remove-bpe that joins them to words.
_JOINED_AS = {
    "bpe": "subword_nmt",
    "spm-unigram": "sentencepiece",
    "spm-bpe": "sentencepiece",
    "none": None,
}
# File with the subword model → value of --remove-bpe. Used for data without a recipe.
_MODELS = {"codes": "subword_nmt", "spm.model": "sentencepiece"}


@dataclass(frozen=True)
class TextFormat:
    """How the text of a data set was split into tokens."""

    subwords: str | None = None  # value of fairseq's --remove-bpe; None: whole words
    moses: bool = False  # whether the text was tokenised by Moses' tokenizer

    def detokenizer(self, language: str | None) -> Callable[[str], str]:
        """Return a function that detokenises a text whose subwords are already joined."""
        return moses_detokenizer(language or "en") if self.moses else str


def read_text_format(data: str) -> TextFormat:
    """Return how the text in a data folder was tokenised; warns if it has no recipe."""
    folder = Path(utils.split_paths(data)[0])
    recipe = _recipe(folder)
    if recipe is not None:
        return TextFormat(_JOINED_AS[recipe["subwords"]], recipe["moses"])
    subwords = next((kind for name, kind in _MODELS.items() if (folder / name).is_file()), None)
    logger.warning(
        "BLEU and chrF are of text that is not detokenised, since %s has no manifest.json of "
        "stochattn-prepare: add --tokenizer and --remove-bpe or --bpe, or --tokenized-bleu",
        folder,
    )
    return TextFormat(subwords)


def _recipe(folder: Path) -> dict[str, Any] | None:
    """The recipe in the manifest of a data folder; None unless it is a recipe for translation.

    The manifest of data in several shards is in the folder above them.
    """
    for place, is_shard in ((folder, False), (folder.parent, True)):
        try:
            manifest = json.loads((place / "manifest.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        recipe = manifest.get("recipe") if isinstance(manifest, dict) else None
        if not isinstance(recipe, dict) or (is_shard and recipe.get("shards") in (None, 1)):
            continue
        known = isinstance(recipe.get("subwords"), str) and recipe["subwords"] in _JOINED_AS
        if known and isinstance(recipe.get("moses"), bool):
            return recipe
    return None


def moses_detokenizer(language: str) -> Callable[[str], str]:
    """Return a function that undoes Moses' tokenizer in a text of this language."""
    sacremoses = optional_import(
        "sacremoses", "BLEU of detokenised text (or add --tokenized-bleu)", extra="data"
    )
    moses = sacremoses.MosesDetokenizer(lang=language)
    return lambda text: moses.detokenize(text.split())
