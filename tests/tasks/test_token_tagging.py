"""Token tagging and multiple choice: data, loss, head, checkpoints, precision and errors."""

from __future__ import annotations

import math
import os
import shutil
from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.tasks import TASK_REGISTRY
from omegaconf import OmegaConf
from torch import Tensor, nn

import labelled
import prepare_wnut17
import runner
import sizes
import zoo
from fairseq_stochattn import compat
from fairseq_stochattn.compat import UsageError
from fairseq_stochattn.core.errors import InputError
from fairseq_stochattn.criterions.token_tagging import TokenTaggingCriterion
from fairseq_stochattn.pretrained.export_fairseq import export, to_plain
from fairseq_stochattn.tasks.token_tagging import IGNORED, TAGGING_HEAD, TokenTaggingTask
from precision import PRECISIONS

DATA = Path(os.environ.get("STOCHATTN_DATA", runner.ROOT.parent / "shared" / "data"))
WNUT = DATA / "wnut17"
SMALL = (*sizes.ROBERTA, "--dropout", 0, "--attention-dropout", 0)
SHORT = ("--max-update", 3, "--batch-size", 64)


def config(data: Path, **more: object):
    defaults = TASK_REGISTRY["token_tagging"]
    flags = {"data": str(data), "init_token": 0, "max_positions": 64, "seed": 1, **more}
    return OmegaConf.merge(OmegaConf.structured(getattr(defaults, "__dataclass")), flags)


def task_of(data: Path, **more: object) -> TokenTaggingTask:
    return TokenTaggingTask.setup_task(config(data, **more))


def collate(task: TokenTaggingTask, split: str, *indices: int) -> dict:
    """The batch of the examples with these indices."""
    dataset = task.load_dataset(split)
    return dataset.collater([dataset[index] for index in indices])


def tagger(task: TokenTaggingTask, **overrides: object) -> nn.Module:
    args = {**zoo.TINY["roberta"], "dropout": 0.0, "attention_dropout": 0.0, **overrides}
    torch.manual_seed(1)
    return task.build_model(OmegaConf.create({"_name": "roberta_deterministic", **args}))


def test_batch_has_a_tag_at_every_first_subword(tagging_data: Path) -> None:
    task = task_of(tagging_data)
    assert task.tags == labelled.classes_of(tagging_data)[:-1]
    assert task.tags[0] == "O"
    batch = collate(task, "train", 0, 1, 2)
    tokens, target = batch["net_input"]["src_tokens"], batch["target"]
    for row, (text, labels) in enumerate(labelled.rows(tagging_data, "train")[:3]):
        length = len(text.split())
        assert task.dictionary.string(tokens[row, 1 : 1 + length]) == text
        assert tokens[row, 0] == 0
        assert tokens[row, 1 + length] == task.dictionary.eos()
        expected = [IGNORED if x == "<ignore>" else task.tags.index(x) for x in labels.split()]
        assert target[row, 1 : 1 + length].tolist() == expected
        assert target[row, 0] == IGNORED
        assert target[row, 1 + length :].eq(IGNORED).all()  # at </s> and padding
    assert any("<ignore>" in row[1] for row in labelled.rows(tagging_data, "train"))


@pytest.mark.parametrize("method", ["truncate", "random_crop"])
def test_shortened_sentences_keep_their_tags(method: str, tagging_data: Path) -> None:
    whole = collate(task_of(tagging_data), "train", *range(20))
    short = collate(
        task_of(tagging_data, shorten_method=method, max_positions=5), "train", *range(20)
    )
    assert short["target"].shape == (20, 5) == short["net_input"]["src_tokens"].shape
    for row in range(20):
        tokens, kept = (x["net_input"]["src_tokens"][row].tolist() for x in (whole, short))
        tags, found = (x["target"][row].tolist() for x in (whole, short))
        assert any(
            tokens[i : i + 5] == kept and tags[i : i + 5] == found for i in range(len(tokens) - 4)
        )


def test_loss_is_the_cross_entropy_at_first_subwords(tagging_data: Path) -> None:
    """The loss equals a loop over labelled positions; other positions receive no gradient."""
    task = task_of(tagging_data)
    model, batch = tagger(task), collate(task, "train", 0, 1, 2, 3)
    kept: list[Tensor] = []
    head = model.classification_heads[TAGGING_HEAD]
    head.register_forward_hook(lambda _, args, out: (out.retain_grad(), kept.append(out))[0])
    criterion = TokenTaggingCriterion(task)
    loss, size, log = criterion(model.train(), batch)
    loss.backward()
    (logits,) = kept
    total, words = 0.0, 0
    for row, tags in enumerate(batch["target"].tolist()):
        for position, tag in enumerate(tags):
            if tag == IGNORED:
                assert not logits.grad[row, position].any()
                continue
            p = logits[row, position].double().softmax(dim=0)[tag]
            total, words = total - math.log(p.item()), words + 1
            assert logits.grad[row, position].any()
    assert loss.item() == pytest.approx(total, rel=1e-5)
    assert size == words == log["sample_size"]
    assert "gold" not in log  # spans are counted in validation only, to save time
    assert criterion(model.eval(), batch)[2]["gold"] > 0


def test_head_is_fairseqs_head_at_every_token(tagging_data: Path) -> None:
    task = task_of(tagging_data)
    model, batch = tagger(task).eval(), collate(task, "train", 0, 1)
    features, _ = model(**batch["net_input"], features_only=True)
    logits, _ = model(**batch["net_input"], classification_head_name=TAGGING_HEAD)
    head = model.classification_heads[TAGGING_HEAD]
    expected = head.out_proj(torch.tanh(head.dense(features)))
    torch.testing.assert_close(logits, expected)
    assert logits.shape == (*batch["target"].shape, len(task.tags))


def test_tags_do_not_depend_on_the_batch(tagging_data: Path) -> None:
    task = task_of(tagging_data)
    model = tagger(task).eval()

    def logits(*indices: int) -> Tensor:
        batch = collate(task, "valid", *indices)
        return model(**batch["net_input"], classification_head_name=TAGGING_HEAD)[0]

    together = logits(*range(12))
    for index in range(12):
        alone = logits(index)[0]
        torch.testing.assert_close(together[index, : len(alone)], alone, rtol=1e-5, atol=1e-6)


def test_tagger_learns_and_other_tasks_load_its_checkpoint(
    tagging_data: Path, classification_data: Path, tagger_checkpoint: Path, tmp_path: Path
) -> None:
    """A tagger trained with babn and the ELBO predicts well after loading its checkpoint.

    Another task starts from the checkpoint without the tagging head.
    """
    state = compat.load_checkpoint(str(tagger_checkpoint))
    heads = {name for name in state["model"] if "heads" in name}
    assert heads == {
        f"classification_heads.{TAGGING_HEAD}.{part}.{kind}"
        for part in ("dense", "out_proj")
        for kind in ("weight", "bias")
    }
    common = ("--arch", "roberta_babn", *SMALL, "--criterion", "elbo", *SHORT)
    more = runner.train(
        tagging_data, tmp_path / "on", *sizes.TAGGING, *common, "--lr", 0, "--restore-file",
        tagger_checkpoint, "--max-update", 1000, "--max-epoch", 1, "--reset-dataloader",
        "--reset-meters", "--reset-optimizer",
    )  # fmt: skip
    assert float(more.stats["valid"][-1]["valid_f1"]) > 95
    # The classification data gets the tagger's dictionary. Its words do not matter, because the
    # learning rate is 0.
    shutil.copytree(classification_data, tmp_path / "data")
    shutil.copy(tagging_data / "input0" / "dict.txt", tmp_path / "data" / "input0" / "dict.txt")
    flags = (*sizes.CLASSIFICATION[:2], "--num-classes", 5, "--max-positions", 64)
    start = ("--finetune-from-model", tagger_checkpoint)
    runner.train(tmp_path / "data", tmp_path / "other", *common, *flags, *start, "--lr", 0)
    other = compat.load_checkpoint(str(tmp_path / "other" / "checkpoint_last.pt"))["model"]
    assert not any(TAGGING_HEAD in name for name in other)
    shared = [name for name in other if "heads" not in name]
    assert all(torch.equal(other[name], state["model"][name]) for name in shared)
    assert len(shared) == len(state["model"]) - len(heads)


def test_head_is_initialised_at_random_after_pretraining(
    tagging_data: Path, tmp_path: Path
) -> None:
    """A masked language model has no tagging head, so a new head is created and trained."""
    shutil.copytree(tagging_data / "input0", tmp_path / "mlm")
    mlm = ("--task", "masked_lm", "--criterion", "masked_lm", "--tokens-per-sample", 64)
    small = ("--arch", "roberta_deterministic", *SMALL)
    runner.train(tmp_path / "mlm", tmp_path / "pre", *small, *mlm, "--max-update", 1)
    start = ("--finetune-from-model", tmp_path / "pre" / "checkpoint_last.pt")
    found = []
    for lr in (0, 0.01):
        flags = (*small, *sizes.TAGGING, *SHORT, *start)
        runner.train(tagging_data, tmp_path / str(lr), *flags, "--lr", lr)
        path = tmp_path / str(lr) / "checkpoint_last.pt"
        found.append(compat.load_checkpoint(str(path))["model"])
    before = compat.load_checkpoint(str(start[1]))["model"]
    assert all(torch.equal(found[0][name], value) for name, value in before.items())
    name = f"classification_heads.{TAGGING_HEAD}.out_proj.weight"
    assert not torch.equal(found[0][name], found[1][name])


PRECISE = ("--arch", "roberta_deterministic", *SMALL, *sizes.TAGGING, *SHORT, "--no-save")
PRECISE = (*PRECISE, "--fp16-init-scale", 4)


@pytest.fixture(scope="module")
def full_precision(tagging_data: Path, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    return runner.train(tagging_data, tmp_path_factory.mktemp("full"), *PRECISE).losses()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_reduced_precision(
    precision: str, full_precision: list[float], tagging_data: Path, tmp_path: Path
) -> None:
    reduced = runner.train(tagging_data, tmp_path, *PRECISE, *PRECISIONS[precision])
    assert reduced.losses() == pytest.approx(full_precision, abs=0.03)


@pytest.mark.parametrize("task", ["tagging", "choice"])
@pytest.mark.parametrize(("method", "criterion"), [("babn", "elbo"), ("alignment", "alignment")])
def test_methods_with_tagging_and_multiple_choice(
    task: str, method: str, criterion: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """For both tasks, objective = loss of the task + weight · loss of the method."""
    data = request.getfixturevalue(f"{task}_data")
    flags = ("--arch", f"roberta_{method}", *SMALL, "--criterion", criterion, *SHORT)
    weights = ("--kl-weight", 0.3, "--kl-anneal-updates", 0) if criterion == "elbo" else ()
    if criterion == "alignment":
        weights = ("--alignment-weight", 2)
    more = sizes.TAGGING if task == "tagging" else sizes.CHOICE
    output = runner.train(data, tmp_path, *more, *flags, *weights, "--no-save")
    term = {"elbo": "kl", "alignment": "align"}[criterion]
    for row in output.stats["train_inner"]:
        extra = float(row[f"{term}_weight"]) * float(row[term]) / math.log(2)
        assert extra > 0.01
        assert float(row["objective"]) == pytest.approx(float(row["loss"]) + extra, abs=5e-3)
    assert not any("was not collected" in line for line in output.text.splitlines())
    assert "valid_accuracy" in output.stats["valid"][-1]


def test_multiple_choice_is_learnt(chooser_checkpoint: Path) -> None:
    best = checkpoint_utils.load_checkpoint_to_cpu(str(chooser_checkpoint))["extra_state"]["best"]
    assert best < 0.5  # bits; a random choice between four options has 2 bits


def test_ranking_exports_to_plain_fairseq(
    choice_data: Path, chooser_checkpoint: Path, tmp_path: Path
) -> None:
    exported = tmp_path / "plain.pt"
    export(chooser_checkpoint, exported)
    config = compat.load_checkpoint(str(exported))["cfg"]
    assert config["model"].arch == "roberta"
    assert config["task"].criterion == "sentence_ranking"  # plain fairseq requires it
    output = runner.validate(choice_data, exported, "--task", "sentence_ranking")
    (row,) = output.stats["valid"]
    assert float(row["valid_accuracy"]) > 90


def test_export_refuses_tasks_that_fairseq_lacks(chooser_checkpoint: Path) -> None:
    state = compat.load_checkpoint(str(chooser_checkpoint))
    state["cfg"]["task"] = {"_name": "token_tagging"}
    with pytest.raises(InputError, match="plain fairseq has no such"):
        to_plain(state)


def copy_without(data: Path, copy: Path, *parts: str) -> Path:
    """A copy of a data folder without the files ``parts``."""
    shutil.copytree(data, copy)
    for part in parts:
        (copy / part).unlink()
    return copy


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        (("label/dict.txt",), r"label/dict.txt does not exist"),
        (("input0/dict.txt",), r"input0/dict.txt does not exist"),
        (("input0/valid.bin", "input0/valid.idx"), r"no valid set in"),
        (("label/valid.bin", "label/valid.idx"), r"a set without labels"),
    ],
)
def test_missing_files_are_named(
    missing: tuple[str, ...], message: str, tagging_data: Path, tmp_path: Path
) -> None:
    data = copy_without(tagging_data, tmp_path / "data", *missing)
    flags = ("--arch", "roberta_deterministic", *SMALL, *sizes.TAGGING, *SHORT)
    with pytest.raises(SystemExit, match=message):
        runner.train(data, tmp_path / "run", *flags)


def test_labels_that_do_not_fit_the_tokens_are_refused(tagging_data: Path, tmp_path: Path) -> None:
    """The test uses tags of other sentences, too few tags, and an arch without heads."""
    other = copy_without(tagging_data, tmp_path / "other")
    for end in ("bin", "idx"):
        shutil.copy(other / "label" / f"test.{end}", other / "label" / f"valid.{end}")
    with pytest.raises(UsageError, match=r"sentence \d+ of the valid set has \d+ subwords"):
        task_of(other).load_dataset("valid")
    few = copy_without(tagging_data, tmp_path / "few")
    for end in ("bin", "idx"):
        shutil.copy(few / "label" / f"valid.{end}", few / "label" / f"train.{end}")
    with pytest.raises(UsageError, match="has 320 sentences but tags for 40"):
        task_of(few).load_dataset("train")
    flags = (*sizes.TAGGING, "--arch", "lstm", *sizes.LSTM)
    with pytest.raises(SystemExit, match="needs an encoder"):
        runner.train(tagging_data, tmp_path, *flags)


def test_ranking_needs_the_number_of_options(choice_data: Path, tmp_path: Path) -> None:
    flags = ("--task", "sentence_ranking", "--criterion", "sentence_ranking")
    with pytest.raises(SystemExit, match="--num-classes N"):
        runner.train(choice_data, tmp_path, "--arch", "roberta_deterministic", *SMALL, *flags)


@pytest.mark.skipif(not WNUT.is_dir(), reason=f"no WNUT-17 at {WNUT}")
def test_wnut17(tmp_path: Path) -> None:
    """data-prep and three updates work on the first sentences of the corpus, with all 13 tags."""
    cut = tmp_path / "cut"
    cut.mkdir()
    for path in WNUT.iterdir():
        sentences = path.read_text(encoding="utf-8").split("\n\n")[:60]
        (cut / path.name).write_text("\n\n".join(sentences) + "\n", encoding="utf-8")
    out = tmp_path / "data"
    assert labelled.run(prepare_wnut17, cut, out, "--size", 500) == 0
    flags = ("--arch", "roberta_deterministic", *SMALL, *sizes.TAGGING, *SHORT, "--no-save")
    flags = (*flags, "--max-positions", 512, "--max-tokens", 4000)
    output = runner.train(out, tmp_path / "run", *flags)
    assert output.losses()[-1] < output.losses()[0]
    task = task_of(out, max_positions=512)
    assert len(task.tags) == 13
    batch = collate(task, "valid", *range(40))
    words = sum(
        len(x.splitlines()) for x in (cut / "emerging.dev.conll").read_text().split("\n\n")[:40]
    )
    assert batch["target"].ne(IGNORED).sum() == words
