"""A small corpus of questions: the answer is the word that begins with the question's letters."""

from __future__ import annotations

import json
import random
from pathlib import Path

import labelled
import prepare_squad
from corpora import WORDS

FLAGS = (
    *("--subwords", "none", "--max-length", 24, "--max-question", 4, "--stride", 6),
    *("--articles", 6, 2, 2),
)


def write(folder: Path, articles: int = 10, contexts: int = 8, longest: int = 30) -> Path:
    """Write dev-v2.0.json; half of the questions have no answer, some contexts are long."""
    rng = random.Random(1)
    rows = []
    for number in range(articles):
        paragraphs = []
        for place in range(contexts):
            words = rng.choices(WORDS[5:], k=rng.randint(3, longest))
            key = f"{number}-{place}"
            position = rng.randrange(len(words))
            words[position] = rng.choice(WORDS[:5])  # the only word that begins with ka
            text = " ".join(words)
            answer = {
                "text": words[position], "answer_start": len(" ".join([*words[:position], ""])),
            }  # fmt: skip
            other = " ".join(rng.choices(WORDS[5:], k=6))
            known = {"id": f"{key}a", "question": "ka ?", "answers": [answer]}
            unknown = {"id": f"{key}u", "question": "ka ?", "answers": [], "is_impossible": True}
            paragraphs += [{"context": text, "qas": [known]}, {"context": other, "qas": [unknown]}]
        rows.append({"title": str(number), "paragraphs": paragraphs})
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dev-v2.0.json").write_text(json.dumps({"version": "v2.0", "data": rows}))
    return folder


def prepare(folder: Path, out: Path, *flags: object) -> Path:
    """Binarise the corpus."""
    assert labelled.run(prepare_squad, folder, out, *FLAGS, *flags) == 0
    return out
