"""Use of imported encoders: data preparation, fine-tuning, continued pre-training, export."""

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

import hub
import labelled
import prepare_glue
import prepare_text
import runner
import sizes
from fairseq_stochattn.commands import export, import_model
from fairseq_stochattn.pretrained.families import HEAD
from fairseq_stochattn.pretrained.vocabulary import Vocabulary, read_vocabulary
from running_text import as_text, prepare, story

DATA = Path(os.environ.get("STOCHATTN_DATA", runner.ROOT.parent / "shared" / "data"))
NO_LEARNING = ("--lr", 0, "--max-update", 1, "--batch-size", 2, "--dropout", 0)


def export_folder(*arguments: object) -> None:
    """Run stochattn-export --to huggingface."""
    assert export.main([*map(str, arguments), "--to", "huggingface"]) == 0


def stored_weights(path: Path) -> dict[str, torch.Tensor]:
    return torch.load(path, weights_only=True)["model"]


@pytest.fixture(scope="module")
def bert(transformers: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small BERT (with pooler) in ``hf`` and its import in ``bert``."""
    folder = tmp_path_factory.mktemp("bert")
    hub.write_model(folder / "hf", "BertModel")
    import_model.main([str(folder / "hf"), str(folder / "bert"), "--arch", "roberta_alignment"])
    return folder


@pytest.fixture(scope="module")
def rte(bert: Path) -> tuple[Path, list[str]]:
    """Sentence pairs prepared with the tokenizer of ``bert``, and the flags that are printed."""
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


def test_prepared_pairs_have_the_token_ids_of_transformers(
    bert: Path, rte: tuple[Path, list[str]]
) -> None:
    """The task gives the model [CLS] A [SEP] B [SEP], as transformers does."""
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
    token_ids = torch.tensor(read_vocabulary(bert / "hf", int(theirs.max()) + 1).token_ids)
    assert torch.equal(token_ids[found], theirs)
    assert len(task.source_dictionary) == len(token_ids)


def test_fine_tuning_starts_from_the_pooler(
    bert: Path, rte: tuple[Path, list[str]], transformers: ModuleType, tmp_path: Path
) -> None:
    """The printed command works, and the fine-tuned model is exported as a classifier."""
    out, flags = rte
    output = runner.train(out, tmp_path / "run", *flags, *NO_LEARNING, user_dir=None)
    assert (
        "the head sentence_classification_head starts from the checkpoint's pooler" in output.text
    )
    run = tmp_path / "run" / "checkpoint_last.pt"
    before, after = stored_weights(bert / "bert" / "model.pt"), stored_weights(run)
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
    assert export.main(arguments) == 0
    auto = transformers.AutoModelForSequenceClassification
    theirs, report = auto.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not any(report.values()), report
    (ours,), _ = checkpoint_utils.load_model_ensemble([str(run)])
    batch = hub.encode(tmp_path / "hf", *map(list, zip(*hub.PAIRS, strict=True)))
    token_ids = read_vocabulary(bert / "hf", len(after["encoder.lm_head.bias"])).token_ids
    tokens = torch.tensor(token_ids).argsort()[batch["input_ids"]]
    with torch.no_grad():
        found = ours.eval()(tokens, classification_head_name=HEAD)[0]
        torch.testing.assert_close(found, theirs.eval()(**batch).logits, rtol=0, atol=1e-4)
    # Imported again, the classifier becomes the head of sentence_prediction.
    import_model.main(
        [str(tmp_path / "hf"), str(tmp_path / "again"), "--arch", "roberta_alignment"]
    )
    again = stored_weights(tmp_path / "again" / "model.pt")
    heads = [name for name in after if name.startswith("classification_heads.")]
    assert len(heads) == 4
    assert all(torch.equal(after[name], again[name]) for name in heads)


def test_continued_pre_training_starts_from_the_import(bert: Path, tmp_path: Path) -> None:
    """The imported tokenizer splits the text, and masked_lm reads the import by --restore-file."""
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
    runner.train(out, tmp_path / "run", *flags.split(), *task, *more, *NO_LEARNING, user_dir=None)
    run = tmp_path / "run" / "checkpoint_last.pt"
    before, after = stored_weights(bert / "bert" / "model.pt"), stored_weights(run)
    common = [name for name in after if name in before]
    assert len(common) == len(before) - 4  # all but the pooler
    assert all(torch.equal(before[name], after[name]) for name in common)
    state = torch.load(run, weights_only=True)
    assert state["optimizer_history"][-1]["num_updates"] == 1
    # The head has now been trained, so it is exported too.
    export.main([str(run), str(tmp_path / "hf"), "--to", "huggingface", "--like", str(bert / "hf")])
    assert '"BertForMaskedLM"' in (tmp_path / "hf" / "config.json").read_text()


def test_a_model_trained_in_plain_fairseq_is_exported(
    lm_data: Path, transformers: ModuleType, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Such a model was never imported and has no tokenizer, so token ids stay the dictionary's."""
    model = ("--arch", "roberta", *sizes.ROBERTA, *sizes.MASKED_LM, "--max-positions", 32)
    runner.train(lm_data, tmp_path / "run", *model, *NO_LEARNING, user_dir=None)
    run = tmp_path / "run" / "checkpoint_last.pt"
    export_folder(run, tmp_path / "hf")
    assert (
        "no tokenizer found: embedding rows keep the order of the fairseq dictionary" in caplog.text
    )
    auto = transformers.AutoModelForMaskedLM
    theirs, report = auto.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not any(report.values()), report
    assert type(theirs) is transformers.RobertaForMaskedLM
    (ours,), _ = checkpoint_utils.load_model_ensemble([str(run)])
    tokens = torch.tensor([[0, 5, 6, 7, 8, 9, 2], [0, 9, 4, 2, 1, 1, 1]])
    valid = tokens.ne(1)
    with torch.no_grad():
        found = ours.eval()(tokens)[0][valid]
        expected = theirs.eval()(tokens, attention_mask=valid.long()).logits[valid]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("task", ["CoLA", "MRPC"])
def test_glue_sentences_are_tokenized_as_in_transformers(
    task: str, transformers: ModuleType, tmp_path: Path
) -> None:
    """MiniLM's tokenizer.json truncates and pads to 128 tokens, which data-prep must ignore."""
    origin = DATA / "glue" / task
    if not origin.is_dir():
        pytest.skip(f"no GLUE at {origin}")
    source, excerpt = hub.minilm(), tmp_path / "glue" / task
    excerpt.mkdir(parents=True)
    for split in ("train", "dev"):
        lines = (origin / f"{split}.tsv").read_text(encoding="utf-8").splitlines(keepends=True)
        (excerpt / f"{split}.tsv").write_text("".join(lines[:300]), encoding="utf-8")
    vocabulary = read_vocabulary(source, 30522)
    model = write_tokenizer(source, tmp_path / "model", vocabulary)
    more = ("--task", task, "--model-from", model, "--keep-text")
    assert labelled.run(prepare_glue, tmp_path / "glue", tmp_path / "out", *more) == 0
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    token_ids = torch.tensor(vocabulary.token_ids)
    dictionary = Dictionary.load(str(tmp_path / "out" / "input0" / "dict.txt"))
    assert len(dictionary) == 30522
    parts = sorted(path.name for path in (tmp_path / "out").glob("input*"))
    for part in parts:
        data = data_utils.load_indexed_dataset(str(tmp_path / "out" / part / "train"), dictionary)
        lines = (tmp_path / "out" / "text" / f"train.{part}").read_text("utf-8").splitlines()
        assert len(data) == len(lines) > 250
        for row, line in zip(data, lines, strict=True):
            expected = tokenizer(line, truncation=False, padding=False)["input_ids"]
            assert [101, *token_ids[row.long()].tolist()] == expected


def write_tokenizer(source: Path, out: Path, vocabulary: Vocabulary) -> Path:
    """Write the files of an import that data preparation reads."""
    out.mkdir()
    (out / "tokenizer.json").write_bytes((source / "tokenizer.json").read_bytes())
    vocabulary.dictionary().save(str(out / "dict.txt"))
    return out
