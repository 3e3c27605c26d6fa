"""Words and subwords: Moses tokens by sacremoses, BPE by subword-nmt, sentencepiece, GPT-2's BPE,
or the tokenizer of a pretrained model.

Each ``applier`` returns work for one chunk of lines, to be run on all cores by ``parallel``.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from steps.errors import PrepError

KINDS = ("bpe", "spm-unigram", "spm-bpe", "none")
PRETRAINING_KINDS = ("spm-unigram", "spm-bpe", "gpt2", "tokenizer", "none")
GPT2_FILES = ("encoder.json", "vocab.bpe")
# fairseq's own four, and what the tokenizers of BERT, RoBERTa and ELECTRA call them.
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>", "[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]")
UNKNOWN = "<unk>"
Work = Callable[[list[str]], list[str]]
PairWork = Callable[[list[tuple[str, str]]], list[tuple[str, str]]]


def pair_tokenizer(
    languages: tuple[str, str], moses: bool, normalise: bool, split_dashes: bool, lowercase: bool
) -> PairWork:
    """Tokenise both sides of pairs: by Moses' rules, escaped as the Perl script escapes, or not."""
    sides = [_moses(lang, split_dashes) if moses else _fold for lang in languages]
    if normalise:
        sides = [
            _after(_normaliser(lang), side) for lang, side in zip(languages, sides, strict=True)
        ]

    def work(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
        found = ((sides[0](source), sides[1](target)) for source, target in pairs)
        return [(s.lower(), t.lower()) for s, t in found] if lowercase else list(found)

    return work


def _after(first: Callable[[str], str], second: Callable[[str], str]) -> Callable[[str], str]:
    return lambda line: second(first(line))


def _moses(language: str, split_dashes: bool) -> Callable[[str], str]:
    from sacremoses import MosesTokenizer

    moses = MosesTokenizer(lang=language)
    return lambda line: moses.tokenize(
        line.strip(), aggressive_dash_splits=split_dashes, return_str=True
    )


def _normaliser(language: str) -> Callable[[str], str]:
    """normalize-punctuation.perl, then remove-non-printing-char.perl."""
    import regex
    from sacremoses import MosesPunctNormalizer

    moses = MosesPunctNormalizer(lang=language)
    unprinted = regex.compile(r"\p{C}")
    # The Perl script sees the line feed too, and one of its rules needs a character at the end.
    return lambda line: unprinted.sub(" ", moses.normalize(line + "\n"))


def _fold(line: str) -> str:
    return " ".join(line.split())


def model_name(kind: str) -> str | None:
    """File (or folder) that holds a learnt model of this kind."""
    return {"bpe": "codes", "gpt2": "gpt2", "tokenizer": "tokenizer", "none": None}.get(
        kind, "spm.model"
    )


def learn(kind: str, files: Iterable[Path], size: int, model: Path, **spm: object) -> None:
    """Learn ``size`` merges (bpe) or pieces (spm, gpt2) on all files together; write ``model``.

    ``spm`` are options of sentencepiece's trainer, for the kinds that it learns.
    """
    files = list(files)
    if kind == "bpe":
        from subword_nmt.learn_bpe import learn_bpe

        with model.open("w", encoding="utf-8") as codes, contextlib.redirect_stderr(io.StringIO()):
            learn_bpe(_lines_of(files), codes, size)
    elif kind == "gpt2":
        _learn_gpt2(files, size, model)
    else:
        _learn_sentencepiece(kind, files, size, model, spm)


def _learn_gpt2(files: list[Path], size: int, folder: Path) -> None:
    """Byte-level BPE, written under the names that fairseq's ``--bpe gpt2`` reads."""
    from tokenizers import ByteLevelBPETokenizer

    learner = ByteLevelBPETokenizer()
    learner.train([str(file) for file in files], vocab_size=size, show_progress=False)
    folder.mkdir()
    vocabulary, merges = learner.save_model(str(folder))
    Path(vocabulary).rename(folder / GPT2_FILES[0])
    Path(merges).rename(folder / GPT2_FILES[1])


def _learn_sentencepiece(
    kind: str, files: list[Path], size: int, model: Path, more: dict[str, object]
) -> None:
    import sentencepiece

    options = {
        "character_coverage": 1.0,
        # A sample of a large corpus is enough, and memory stays bounded.
        "input_sentence_size": 5_000_000,
        "shuffle_input_sentence": True,
        "minloglevel": 2,
        **more,
    }
    try:
        sentencepiece.SentencePieceTrainer.train(
            input=[str(file) for file in files],
            model_prefix=str(model.with_suffix("")),
            vocab_size=size,
            model_type=kind.removeprefix("spm-"),
            **options,
        )
    except RuntimeError as error:
        cause = str(error).strip().splitlines()[-1]
        raise PrepError(f"sentencepiece cannot learn {size} pieces: {cause}") from None


def _lines_of(files: Iterable[Path]) -> Iterator[str]:
    for file in files:
        with file.open(encoding="utf-8") as lines:
            yield from lines


def applier(kind: str, model: Path | None) -> Work:
    """Cut lines into subwords with a learnt or given model; pieces are joined by spaces."""
    if kind == "none":
        return lambda lines: [_fold(line) for line in lines]
    if kind == "bpe":
        from subword_nmt.apply_bpe import BPE

        with model.open(encoding="utf-8") as codes:
            bpe = BPE(codes)
        return lambda lines: [bpe.process_line(line) for line in lines]
    if kind in ("gpt2", "tokenizer"):
        tokenizer = load_tokenizer(model)

        def cut(lines: list[str]) -> list[str]:
            found = tokenizer.encode_batch(lines, add_special_tokens=False)
            # fairseq's --bpe gpt2 writes numbers, and RoBERTa's dict.txt holds them.
            return [" ".join(map(str, x.ids) if kind == "gpt2" else x.tokens) for x in found]

        return cut
    import sentencepiece

    pieces = sentencepiece.SentencePieceProcessor(model_file=str(model))
    return lambda lines: [" ".join(cut) for cut in pieces.encode(lines, out_type=str)]


def plain_pieces(pieces: str) -> list[str]:
    """A text that spells ``</s>`` or ``[MASK]`` does not mean fairseq's symbols: unknown."""
    found = pieces.split()
    if "<" not in pieces and "[" not in pieces:
        return found
    return [UNKNOWN if piece in SPECIAL else piece for piece in found]


def load_tokenizer(folder: Path):
    """The tokenizer in a model's folder, in whichever of the usual files it is; for whole lines."""
    try:
        tokenizer = _read_tokenizer(folder)
    except PrepError:
        raise
    except Exception as error:  # the library raises bare Exceptions
        raise PrepError(f"{folder}: its tokenizer cannot be read: {error}") from None
    # Some are saved with the lengths of their last use.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _read_tokenizer(folder: Path):
    import tokenizers

    if (folder / "tokenizer.json").is_file():
        return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    for names in (GPT2_FILES, ("vocab.json", "merges.txt")):
        if all((folder / name).is_file() for name in names):
            files = [str(folder / name) for name in names]
            return tokenizers.ByteLevelBPETokenizer.from_file(*files)
    if (folder / "vocab.txt").is_file():
        config = folder / "tokenizer_config.json"
        options = json.loads(config.read_text(encoding="utf-8")) if config.is_file() else {}
        lower = options.get("do_lower_case", True)
        return tokenizers.BertWordPieceTokenizer(str(folder / "vocab.txt"), lowercase=lower)
    raise PrepError(f"{folder} has no tokenizer.json, vocab.txt, vocab.json or encoder.json")


def vocabulary(kind: str, model: Path | None) -> list[str] | None:
    """All symbols that a model can write, in its own order, for a dictionary that knows them all.

    None where the text itself decides: subword-nmt and plain words.
    """
    if kind in ("bpe", "none"):
        return None
    if kind in ("gpt2", "tokenizer"):
        found = load_tokenizer(model).get_vocab()
        ordered = sorted((n, token) for token, n in found.items() if token not in SPECIAL)
        return [str(n) if kind == "gpt2" else token for n, token in ordered]
    import sentencepiece

    pieces = sentencepiece.SentencePieceProcessor(model_file=str(model))
    ids = (n for n in range(len(pieces)) if not (pieces.is_control(n) or pieces.is_unknown(n)))
    return [pieces.id_to_piece(n) for n in ids]
