"""ALBERT from import to export: its sentencepiece vocabulary, fine-tuning, and what is refused."""

from __future__ import annotations

import shlex
from pathlib import Path
from types import ModuleType

import pytest
import torch
from fairseq import tasks
from omegaconf import OmegaConf

import hub
import labelled
import prepare_glue
import runner
from fairseq_stochattn.core.errors import InputError
from fairseq_stochattn.core.sentencepiece_file import read_sentencepieces
from fairseq_stochattn.pretrained.export_huggingface import export_folder
from fairseq_stochattn.pretrained.huggingface_folder import read_tensors
from fairseq_stochattn.pretrained.import_huggingface import import_folder
from fairseq_stochattn.pretrained.vocabulary import read_vocabulary
from steps.subwords import load_tokenizer

ARCH = "albert_alignment"


@pytest.fixture(scope="module")
def albert(transformers: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small ALBERT (with pooler) in ``hf`` and its import in ``imported``."""
    folder = tmp_path_factory.mktemp("albert")
    hub.write_model(folder / "hf", "AlbertModel", embedding_size=16)
    import_folder(folder / "hf", folder / "imported", ARCH)
    return folder


@pytest.fixture(scope="module")
def rte(albert: Path) -> tuple[Path, list[str]]:
    """Sentence pairs that data-prep has prepared for ``albert``, and the flags that it prints."""
    rows = [f"{n}\t{a}\t{b}\t{'not_' * (n % 2)}entailment\n" for n, (a, b) in enumerate(hub.PAIRS)]
    table = "index\tsentence1\tsentence2\tlabel\n" + "".join(rows)
    origin = labelled.write(albert / "glue", {f"RTE/{x}.tsv": table for x in ("train", "dev")})
    more = ("--task", "RTE", "--model-from", albert / "imported")
    with pytest.MonkeyPatch.context() as patch:
        printed: list[str] = []
        patch.setattr("builtins.print", lambda *x, **_: printed.append(" ".join(map(str, x))))
        assert labelled.run(prepare_glue, origin, albert / "rte", *more) == 0
    (command,) = (x for text in printed for x in text.splitlines() if x.startswith("train with: "))
    return albert / "rte", shlex.split(command.removeprefix("train with: "))[2:]


def test_the_vocabulary_is_that_of_sentencepiece(albert: Path) -> None:
    import sentencepiece

    path = albert / "hf" / "spiece.model"
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(path))
    pieces = [(theirs.id_to_piece(n), theirs.get_score(n)) for n in range(len(theirs))]
    assert list(read_sentencepieces(path).pieces) == pieces
    tokenizer = load_tokenizer(albert / "hf")
    for text in (*hub.SENTENCES, "  The  MAN\tplays é ``loud'' "):
        plain = text.lower().replace("é", "e").replace("``", '"').replace("''", '"')
        assert tokenizer.encode(text).ids == theirs.encode(plain)


def test_digits_and_commas_are_split(albert: Path) -> None:
    """ "9," as one piece has a penalty, as in transformers: ALBERT reads "9" and ","."""
    model = b"".join(
        piece(text, score)
        for text, score in [("<unk>", 0), ("▁", -2), ("9,", -1), ("9", -3), (",", -3)]
    )
    folder = albert / "digits"
    folder.mkdir()
    (folder / "spiece.model").write_bytes(model)
    assert load_tokenizer(folder).encode("9,").tokens == ["▁", "9", ","]


def piece(text: str, score: float) -> bytes:
    """One piece of a sentencepiece model."""
    import struct

    content = text.encode()
    entry = b"\n" + bytes([len(content)]) + content + b"\x15" + struct.pack("<f", score)
    return b"\n" + bytes([len(entry)]) + entry


@pytest.mark.parametrize(
    "content",
    [b"", b"no model", b"\n\x05ab", b"\x80" * 20, piece("a", 0)[:-1], b"\x0a\x00", b"\xff\xff"],
)
def test_other_files_are_not_sentencepiece_models(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "spiece.model").write_bytes(content)
    with pytest.raises(InputError, match="is not a sentencepiece model"):
        read_sentencepieces(tmp_path / "spiece.model")


def test_prepared_pairs_have_the_token_ids_of_albert(
    albert: Path, rte: tuple[Path, list[str]]
) -> None:
    """The task gives the model [CLS] A [SEP] B [SEP]."""
    out, flags = rte
    assert "--separator-token" not in flags
    assert flags[flags.index("--arch") + 1] == ARCH
    settings = {"num_classes": 2, "init_token": 0, "no_shuffle": True, "regression_target": False}
    config = {"_name": "sentence_prediction", "data": str(out), "seed": 1, **settings}
    task = tasks.setup_task(OmegaConf.create(config))
    task.load_dataset("train")
    batch = task.datasets["train"].collater([task.datasets["train"][n] for n in range(3)])
    theirs = hub.encode(albert / "hf", *map(list, zip(*hub.PAIRS, strict=True)))["input_ids"]
    ids = torch.tensor(read_vocabulary(albert / "hf", len(task.source_dictionary)).token_ids)
    assert torch.equal(ids[batch["net_input"]["src_tokens"]], theirs)


@pytest.mark.parametrize("rate", [0, 0.01])
def test_import_fine_tuning_export_and_import(
    rate: float, albert: Path, rte: tuple[Path, list[str]], tmp_path: Path
) -> None:
    """What was not trained is as before, and import after export restores what was trained."""
    out, flags = rte
    size = ("--batch-size", 2, "--max-update", 2, "--lr", rate)
    output = runner.train(out, tmp_path / "run", *flags, *size, user_dir=None)
    assert "starts from the checkpoint's pooler" in output.text
    export_folder(tmp_path / "run" / "checkpoint_last.pt", tmp_path / "hf", albert / "imported")
    before, after = read_tensors(albert / "hf"), read_tensors(tmp_path / "hf")
    before = {f"albert.{name}": value for name, value in before.items()}
    assert set(after) - set(before) == {"classifier.weight", "classifier.bias"}
    assert {name for name in before if torch.equal(before[name], after[name])} == (
        set(before) if rate == 0 else set()
    )
    import_folder(tmp_path / "hf", tmp_path / "again", ARCH)
    trained, again = (
        torch.load(tmp_path / name, weights_only=True)["model"]
        for name in ("run/checkpoint_last.pt", "again/model.pt")
    )
    imported = [x for x in again if "lm_head" not in x and not x.endswith("version")]
    assert len(imported) > 20
    assert all(torch.equal(again[name], trained[name]) for name in imported)


@pytest.mark.parametrize(
    ("settings", "cause"),
    [
        ({"num_hidden_groups": 2}, "fairseq's encoders do not support num_hidden_groups 2"),
        ({"inner_group_num": 2}, "fairseq's encoders do not support inner_group_num 2"),
        ({"embedding_size": 17}, "according to config.json it should be"),
        ({"hidden_act": "swish"}, "hidden_act 'swish' is not supported"),
    ],
)
def test_what_fairseq_lacks_is_refused(
    settings: dict[str, object], cause: str, albert: Path, tmp_path: Path
) -> None:
    copied = tmp_path / "hf"
    copied.mkdir()
    for file in (albert / "hf").iterdir():
        (copied / file.name).write_bytes(file.read_bytes())
    hub.change_config(copied, **settings)
    with pytest.raises(InputError, match=cause):
        import_folder(copied, tmp_path / "out", ARCH)
    with pytest.raises(InputError, match="use albert_<method>"):
        import_folder(albert / "hf", tmp_path / "out", "roberta_babn")
