"""IWSLT14 German–English, TED talks: 160,239 / 7,283 / 6,750 pairs by fairseq's recipe.

python data-prep/prepare_iwslt14.py --out data-bin/iwslt14 [--from FOLDER] [--size 14000]
Lower-cased Moses tokens, 10k joint BPE; the BABN paper takes 14k (--size 14000). The folder of
--from holds de-en.tgz. Every 23rd clean training pair is the validation set; the test set is
dev2010, dev2012 and tst2010 to tst2012 in one. For this archive no checksum is published.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence

from steps.command import main_of, parser_for, prepare_translation, recipe_of, sources
from steps.fetch import Remote
from steps.lines import Report, TextFile, pair_up, read_lines, read_segments
from steps.translation import Recipe

REMOTE = Remote("http://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz")
HELD_OUT = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
NO_SPEECH = ("<url>", "<talkid>", "<keywords>")
TAGS = re.compile("</?(?:title|description)>")


def read_speech(file: TextFile, report: Report) -> Iterator[str | None]:
    """Training text without the lines about the talks; titles and descriptions count as text."""
    for line in read_lines(file, report):
        if line is None:
            yield None
        elif not any(tag in line for tag in NO_SPEECH):
            yield TAGS.sub("", line)


def run(argv: Sequence[str] | None) -> None:
    parser = parser_for(__doc__.splitlines()[0], Recipe(valid_every=23), downloads=True)
    parser.add_argument("--source-lang", choices=("de", "en"), default="de")
    args = parser.parse_args(argv)
    target_lang = "en" if args.source_lang == "de" else "de"
    recipe = recipe_of(args, args.source_lang, target_lang, valid_every=23)
    archive = sources([REMOTE], args)[REMOTE.name]

    def member(name: str) -> list[TextFile]:
        return [TextFile(archive, f"de-en/{name.format(lang=lang)}") for lang in recipe.languages]

    def read_test(report: Report) -> Iterator[tuple[str, str]]:
        for name in HELD_OUT:
            yield from read_segments(*member(f"IWSLT14.{name}.de-en.{{lang}}.xml"), report)

    def read() -> dict:
        train, test = Report(), Report()
        talks = pair_up(*member("train.tags.de-en.{lang}"), read_speech, train)
        return {"train": (talks, train), "test": (read_test(test), test)}

    prepare_translation(args, recipe, [archive], read)


main = main_of(run)

if __name__ == "__main__":
    sys.exit(main())
