"""Prepare PAWS-QQP: questions of Quora with swapped words, 11,988 / 677 pairs, without a test set.

Example: stochattn-prepare paws_qqp --from FOLDER --out data-bin/paws-qqp
In a clone, python data-prep/prepare_paws_qqp.py takes the same flags.

The licence of Quora's questions does not allow others to publish them, so PAWS-QQP consists of the
numbers of questions and words only. FOLDER must contain quora_duplicate_questions.tsv (the first
release of Quora) and PAWS-QQP's index files, train.tsv and dev_and_test.tsv, or the archive
paws_qqp.tar.gz with both. dev_and_test.tsv becomes the validation set.

The words are those of NLTK: pip install nltk, then python -m nltk.downloader punkt punkt_tab. The
authors used version 3.2.5; pairs whose words another version does not find are dropped and counted.
Classes: 0 (different meaning), 1 (paraphrase).
"""

from __future__ import annotations

import re
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path

from steps.command import main_of
from steps.errors import PrepError
from steps.examples import Example, classification
from steps.finetuning_command import parser_for, prepare_corpus
from steps.lines import Report, TextFile, convert_read_errors
from steps.tables import read_csv, read_tsv

SPEC = classification("0", "1", inputs=2)
QUESTIONS = "quora_duplicate_questions.tsv"
ARCHIVE = "paws_qqp.tar.gz"
INDEX = {"train": "train.tsv", "valid": "dev_and_test.tsv"}
# A sentence is a list of words, separated by slashes. A word is the number of a word of the pair's
# question, or several words (question,number), separated by colons, that are written as one.
_OTHERS = re.compile(r"\(\s*(\d+)\s*,\s*(\d+)\s*\)")

Numbers = list[list[tuple[int, int]]]  # the words of a sentence: (question, number), …
Words = Mapping[int, Sequence[str]]  # number of a question → its words


def word_numbers(sentence: str, question: int) -> Numbers | None:
    """Return the numbers of a sentence's words; None if ``sentence`` is not an index."""
    words = []
    for item in sentence.split("/"):
        if item.isdecimal():
            words.append([(question, int(item))])
            continue
        parts = [_OTHERS.fullmatch(part) for part in item.split(":")]
        if not all(parts):
            return None
        words.append([(int(part[1]), int(part[2])) for part in parts])
    return words


def read_pairs(
    file: TextFile, words_of: Callable[[], Words], report: Report
) -> Iterator[tuple[str, str, str]]:
    """Yield both sentences and the label of every pair whose words are known."""
    for sentences, label in read_index(file, report):
        try:
            first, second = (sentence_of(numbers, words_of()) for numbers in sentences)
        except KeyError:
            report.dropped["question that QQP lacks"] += 1
        except IndexError:
            report.dropped["word that its question lacks"] += 1
        else:
            yield first, second, label


def sentence_of(numbers: Numbers, words: Words) -> str:
    """Return the sentence; ``KeyError`` without its question, ``IndexError`` without a word."""
    return " ".join("".join(words[question][n] for question, n in parts) for parts in numbers)


def read_index(file: TextFile, report: Report) -> Iterator[tuple[list[Numbers], str]]:
    """Yield the word numbers of both sentences, and the label, of every row of an index file."""
    for row in read_tsv(file, report, key="sentence1"):
        try:
            questions = int(row["qid1"]), int(row["qid2"])
            found = [word_numbers(row[f"sentence{n}"], questions[n - 1]) for n in (1, 2)]
            label = row["label"]
        except KeyError as error:
            raise PrepError(f"{file} has no column {error} in its first line") from None
        except ValueError:
            found = [None]
        if None in found:
            report.dropped["row that is not an index of words"] += 1
        else:
            yield found, label


def read_questions(path: Path, needed: set[int], tokenize: Callable[[str], list[str]]) -> Words:
    """Return the words of the needed questions."""
    words: dict[int, list[str]] = {}
    for row in read_csv(TextFile(path), Report(), delimiter="\t"):
        for n in (1, 2):
            try:
                question, text = int(row[f"qid{n}"]), row[f"question{n}"]
            except KeyError as error:
                raise PrepError(f"{path} has no column {error} in its first line") from None
            except ValueError:
                continue
            if question in needed and question not in words:
                words[question] = tokenize(text)
    return words


def tokenizer() -> Callable[[str], list[str]]:
    """Return NLTK's division of a text into words."""
    try:
        from nltk import word_tokenize
    except ModuleNotFoundError:
        raise PrepError("PAWS-QQP numbers the words of NLTK: pip install nltk") from None
    try:
        word_tokenize("Is it there?")
    except LookupError:
        raise PrepError(
            "NLTK lacks its sentence splitter: python -m nltk.downloader punkt punkt_tab"
        ) from None
    return word_tokenize


def index_files(folder: Path) -> dict[str, TextFile]:
    """Return the index files of both splits, unpacked or in the archive."""
    plain = {split: folder / name for split, name in INDEX.items()}
    if all(path.is_file() for path in plain.values()):
        return {split: TextFile(path) for split, path in plain.items()}
    archive = folder / ARCHIVE
    if not archive.is_file():
        raise PrepError(f"{folder} has neither {' and '.join(INDEX.values())} nor {ARCHIVE}")
    with convert_read_errors(archive), tarfile.open(archive) as packed:
        members = {Path(name).name: name for name in packed.getnames()}
    for name in INDEX.values():
        if name not in members:
            raise PrepError(f"{archive} contains no file {name}")
    return {split: TextFile(archive, members[name]) for split, name in INDEX.items()}


def convert(row: tuple[str, str, str]) -> Example:
    return row[:2], row[2]


def run(argv: Sequence[str] | None) -> None:
    args = parser_for(__doc__, downloads=False).parse_args(argv)
    files, questions = index_files(args.origin), args.origin / QUESTIONS
    if not questions.is_file():
        raise PrepError(f"{questions} does not exist")

    @cache
    def words() -> Words:
        needed = {
            question
            for file in files.values()
            for sentences, _ in read_index(file, Report())
            for numbers in sentences
            for parts in numbers
            for question, _ in parts
        }
        return read_questions(questions, needed, tokenizer())

    tables = {split: partial(read_pairs, file, words) for split, file in files.items()}
    sources = sorted({questions, *(file.path for file in files.values())})
    prepare_corpus(args, SPEC, sources, tables, convert)


main = main_of(run)

if __name__ == "__main__":
    sys.exit(main())
