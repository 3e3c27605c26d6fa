"""Prepare WNUT-17: rare and emerging entities in web text, 3,394 / 1,009 / 1,287 tagged sentences.

Example: stochattn-prepare wnut17 --out data-bin/wnut17
In a clone, python data-prep/prepare_wnut17.py takes the same flags.

The first subword of a word has the tag of the word; the others have <ignore>.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from steps.command import main_of
from steps.examples import tagging
from steps.finetuning_command import prepare_files, remotes_at
from steps.tables import read_conll

ADDRESS = "https://raw.githubusercontent.com/leondz/emerging_entities_17/master"
REMOTES = remotes_at(
    ADDRESS,
    train=("wnut17train.conll", "731820e13f71af324c6b55a1575ec2ce59fbaa2a0806f8f0400b98d56cd6a7a5"),
    valid=(
        "emerging.dev.conll",
        "e053b752b8155113ca66e7db08af5f2f5f43ab993694e4774f1ec5bad42312d8",
    ),
    test=(
        "emerging.test.annotated",
        "2aa79b764e56ec9264a1b30fdd9b70195bd00ff400b62edd8f399d5f13c178f0",
    ),
)
SPEC = tagging(("corporation", "creative-work", "group", "location", "person", "product"))


def run(argv: Sequence[str] | None) -> None:
    prepare_files(__doc__, argv, SPEC, REMOTES, read_conll, lambda row: row)


main = main_of(run)

if __name__ == "__main__":
    sys.exit(main())
