"""Imported encoders in use: their data, fine-tuning from the pooler, continued pre-training."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from types import ModuleType

import pytest
import torch
from fairseq import checkpoint_utils, tasks
from fairseq.data import Dictionary, data_utils
from omegaconf import OmegaConf

import commands
import hub
import labelled
import prepare_glue
import prepare_text
import sizes
from fairseq_stochattn import cli
from fairseq_stochattn.pretrained.families import HEAD
from fairseq_stochattn.pretrained.vocabulary import Vocabulary, read_vocabulary
from running_text import as_text, prepare, story

DATA = Path(os.environ.get("STOCHATTN_DATA", commands.ROOT.parent / "shared" / "data"))
QUIET = ("--lr", 0, "--max-update", 1, "--batch-size", 2, "--dropout", 0)


def export(*arguments: object) -> None:
    assert cli.export_main([*map(str, arguments), "--to", "huggingface"]) == 0


def weights(path: Path) -> dict[str, torch.Tensor]:
    return torch.load(path, weights_only=True)["model"]


@pytest.fixture(scope="module")
def bert(transformers: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small BERT with a pooler, in ``hf``, and imported, in ``bert``."""
    folder = tmp_path_factory.mktemp("bert")
    hub.write_model(folder / "hf", "BertModel")
    cli.import_main([str(folder / "hf"), str(folder / "bert"), "--arch", "roberta_alignment"])
    return folder


@pytest.fixture(scope="module")
def rte(bert: Path) -> tuple[Path, list[str]]:
    """Pairs prepared with its tokenizer, and the flags that the script prints."""
    rows = [f"{n}\t{a}\t{b}\t{'not_' * (n % 2)}entailment\n" for n, (a, b) in enumerate(hub.PAIRS)]
    table = "index\tsentence1\tsentence2\tlabel\n" + "".join(rows)
    files = {f"RTE/{name}.tsv": table for name in ("train", "dev")}
    origin, out = labelled.write(bert / "glue", files), bert / "rte"
    more = ("--task", "RTE", "--model-from", bert / "bert")
    with pytest.MonkeyPatch.context() as patch:
        printed: list[str] = []
        patch.setattr("builtins.print", lambda *x, **_: printed.append(" ".join(map(str, x))))
        assert labelled.run(prepare_glue, origin, out, *more) == 0
    (command,) = (x for text in printed for x in text.splitlines() if x.startswith("train with: "))
    program, data, *flags = shlex.split(command.removeprefix("train with: "))
    assert (program, data) == ("fairseq-train", str(out))
    return out, flags


def test_prepared_pairs_are_the_tokenizers(bert: Path, rte: tuple[Path, list[str]]) -> None:
    """What the task feeds the model is [CLS] A [SEP] B [SEP] in our numbers."""
    out, flags = rte
    assert (out / "input0" / "dict.txt").read_bytes() == (bert / "bert" / "dict.txt").read_bytes()
    assert "--separator-token" not in flags
    settings = {
        "data": str(out),
        "num_classes": 2,
        "init_token": 0,
        "no_shuffle": True,
        "regression_target": False,
        "seed": 1,
    }
    task = tasks.setup_task(OmegaConf.create({"_name": "sentence_prediction", **settings}))
    task.load_dataset("train")
    batch = task.datasets["train"].collater([task.datasets["train"][n] for n in range(3)])
    found = batch["net_input"]["src_tokens"]
    theirs = hub.encode(bert / "hf", *map(list, zip(*hub.PAIRS, strict=True)))["input_ids"]
    numbers = torch.tensor(read_vocabulary(bert / "hf", int(theirs.max()) + 1).numbers)
    assert torch.equal(numbers[found], theirs)
    assert len(task.source_dictionary) == len(numbers)


def test_fine_tuning_starts_from_the_pooler(
    bert: Path, rte: tuple[Path, list[str]], transformers: ModuleType, tmp_path: Path
) -> None:
    """By the printed command; and the fine-tuned model is transformers' classifier."""
    out, flags = rte
    output = commands.train(out, tmp_path / "run", *flags, *QUIET, user_dir=None)
    assert (
        "the head sentence_classification_head starts from the checkpoint's pooler" in output.text
    )
    run = tmp_path / "run" / "checkpoint_last.pt"
    before, after = weights(bert / "bert" / "model.pt"), weights(run)
    for name in ("dense.weight", "dense.bias"):
        pooler = before[f"classification_heads.pooler.{name}"]
        assert torch.equal(
            after[f"classification_heads.sentence_classification_head.{name}"], pooler
        )
    arguments = [
        str(run),
        str(tmp_path / "hf"),
        "--to",
        "huggingface",
        "--like",
        str(bert / "bert"),
    ]
    assert cli.export_main(arguments) == 0
    auto = transformers.AutoModelForSequenceClassification
    theirs, report = auto.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not any(report.values()), report
    (ours,), _ = checkpoint_utils.load_model_ensemble([str(run)])
    batch = hub.encode(tmp_path / "hf", *map(list, zip(*hub.PAIRS, strict=True)))
    numbers = read_vocabulary(bert / "hf", len(after["encoder.lm_head.bias"])).numbers
    tokens = torch.tensor(numbers).argsort()[batch["input_ids"]]
    with torch.no_grad():
        found = ours.eval()(tokens, classification_head_name=HEAD)[0]
        torch.testing.assert_close(found, theirs.eval()(**batch).logits, rtol=0, atol=1e-4)
    # And from there back into fairseq: the head is that of sentence_prediction again.
    cli.import_main([str(tmp_path / "hf"), str(tmp_path / "again"), "--arch", "roberta_alignment"])
    again = weights(tmp_path / "again" / "model.pt")
    heads = [name for name in after if name.startswith("classification_heads.")]
    assert len(heads) == 4
    assert all(torch.equal(after[name], again[name]) for name in heads)


def test_pre_training_goes_on(bert: Path, tmp_path: Path) -> None:
    """Running text cut by its tokenizer, and fairseq's masked_lm from --restore-file."""
    text = tmp_path / "text.txt"
    text.write_text(as_text([story(n) for n in range(12)]))
    tokenizer = ("--subwords", "tokenizer", "--tokenizer", bert / "bert")
    out = prepare(
        prepare_text.main, tmp_path / "data", "--train", text, "--valid", text, *tokenizer
    )
    assert (out / "dict.txt").read_bytes() == (bert / "bert" / "dict.txt").read_bytes()
    flags = json.loads((bert / "bert" / "manifest.json").read_text())["model"]["flags"]
    task = ("--task", "masked_lm", "--criterion", "masked_lm", "--tokens-per-sample", 64)
    more = ("--restore-file", bert / "bert" / "model.pt", "--sample-break-mode", "complete")
    commands.train(out, tmp_path / "run", *flags.split(), *task, *more, *QUIET, user_dir=None)
    run = tmp_path / "run" / "checkpoint_last.pt"
    before, after = weights(bert / "bert" / "model.pt"), weights(run)
    common = [name for name in after if name in before]
    assert len(common) == len(before) - 4  # all but the pooler
    assert all(torch.equal(before[name], after[name]) for name in common)
    state = torch.load(run, weights_only=True)
    assert state["optimizer_history"][-1]["num_updates"] == 1
    # Now the head has been trained: it is exported too.
    cli.export_main(
        [str(run), str(tmp_path / "hf"), "--to", "huggingface", "--like", str(bert / "hf")]
    )
    assert '"BertForMaskedLM"' in (tmp_path / "hf" / "config.json").read_text()


def test_a_model_of_our_own_goes_to_transformers(
    lm_data: Path, transformers: ModuleType, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Trained here from the start, plain, without a tokenizer: numbers stay the dictionary's."""
    model = ("--arch", "roberta", *sizes.ROBERTA, *sizes.MASKED_LM, "--max-positions", 32)
    commands.train(lm_data, tmp_path / "run", *model, *QUIET, user_dir=None)
    run = tmp_path / "run" / "checkpoint_last.pt"
    export(run, tmp_path / "hf")
    assert "no tokenizer: rows stay in the dictionary's order" in caplog.text
    auto = transformers.AutoModelForMaskedLM
    theirs, report = auto.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not any(report.values()), report
    assert type(theirs) is transformers.RobertaForMaskedLM
    (ours,), _ = checkpoint_utils.load_model_ensemble([str(run)])
    tokens = torch.tensor([[0, 5, 6, 7, 8, 9, 2], [0, 9, 4, 2, 1, 1, 1]])
    real = tokens.ne(1)
    with torch.no_grad():
        found = ours.eval()(tokens)[0][real]
        wanted = theirs.eval()(tokens, attention_mask=real.long()).logits[real]
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4)


@pytest.mark.parametrize("task", ["CoLA", "MRPC"])
def test_real_sentences_are_cut_as_transformers_cuts_them(
    task: str, transformers: ModuleType, tmp_path: Path
) -> None:
    """The data of GLUE with the tokenizer of MiniLM, whose file says: 128 tokens, padded."""
    origin = DATA / "glue" / task
    if not origin.is_dir():
        pytest.skip(f"no GLUE at {origin}")
    source, few = hub.minilm(), tmp_path / "glue" / task
    few.mkdir(parents=True)
    for split in ("train", "dev"):
        lines = (origin / f"{split}.tsv").read_text(encoding="utf-8").splitlines(keepends=True)
        (few / f"{split}.tsv").write_text("".join(lines[:300]), encoding="utf-8")
    vocabulary = read_vocabulary(source, 30522)
    model = write_tokenizer(source, tmp_path / "model", vocabulary)
    more = ("--task", task, "--model-from", model, "--keep-text")
    assert labelled.run(prepare_glue, tmp_path / "glue", tmp_path / "out", *more) == 0
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    numbers = torch.tensor(vocabulary.numbers)
    dictionary = Dictionary.load(str(tmp_path / "out" / "input0" / "dict.txt"))
    assert len(dictionary) == 30522
    parts = sorted(path.name for path in (tmp_path / "out").glob("input*"))
    for part in parts:
        data = data_utils.load_indexed_dataset(str(tmp_path / "out" / part / "train"), dictionary)
        lines = (tmp_path / "out" / "text" / f"train.{part}").read_text("utf-8").splitlines()
        assert len(data) == len(lines) > 250
        for row, line in zip(data, lines, strict=True):
            wanted = tokenizer(line, truncation=False, padding=False)["input_ids"]
            assert [101, *numbers[row.long()].tolist()] == wanted


def write_tokenizer(source: Path, out: Path, vocabulary: Vocabulary) -> Path:
    """What of an import the data needs."""
    out.mkdir()
    (out / "tokenizer.json").write_bytes((source / "tokenizer.json").read_bytes())
    vocabulary.dictionary().save(str(out / "dict.txt"))
    return out
