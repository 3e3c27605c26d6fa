"""Words and subwords: Moses tokens by sacremoses, BPE by subword-nmt, or sentencepiece.

Each function returns work for one chunk of lines, to be run on all cores by ``parallel``.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from steps.errors import PrepError

KINDS = ("bpe", "spm-unigram", "spm-bpe", "none")
Work = Callable[[list[str]], list[str]]
PairWork = Callable[[list[tuple[str, str]]], list[tuple[str, str]]]


def pair_tokenizer(languages: tuple[str, str], moses: bool, lowercase: bool) -> PairWork:
    """Tokenise both sides of pairs: by Moses' rules, escaped as the Perl script escapes, or not."""
    sides = [_moses(lang) if moses else _fold for lang in languages]

    def work(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
        found = ((sides[0](source), sides[1](target)) for source, target in pairs)
        return [(s.lower(), t.lower()) for s, t in found] if lowercase else list(found)

    return work


def _moses(language: str) -> Callable[[str], str]:
    from sacremoses import MosesTokenizer

    moses = MosesTokenizer(lang=language)
    return lambda line: moses.tokenize(line.strip(), return_str=True)


def _fold(line: str) -> str:
    return " ".join(line.split())


def learn(kind: str, files: Iterable[Path], size: int, model: Path) -> None:
    """Learn ``size`` merges (bpe) or pieces (spm) on all files together; write ``model``."""
    files = list(files)
    if kind == "bpe":
        from subword_nmt.learn_bpe import learn_bpe

        with model.open("w", encoding="utf-8") as codes, contextlib.redirect_stderr(io.StringIO()):
            learn_bpe(_lines_of(files), codes, size)
        return
    import sentencepiece

    try:
        sentencepiece.SentencePieceTrainer.train(
            input=[str(file) for file in files],
            model_prefix=str(model.with_suffix("")),
            vocab_size=size,
            model_type=kind.removeprefix("spm-"),
            character_coverage=1.0,
            minloglevel=2,
        )
    except RuntimeError as error:
        cause = str(error).strip().splitlines()[-1]
        raise PrepError(f"sentencepiece cannot learn {size} pieces: {cause}") from None


def _lines_of(files: Iterable[Path]) -> Iterator[str]:
    for file in files:
        with file.open(encoding="utf-8") as lines:
            yield from lines


def applier(kind: str, model: Path) -> Work:
    """Cut tokens into subwords with a learnt model."""
    if kind == "bpe":
        from subword_nmt.apply_bpe import BPE

        with model.open(encoding="utf-8") as codes:
            bpe = BPE(codes)
        return lambda lines: [bpe.process_line(line) for line in lines]
    import sentencepiece

    pieces = sentencepiece.SentencePieceProcessor(model_file=str(model))
    return lambda lines: [" ".join(cut) for cut in pieces.encode(lines, out_type=str)]
