"""Prepare VQA v2: questions about images of COCO, with the answers of ten people each.

Example: stochattn-prepare vqa2 --features features/ --out data-bin/vqa2
In a clone, python data-prep/prepare_vqa2.py takes the same flags.

Questions and annotations are downloaded, or read from --from. The features of the image regions are
read from --features: bottom-up attention with 10 to 100 regions of 2,048 numbers each, as one file
NUMBER.npz or NUMBER.npy per image. The splits are train (train2014) and valid (val2014), which the
papers evaluate on; --test adds the questions of test2015, which have no answers.

The classes are the main answers that occur at least 9 times in train and valid together, 3,129 with
the challenge's own normalisation of answers. The score of an answer is that of the challenge: 0.3,
0.6, 0.9 or 1 if one, two, three or more of ten people gave it. Questions are lowercased and split
into words without punctuation; words after the 14th are dropped, as in MCAN. No checksums are
published. Reading the annotations takes about 4 GB of memory.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from steps.command import build_output, common_parser, main_of, positive_int, source_files
from steps.errors import PrepError
from steps.fetch import Remote
from steps.lines import TextFile
from steps.region_files import RegionFiles
from steps.tables import read_json
from steps.vqa import Question, prepare, summary
from steps.vqa_answers import frequent_answers, soft_scores

ADDRESS = "https://s3.amazonaws.com/cvmlp/vqa/mscoco/vqa"
# Split → (zip of the questions, its member), (zip of the annotations, its member) or None.
FILES = {
    "train": (
        ("v2_Questions_Train_mscoco.zip", "v2_OpenEnded_mscoco_train2014_questions.json"),
        ("v2_Annotations_Train_mscoco.zip", "v2_mscoco_train2014_annotations.json"),
    ),
    "valid": (
        ("v2_Questions_Val_mscoco.zip", "v2_OpenEnded_mscoco_val2014_questions.json"),
        ("v2_Annotations_Val_mscoco.zip", "v2_mscoco_val2014_annotations.json"),
    ),
    "test": (
        ("v2_Questions_Test_mscoco.zip", "v2_OpenEnded_mscoco_test2015_questions.json"),
        None,
    ),
}


def remotes_of(splits: Sequence[str]) -> list[Remote]:
    """Return the files of the splits at their official address."""
    return [Remote(f"{ADDRESS}/{file[0]}") for split in splits for file in FILES[split] if file]


def read_rows(file: TextFile, name: str) -> Iterator[dict[str, Any]]:
    """Yield the entries of the list ``name`` in a JSON file."""
    content = read_json(file)
    rows = content.get(name) if isinstance(content, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise PrepError(f"{file} has no list {name!r}")
    return iter(rows)


def checked(row: dict[str, Any], file: TextFile, **kinds: type) -> list[Any]:
    """Return the named fields of an entry; raises if one is missing or of another type."""
    values = [row.get(name) for name in kinds]
    for (name, kind), value in zip(kinds.items(), values, strict=True):
        if type(value) is not kind or (kind is int and not 0 <= value < 2**62):
            raise PrepError(f"{file}: an entry has no {name} of the type {kind.__name__}")
    return values


def read_annotations(file: TextFile) -> tuple[dict[int, dict[str, float]], list[str]]:
    """Return the scores of the answers by the number of the question, and all main answers."""
    scores, mains = {}, []
    for row in read_rows(file, "annotations"):
        number, main, given = checked(
            row, file, question_id=int, multiple_choice_answer=str, answers=list
        )
        texts = [x.get("answer") if isinstance(x, dict) else None for x in given]
        if not texts or not all(isinstance(text, str) for text in texts):
            raise PrepError(f"{file}: question {number} has an answer that is no text")
        scores[number] = soft_scores(texts, main)
        mains.append(main)
    return scores, mains


def read_questions(
    file: TextFile, scores: dict[int, dict[str, float]] | None
) -> Iterator[Question]:
    """Yield the questions of a split with the scores of their answers."""
    for row in read_rows(file, "questions"):
        number, image, text = checked(row, file, question_id=int, image_id=int, question=str)
        if scores is not None and number not in scores:
            raise PrepError(f"{file}: question {number} has no annotation")
        yield Question(number, image, text, None if scores is None else scores[number])


def build(
    folder: Path, files: dict[str, Path], regions: RegionFiles, args: argparse.Namespace
) -> dict[str, Any]:
    """Write all splits and return their statistics."""
    splits, mains = {}, []
    for split in splits_of(args):
        questions, annotations = (x and TextFile(files[x[0]], x[1]) for x in FILES[split])
        scores = None
        if annotations is not None:
            scores, found = read_annotations(annotations)
            mains += found
        splits[split] = list(read_questions(questions, scores))
    answers = frequent_answers(mains, args.min_count)
    if len(answers) < 2:
        raise PrepError(f"fewer than two answers occur {args.min_count} times: lower --min-count")
    regions.require({question.image for rows in splits.values() for question in rows})
    return prepare(
        folder, splits, regions, answers, args.width, max_words=args.max_words,
        workers=args.workers, keep_text=args.keep_text,
    )  # fmt: skip


def splits_of(args: argparse.Namespace) -> list[str]:
    return [split for split in FILES if split != "test" or args.test]


def run(argv: Sequence[str] | None) -> None:
    parser = common_parser(__doc__, downloads=True)
    add = parser.add_argument
    add(
        "--features", type=Path, required=True,
        help="folder with the features of the regions, one .npz or .npy file per image",
    )  # fmt: skip
    add(
        "--width", type=positive_int, default=2048,
        help="numbers per region, default: %(default)s",
    )  # fmt: skip
    add(
        "--max-regions", type=positive_int, default=100, metavar="N",
        help="keep the first N regions of an image, default: %(default)s",
    )  # fmt: skip
    add(
        "--max-words", type=positive_int, default=14, metavar="N",
        help="keep the first N words of a question, default: %(default)s",
    )  # fmt: skip
    add(
        "--min-count", type=positive_int, default=9, metavar="N",
        help="answers that occur N times or more are classes, default: %(default)s",
    )  # fmt: skip
    add("--test", action="store_true", help="also prepare the test set, which has no answers")
    args = parser.parse_args(argv)
    files = source_files(remotes_of(splits_of(args)), args)
    regions = RegionFiles.find(args.features, args.width, args.max_regions)
    names = ("width", "max_regions", "max_words", "min_count", "test")
    arguments = {name: getattr(args, name) for name in names}
    build_output(
        args,
        {**arguments, "features": regions.description()},
        list(files.values()),
        lambda folder: build(folder, files, regions, args),
        summary,
    )


main = main_of(run)

if __name__ == "__main__":
    sys.exit(main())
