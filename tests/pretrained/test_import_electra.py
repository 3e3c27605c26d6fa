"""Import of ELECTRA: continued pre-training, its classification head, and bad input."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from types import ModuleType

import pytest
import torch
from fairseq import checkpoint_utils
from torch import Tensor

import hub
import prepare_text
import runner
from bad_input import complaint
from fairseq_stochattn.commands import export, import_model
from fairseq_stochattn.pretrained.export_huggingface import export_folder
from fairseq_stochattn.pretrained.families import HEAD
from fairseq_stochattn.pretrained.huggingface_folder import read_tensors
from fairseq_stochattn.pretrained.import_huggingface import import_folder
from fairseq_stochattn.pretrained.vocabulary import read_vocabulary
from running_text import as_text, prepare, story

ARCH = "electra_deterministic"
PAIRS = tuple(map(list, zip(*hub.PAIRS, strict=True)))


@pytest.fixture(scope="module")
def good(transformers: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a discriminator in ``source`` and its import in ``out``."""
    folder = tmp_path_factory.mktemp("electra")
    hub.write_model(folder / "source", "ElectraForPreTraining", embedding_size=16)
    import_folder(folder / "source", folder / "out", ARCH)
    return folder


def load(folder: Path) -> torch.nn.Module:
    return checkpoint_utils.load_model_ensemble([str(folder / "model.pt")])[0][0]


def equal_tensors(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return set(left) == set(right) and all(torch.equal(left[x], right[x]) for x in left)


def test_continued_pre_training_initialises_a_generator(
    good: Path, transformers: ModuleType, tmp_path: Path
) -> None:
    """Training starts by --restore-file; neither import nor export contains the generator."""
    text = tmp_path / "text.txt"
    text.write_text(as_text([story(n) for n in range(12)]))
    tokenizer = ("--subwords", "tokenizer", "--tokenizer", good / "out")
    data = prepare(
        prepare_text.main, tmp_path / "data", "--train", text, "--valid", text, *tokenizer
    )
    flags = json.loads((good / "out" / "manifest.json").read_text())["model"]["flags"].split()
    task = ("--task", "electra", "--criterion", "electra", "--tokens-per-sample", 64)
    more = ("--restore-file", good / "out" / "model.pt", "--sample-break-mode", "complete")
    no_learning = ("--lr", 0, "--max-update", 1, "--batch-size", 2)
    output = runner.train(data, tmp_path / "run", *flags, *task, *more, *no_learning, user_dir=None)
    assert "generator.* is new: keeping its initial parameters" in output.text
    assert "encoder.rtd_head.* is new" not in output.text
    run = tmp_path / "run" / "checkpoint_last.pt"
    before, after = (
        torch.load(path, weights_only=True)["model"] for path in (good / "out" / "model.pt", run)
    )
    assert not any(name.startswith("generator.") for name in before)
    assert equal_tensors(before, {name: after[name] for name in before})
    tokens = "sentence_encoder.embed_tokens.weight"  # shared by generator and discriminator
    assert torch.equal(after[f"generator.{tokens}"], before[f"encoder.{tokens}"])
    export_folder(run, tmp_path / "back", like=good / "out")
    assert equal_tensors(read_tensors(tmp_path / "back"), read_tensors(good / "source"))
    export_folder(run, tmp_path / "bare")  # its folder has neither a tokenizer nor config.json
    auto = transformers.AutoModelForPreTraining
    theirs, report = auto.from_pretrained(tmp_path / "bare", output_loading_info=True)
    assert not any(report.values()), report
    assert type(theirs) is transformers.ElectraForPreTraining


def test_an_encoder_without_head_gets_a_randomly_initialised_head(
    transformers: ModuleType, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hub.write_model(tmp_path / "source", "ElectraModel", embedding_size=16)
    import_folder(tmp_path / "source", tmp_path / "out", ARCH)
    with caplog.at_level(logging.INFO):
        head = load(tmp_path / "out").encoder.rtd_head
    assert "encoder.rtd_head.* is new: keeping its initial parameters" in caplog.text
    assert 0.01 < head.dense.weight.std() < 0.03


def test_the_classifier_has_the_same_output_as_in_transformers(
    transformers: ModuleType, tmp_path: Path
) -> None:
    """ELECTRA's classification head uses gelu; BERT's and RoBERTa's use tanh."""
    source, out, back = (tmp_path / name for name in ("source", "out", "back"))
    name = "ElectraForSequenceClassification"
    theirs = hub.write_model(source, name, embedding_size=16, num_labels=3)
    flags = import_folder(source, out, ARCH)
    assert flags[flags.index("--pooler-activation-fn") + 1] == "gelu"
    path = str(out / "model.pt")
    state = checkpoint_utils.load_checkpoint_to_cpu(path, {"load_checkpoint_heads": True})
    (ours,), _ = checkpoint_utils.load_model_ensemble([path], state=state)
    batch = hub.encode(source, *PAIRS)
    token_ids = read_vocabulary(source, theirs.config.vocab_size).token_ids
    tokens = torch.tensor(token_ids).argsort()[batch["input_ids"]]
    with torch.no_grad():
        found = ours.eval()(tokens, classification_head_name=HEAD)[0]
        torch.testing.assert_close(found, theirs(**batch).logits, rtol=0, atol=1e-4)
    export_folder(out / "model.pt", back)
    assert equal_tensors(read_tensors(back), read_tensors(source))
    auto = transformers.AutoModelForSequenceClassification
    again, report = auto.from_pretrained(back, output_loading_info=True)
    assert not any(report.values()), report
    assert type(again) is type(theirs)


def import_error(source: Path, out: Path, arch: str = ARCH) -> str:
    """The error message of an import that fails and writes nothing."""
    message = complaint(import_model.main, [str(source), str(out), "--arch", arch])
    assert not out.exists()
    return message


def test_import_refuses_folders_without_a_discriminator(good: Path, tmp_path: Path) -> None:
    hub.write_model(tmp_path / "generator", "ElectraForMaskedLM", embedding_size=16)
    cause = "contains ELECTRA's generator: import the discriminator (ElectraForPreTraining)"
    assert cause in import_error(tmp_path / "generator", tmp_path / "out")
    assert "use electra_<method>" in import_error(
        good / "source", tmp_path / "out", "roberta_deterministic"
    )
    project = "electra.embeddings_project.weight"
    source = shutil.copytree(good / "source", tmp_path / "source")
    hub.change_config(source, embedding_size=24)
    assert "without a counterpart in fairseq: embeddings_project." in import_error(
        source, tmp_path / "out"
    )
    hub.change_config(source, embedding_size=None)
    assert "embedding_size is missing or not a positive" in import_error(source, tmp_path / "out")
    hub.change_config(source, embedding_size=16)
    hub.change_tensors(source, lambda tensors: tensors.pop(project))
    assert "lacks the tensor embeddings_project.weight" in import_error(source, tmp_path / "out")


def test_export_refuses_settings_that_electra_does_not_have(good: Path, tmp_path: Path) -> None:
    """Refused are config.json of another family and a head with another activation."""
    other = shutil.copytree(good / "out", tmp_path / "other")
    hub.change_config(other, model_type="bert")
    state = torch.load(other / "model.pt", weights_only=True)
    state["cfg"]["model"]["pooler_activation_fn"] = "tanh"
    torch.save(state, tmp_path / "tanh.pt")  # allowed as long as there is no head
    like = ["--to", "huggingface", "--like", str(good / "out")]
    assert export.main([str(tmp_path / "tanh.pt"), str(tmp_path / "fine"), *like]) == 0
    head = {"dense.weight": (24, 24), "dense.bias": (24,), "out_proj.weight": (2, 24)}
    for name, shape in {**head, "out_proj.bias": (2,)}.items():
        state["model"][f"classification_heads.{HEAD}.{name}"] = torch.zeros(shape)
    torch.save(state, tmp_path / "tanh.pt")
    for arguments, cause in (
        (
            [other / "model.pt", tmp_path / "back", *like[:2]],
            "describes a model of type bert, but the checkpoint is",
        ),
        (
            [tmp_path / "tanh.pt", tmp_path / "back", *like],
            "electra requires pooler_activation_fn gelu",
        ),
    ):
        assert cause in complaint(export.main, [str(x) for x in arguments])
        assert not (tmp_path / "back").exists()
