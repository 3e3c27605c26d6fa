"""Tokenise text and split it into subwords.

Words are Moses tokens from sacremoses. Subwords are BPE from subword-nmt, sentencepiece, GPT-2's
byte-level BPE, or the tokenizer of a pretrained model. ``pair_tokenizer`` and ``applier`` return a
function for one chunk of lines, which ``parallel.map_chunks`` runs in several workers.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from fairseq_stochattn.core.errors import InputError
from fairseq_stochattn.core.json_input import read_json
from fairseq_stochattn.core.sentencepiece_file import read_sentencepieces
from steps.errors import PrepError

KINDS = ("bpe", "spm-unigram", "spm-bpe", "none")
PRETRAINING_KINDS = ("spm-unigram", "spm-bpe", "gpt2", "tokenizer", "none")
FINETUNING_KINDS = (*PRETRAINING_KINDS, "words")
WHOLE_WORDS = ("none", "words")  # no subwords: parts between spaces, or words without punctuation
GPT2_FILES = ("encoder.json", "vocab.bpe")
ALBERT_FILE = "spiece.model"
# fairseq's four special symbols, and the special symbols of pretrained models.
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>", "[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]")
UNKNOWN = "<unk>"
LONG_WORD = "x" * 999  # WordPiece replaces it by its unknown token
LineFunction = Callable[[list[str]], list[str]]
PairFunction = Callable[[list[tuple[str, str]]], list[tuple[str, str]]]


def pair_tokenizer(
    languages: tuple[str, str], moses: bool, normalise: bool, split_dashes: bool, lowercase: bool
) -> PairFunction:
    """Return a function that tokenises both sides of sentence pairs.

    With ``moses``, tokens are split and escaped as by Moses' Perl script. Without ``moses``, runs
    of spaces become one space.
    """
    sides = [
        _moses_tokenizer(lang, split_dashes) if moses else _collapse_spaces for lang in languages
    ]
    if normalise:
        sides = [
            _compose(_normaliser(lang), side) for lang, side in zip(languages, sides, strict=True)
        ]

    def tokenise(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
        tokens = ((sides[0](source), sides[1](target)) for source, target in pairs)
        return [(s.lower(), t.lower()) for s, t in tokens] if lowercase else list(tokens)

    return tokenise


def _compose(first: Callable[[str], str], second: Callable[[str], str]) -> Callable[[str], str]:
    return lambda line: second(first(line))


def _moses_tokenizer(language: str, split_dashes: bool) -> Callable[[str], str]:
    from sacremoses import MosesTokenizer

    moses = MosesTokenizer(lang=language)
    return lambda line: moses.tokenize(
        line.strip(), aggressive_dash_splits=split_dashes, return_str=True
    )


def _normaliser(language: str) -> Callable[[str], str]:
    """Return a function that does what two Perl scripts of Moses do, one after the other.

    The scripts are normalize-punctuation.perl and remove-non-printing-char.perl.
    """
    import regex
    from sacremoses import MosesPunctNormalizer

    moses = MosesPunctNormalizer(lang=language)
    non_printing = regex.compile(r"\p{C}")
    # A line feed is appended, because the Perl script reads it too and one of its rules matches a
    # character at the end of the line.
    return lambda line: non_printing.sub(" ", moses.normalize(line + "\n"))


def _collapse_spaces(line: str) -> str:
    return " ".join(line.split())


def model_name(kind: str) -> str | None:
    """Return the name of the file or folder that holds a model of this kind; None for words."""
    if kind in WHOLE_WORDS:
        return None
    return {"bpe": "codes", "gpt2": "gpt2", "tokenizer": "tokenizer"}.get(kind, "spm.model")


def learn(kind: str, files: Iterable[Path], size: int, model: Path, **spm: object) -> None:
    """Learn a subword model on all files together and write it to ``model``.

    ``size`` is the number of merges (bpe) or the vocabulary size (spm, gpt2). ``spm`` holds options
    of sentencepiece's trainer.
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
    """Learn byte-level BPE and write it under the names that fairseq's ``--bpe gpt2`` reads."""
    from tokenizers import ByteLevelBPETokenizer

    learner = ByteLevelBPETokenizer()
    learner.train([str(file) for file in files], vocab_size=size, show_progress=False)
    folder.mkdir()
    vocabulary_file, merges = learner.save_model(str(folder))
    Path(vocabulary_file).rename(folder / GPT2_FILES[0])
    Path(merges).rename(folder / GPT2_FILES[1])


def _learn_sentencepiece(
    kind: str, files: list[Path], size: int, model: Path, extra_options: dict[str, object]
) -> None:
    import sentencepiece

    options = {
        "character_coverage": 1.0,
        # A sample of a large corpus is enough and keeps memory bounded.
        "input_sentence_size": 5_000_000,
        "shuffle_input_sentence": True,
        "minloglevel": 2,
        **extra_options,
    }
    # Given file names, the trainer would store them in the model. They contain the name of the
    # temporary output folder, so the same data would give a different model file in every run.
    lines = (line.rstrip("\n") for line in _lines_of(files))
    learnt = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=lines,
            model_writer=learnt,
            vocab_size=size,
            model_type=kind.removeprefix("spm-"),
            **options,
        )
    except RuntimeError as error:
        cause = str(error).strip().splitlines()[-1]
        raise PrepError(f"sentencepiece cannot learn --size {size} pieces: {cause}") from None
    model.write_bytes(learnt.getvalue())
    pieces = sentencepiece.SentencePieceProcessor(model_proto=learnt.getvalue())
    rows = (f"{pieces.id_to_piece(n)}\t{pieces.get_score(n):g}\n" for n in range(len(pieces)))
    model.with_suffix(".vocab").write_text("".join(rows), encoding="utf-8")


def _lines_of(files: Iterable[Path]) -> Iterator[str]:
    for file in files:
        with file.open(encoding="utf-8") as lines:
            yield from lines


def applier(kind: str, model: Path | None) -> LineFunction:
    """Return a function that splits lines into subwords and joins the subwords by spaces."""
    if kind == "none":
        return lambda lines: [_collapse_spaces(line) for line in lines]
    if kind == "words":
        return _split_words
    if kind == "bpe":
        from subword_nmt.apply_bpe import BPE

        with model.open(encoding="utf-8") as codes:
            bpe = BPE(codes)
        return lambda lines: [bpe.process_line(line) for line in lines]
    if kind in ("gpt2", "tokenizer"):
        tokenizer = load_tokenizer(model)

        def apply(lines: list[str]) -> list[str]:
            encodings = tokenizer.encode_batch(lines, add_special_tokens=False)
            # fairseq's --bpe gpt2 writes token numbers, and RoBERTa's dict.txt lists numbers.
            return [" ".join(map(str, x.ids) if kind == "gpt2" else x.tokens) for x in encodings]

        return apply
    processor = load_sentencepiece(model)
    return lambda lines: [" ".join(pieces) for pieces in processor.encode(lines, out_type=str)]


def _split_words(lines: list[str]) -> list[str]:
    """Separate words from punctuation as Moses does for English, without escaping characters."""
    from sacremoses import MosesTokenizer

    moses = MosesTokenizer(lang="en")
    return [moses.tokenize(line.strip(), return_str=True, escape=False) for line in lines]


def plain_pieces(pieces: str) -> list[str]:
    """Split a line at its spaces and replace special symbols by ``<unk>``.

    In a text, ``</s>`` or ``[MASK]`` stands for these characters, not for a special symbol.
    """
    plain = pieces.split()
    if "<" not in pieces and "[" not in pieces:
        return plain
    return [UNKNOWN if piece in SPECIAL else piece for piece in plain]


def load_tokenizer(folder: Path) -> Any:
    """Load the tokenizer of a model folder from any of the usual files, without truncation."""
    try:
        tokenizer = _read_tokenizer(folder)
        tokenizer.encode(LONG_WORD)  # fails here if there is no unknown token
    except (PrepError, ModuleNotFoundError):
        raise
    except Exception as error:  # the library raises bare Exceptions
        raise PrepError(f"{folder}: its tokenizer cannot be read: {error}") from None
    # Some tokenizers are saved with the truncation and padding of their last use.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _read_tokenizer(folder: Path) -> Any:
    import tokenizers

    if (folder / "tokenizer.json").is_file():
        return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    for names in (GPT2_FILES, ("vocab.json", "merges.txt")):
        if all((folder / name).is_file() for name in names):
            files = [str(folder / name) for name in names]
            return tokenizers.ByteLevelBPETokenizer.from_file(*files)
    if (folder / "vocab.txt").is_file():
        path = str(folder / "vocab.txt")
        return tokenizers.BertWordPieceTokenizer(path, lowercase=is_lowercase(folder))
    if (folder / ALBERT_FILE).is_file():
        return _albert_tokenizer(folder)
    names = f"tokenizer.json, vocab.txt, vocab.json, encoder.json or {ALBERT_FILE}"
    raise PrepError(f"{folder} has no {names}")


def _albert_tokenizer(folder: Path) -> Any:
    """Build ALBERT's tokenizer from its sentencepiece model, as transformers does."""
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

    try:
        found = read_sentencepieces(folder / ALBERT_FILE)
    except InputError as error:
        raise PrepError(str(error)) from None
    # ALBERT splits "9," into "9" and ",": a piece of both is used only if nothing else fits.
    penalties = (100.0 if re.search(r"\d,$", piece) else 0.0 for piece, _ in found.pieces)
    scored = zip(found.pieces, penalties, strict=True)
    pieces = [(piece, score - penalty) for (piece, score), penalty in scored]
    if UNKNOWN not in found.ids():
        raise PrepError(f"{folder / ALBERT_FILE} has no piece {UNKNOWN}")
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=found.ids()[UNKNOWN]))
    steps = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not tokenizer_option(folder, "keep_accents", False):
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if is_lowercase(folder):
        steps.append(normalizers.Lowercase())
    if found.replacements:
        steps.append(normalizers.Precompiled(found.replacements))
    steps.append(normalizers.Replace(Regex(" {2,}"), " "))
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    return tokenizer


def is_lowercase(folder: Path) -> bool:
    """Return whether a tokenizer converts to lower case, by its tokenizer_config.json."""
    return tokenizer_option(folder, "do_lower_case", True)


def tokenizer_option(folder: Path, name: str, default: bool) -> bool:
    """Return an option in a tokenizer's tokenizer_config.json."""
    path = folder / "tokenizer_config.json"
    try:
        options = read_json(path) if path.is_file() else {}
    except InputError as error:
        raise PrepError(str(error)) from None
    value = options.get(name, default) if isinstance(options, dict) else None
    if not isinstance(value, bool):
        raise PrepError(f"{path}: {name} must be true or false")
    return value


def load_sentencepiece(model: Path) -> Any:
    """Load a sentencepiece model."""
    import sentencepiece

    try:
        pieces = sentencepiece.SentencePieceProcessor(model_file=str(model))
        for number in range(len(pieces)):
            pieces.id_to_piece(number)  # fails here if a piece is not UTF-8
        return pieces
    except (RuntimeError, OSError, UnicodeDecodeError) as error:
        cause = (str(error).strip().splitlines() or ["unknown format"])[-1]
        raise PrepError(f"{model} is not a sentencepiece model: {cause}") from None


def vocabulary(kind: str, model: Path | None) -> list[str] | None:
    """Return all symbols that a subword model can write, in the order of the model.

    Returns None for subword-nmt and plain words, where the training text determines the symbols.
    """
    if kind in ("bpe", *WHOLE_WORDS):
        return None
    if kind in ("gpt2", "tokenizer"):
        numbers = load_tokenizer(model).get_vocab()
        ordered = sorted((n, token) for token, n in numbers.items() if token not in SPECIAL)
        return [str(n) if kind == "gpt2" else token for n, token in ordered]
    pieces = load_sentencepiece(model)
    ids = (n for n in range(len(pieces)) if not (pieces.is_control(n) or pieces.is_unknown(n)))
    return [pieces.id_to_piece(n) for n in ids]
