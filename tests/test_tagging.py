"""Token tagging and multiple choice: what is learnt, what counts, what comes in and goes out."""

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

import commands
import labelled
import prepare_wnut17
import sizes
import zoo
from fairseq_stochattn import compat
from fairseq_stochattn.criterions.tagging import TokenTaggingCriterion
from fairseq_stochattn.errors import UsageError
from fairseq_stochattn.export import export, to_plain
from fairseq_stochattn.tasks.tagging import IGNORED, TAGGING_HEAD, TokenTaggingTask
from test_precision import PRECISIONS

DATA = Path(os.environ.get("STOCHATTN_DATA", commands.ROOT.parent / "shared" / "data"))
WNUT = DATA / "wnut17"
SMALL = (*sizes.ROBERTA, "--dropout", 0, "--attention-dropout", 0)
SHORT = ("--max-update", 3, "--batch-size", 64)


def config(data: Path, **more: object):
    defaults = TASK_REGISTRY["token_tagging"]
    flags = {"data": str(data), "init_token": 0, "max_positions": 64, "seed": 1, **more}
    return OmegaConf.merge(OmegaConf.structured(getattr(defaults, "__dataclass")), flags)


def task_of(data: Path, **more: object) -> TokenTaggingTask:
    return TokenTaggingTask.setup_task(config(data, **more))


def batch(task: TokenTaggingTask, split: str, *indices: int) -> dict:
    dataset = task.load_dataset(split)
    return dataset.collater([dataset[index] for index in indices])


def tagger(task: TokenTaggingTask, **overrides: object) -> nn.Module:
    args = {**zoo.TINY["roberta"], "dropout": 0.0, "attention_dropout": 0.0, **overrides}
    torch.manual_seed(1)
    return task.build_model(OmegaConf.create({"_name": "roberta_deterministic", **args}))


def test_a_batch_has_a_tag_at_every_first_subword(tagging_data: Path) -> None:
    task = task_of(tagging_data)
    assert task.tags == labelled.classes_of(tagging_data)[:-1]
    assert task.tags[0] == "O"
    sample = batch(task, "train", 0, 1, 2)
    tokens, target = sample["net_input"]["src_tokens"], sample["target"]
    for row, (text, labels) in enumerate(labelled.rows(tagging_data, "train")[:3]):
        length = len(text.split())
        assert task.dictionary.string(tokens[row, 1 : 1 + length]) == text
        assert tokens[row, 0] == 0
        assert tokens[row, 1 + length] == task.dictionary.eos()
        expected = [IGNORED if x == "<ignore>" else task.tags.index(x) for x in labels.split()]
        assert target[row, 1 : 1 + length].tolist() == expected
        assert target[row, 0] == IGNORED
        assert target[row, 1 + length :].eq(IGNORED).all()  # the end and the padding
    assert any("<ignore>" in row[1] for row in labelled.rows(tagging_data, "train"))


@pytest.mark.parametrize("method", ["truncate", "random_crop"])
def test_shortened_sentences_keep_their_tags(method: str, tagging_data: Path) -> None:
    whole = batch(task_of(tagging_data), "train", *range(20))
    short = batch(
        task_of(tagging_data, shorten_method=method, max_positions=5), "train", *range(20)
    )
    assert short["target"].shape == (20, 5) == short["net_input"]["src_tokens"].shape
    for row in range(20):
        tokens, kept = (x["net_input"]["src_tokens"][row].tolist() for x in (whole, short))
        tags, found = (x["target"][row].tolist() for x in (whole, short))
        assert any(
            tokens[i : i + 5] == kept and tags[i : i + 5] == found for i in range(len(tokens) - 4)
        )


def test_loss_is_the_cross_entropy_of_the_words(tagging_data: Path) -> None:
    """A direct loop over labelled positions; the others have no gradient."""
    task = task_of(tagging_data)
    model, sample = tagger(task), batch(task, "train", 0, 1, 2, 3)
    kept: list[Tensor] = []
    head = model.classification_heads[TAGGING_HEAD]
    head.register_forward_hook(lambda _, args, out: (out.retain_grad(), kept.append(out))[0])
    criterion = TokenTaggingCriterion(task)
    loss, size, log = criterion(model.train(), sample)
    loss.backward()
    (logits,) = kept
    total, words = 0.0, 0
    for row, tags in enumerate(sample["target"].tolist()):
        for position, tag in enumerate(tags):
            if tag == IGNORED:
                assert not logits.grad[row, position].any()
                continue
            p = logits[row, position].double().softmax(dim=0)[tag]
            total, words = total - math.log(p.item()), words + 1
            assert logits.grad[row, position].any()
    assert loss.item() == pytest.approx(total, rel=1e-5)
    assert size == words == log["sample_size"]
    assert "gold" not in log  # spans cost time and are for validation
    assert criterion(model.eval(), sample)[2]["gold"] > 0


def test_the_head_is_fairseqs_at_every_token(tagging_data: Path) -> None:
    task = task_of(tagging_data)
    model, sample = tagger(task).eval(), batch(task, "train", 0, 1)
    features, _ = model(**sample["net_input"], features_only=True)
    logits, _ = model(**sample["net_input"], classification_head_name=TAGGING_HEAD)
    head = model.classification_heads[TAGGING_HEAD]
    expected = head.out_proj(torch.tanh(head.dense(features)))
    torch.testing.assert_close(logits, expected)
    assert logits.shape == (*sample["target"].shape, len(task.tags))


def test_tags_do_not_depend_on_the_batch(tagging_data: Path) -> None:
    task = task_of(tagging_data)
    model = tagger(task).eval()

    def logits(*indices: int) -> Tensor:
        sample = batch(task, "valid", *indices)
        return model(**sample["net_input"], classification_head_name=TAGGING_HEAD)[0]

    together = logits(*range(12))
    for index in range(12):
        alone = logits(index)[0]
        torch.testing.assert_close(together[index, : len(alone)], alone, rtol=1e-5, atol=1e-6)


def test_a_rule_is_learnt_and_the_head_comes_and_goes(
    tagging_data: Path, classification_data: Path, tagger_checkpoint: Path, tmp_path: Path
) -> None:
    """babn with the ELBO; its checkpoint continues, and starts another task without the head."""
    state = compat.load_checkpoint(str(tagger_checkpoint))
    heads = {name for name in state["model"] if "heads" in name}
    assert heads == {
        f"classification_heads.{TAGGING_HEAD}.{part}.{kind}"
        for part in ("dense", "out_proj")
        for kind in ("weight", "bias")
    }
    common = ("--arch", "roberta_babn", *SMALL, "--criterion", "elbo", *SHORT)
    more = commands.train(
        tagging_data, tmp_path / "on", *sizes.TAGGING, *common, "--lr", 0, "--restore-file",
        tagger_checkpoint, "--max-update", 1000, "--max-epoch", 1, "--reset-dataloader",
        "--reset-meters", "--reset-optimizer",
    )  # fmt: skip
    assert float(more.stats["valid"][-1]["valid_f1"]) > 95
    # The words of this corpus are other symbols: only the task is looked at.
    shutil.copytree(classification_data, tmp_path / "data")
    shutil.copy(tagging_data / "input0" / "dict.txt", tmp_path / "data" / "input0" / "dict.txt")
    flags = (*sizes.CLASSIFICATION[:2], "--num-classes", 5, "--max-positions", 64)
    start = ("--finetune-from-model", tagger_checkpoint)
    commands.train(tmp_path / "data", tmp_path / "other", *common, *flags, *start, "--lr", 0)
    other = compat.load_checkpoint(str(tmp_path / "other" / "checkpoint_last.pt"))["model"]
    assert not any(TAGGING_HEAD in name for name in other)
    shared = [name for name in other if "heads" not in name]
    assert all(torch.equal(other[name], state["model"][name]) for name in shared)
    assert len(shared) == len(state["model"]) - len(heads)


def test_the_head_is_fresh_after_pretraining(tagging_data: Path, tmp_path: Path) -> None:
    """From masked language modelling, where there is none; training then moves it."""
    shutil.copytree(tagging_data / "input0", tmp_path / "mlm")
    mlm = ("--task", "masked_lm", "--criterion", "masked_lm", "--tokens-per-sample", 64)
    small = ("--arch", "roberta_deterministic", *SMALL)
    commands.train(tmp_path / "mlm", tmp_path / "pre", *small, *mlm, "--max-update", 1)
    start = ("--finetune-from-model", tmp_path / "pre" / "checkpoint_last.pt")
    found = []
    for lr in (0, 0.01):
        flags = (*small, *sizes.TAGGING, *SHORT, *start)
        commands.train(tagging_data, tmp_path / str(lr), *flags, "--lr", lr)
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
    return commands.train(tagging_data, tmp_path_factory.mktemp("full"), *PRECISE).losses()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_reduced_precision(
    precision: str, full_precision: list[float], tagging_data: Path, tmp_path: Path
) -> None:
    reduced = commands.train(tagging_data, tmp_path, *PRECISE, *PRECISIONS[precision])
    assert reduced.losses() == pytest.approx(full_precision, abs=0.03)


@pytest.mark.parametrize("task", ["tagging", "choice"])
@pytest.mark.parametrize(("method", "criterion"), [("babn", "elbo"), ("alignment", "alignment")])
def test_methods_tag_and_choose(
    task: str, method: str, criterion: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """objective = the task's own loss + weight · the method's, on either task."""
    data = request.getfixturevalue(f"{task}_data")
    flags = ("--arch", f"roberta_{method}", *SMALL, "--criterion", criterion, *SHORT)
    weights = ("--kl-weight", 0.1, "--kl-anneal-updates", 0) if criterion == "elbo" else ()
    if criterion == "alignment":
        weights = ("--alignment-weight", 2)
    more = sizes.TAGGING if task == "tagging" else sizes.CHOICE
    output = commands.train(data, tmp_path, *more, *flags, *weights, "--no-save")
    term = {"elbo": "kl", "alignment": "align"}[criterion]
    for row in output.stats["train_inner"]:
        extra = float(row[f"{term}_weight"]) * float(row[term]) / math.log(2)
        assert extra > 0.01
        assert float(row["objective"]) == pytest.approx(float(row["loss"]) + extra, abs=5e-3)
    assert not any("did not collect" in line for line in output.text.splitlines())
    assert "valid_accuracy" in output.stats["valid"][-1]


def test_choices_are_learnt(chooser_checkpoint: Path) -> None:
    best = checkpoint_utils.load_checkpoint_to_cpu(str(chooser_checkpoint))["extra_state"]["best"]
    assert best < 0.5  # bits; guessing one of four costs two


def test_ranking_exports_to_plain_fairseq(
    choice_data: Path, chooser_checkpoint: Path, tmp_path: Path
) -> None:
    exported = tmp_path / "plain.pt"
    export(chooser_checkpoint, exported)
    config = compat.load_checkpoint(str(exported))["cfg"]
    assert config["model"].arch == "roberta"
    assert config["task"].criterion == "sentence_ranking"  # which plain fairseq insists on
    output = commands.validate(choice_data, exported, "--task", "sentence_ranking")
    (row,) = output.stats["valid"]
    assert float(row["valid_accuracy"]) > 90


def test_a_task_of_ours_is_not_exported(chooser_checkpoint: Path) -> None:
    state = compat.load_checkpoint(str(chooser_checkpoint))
    state["cfg"]["task"] = {"_name": "token_tagging"}
    with pytest.raises(UsageError, match="plain fairseq has no such"):
        to_plain(state)


def without(data: Path, copy: Path, *parts: str) -> Path:
    shutil.copytree(data, copy)
    for part in parts:
        (copy / part).unlink()
    return copy


@pytest.mark.parametrize(
    ("missing", "complaint"),
    [
        (("label/dict.txt",), r"label/dict.txt does not exist"),
        (("input0/dict.txt",), r"input0/dict.txt does not exist"),
        (("input0/valid.bin", "input0/valid.idx"), r"no valid set in"),
        (("label/valid.bin", "label/valid.idx"), r"a set without labels"),
    ],
)
def test_missing_files_are_told(
    missing: tuple[str, ...], complaint: str, tagging_data: Path, tmp_path: Path
) -> None:
    data = without(tagging_data, tmp_path / "data", *missing)
    flags = ("--arch", "roberta_deterministic", *SMALL, *sizes.TAGGING, *SHORT)
    with pytest.raises(SystemExit, match=complaint):
        commands.train(data, tmp_path / "run", *flags)


def test_data_that_does_not_belong_together_is_told(tagging_data: Path, tmp_path: Path) -> None:
    """Tags of other sentences, tags that the dictionary lacks, an arch without heads."""
    other = without(tagging_data, tmp_path / "other")
    for end in ("bin", "idx"):
        shutil.copy(other / "label" / f"test.{end}", other / "label" / f"valid.{end}")
    with pytest.raises(UsageError, match=r"sentence \d+ of the valid set has \d+ subwords"):
        task_of(other).load_dataset("valid")
    few = without(tagging_data, tmp_path / "few")
    for end in ("bin", "idx"):
        shutil.copy(few / "label" / f"valid.{end}", few / "label" / f"train.{end}")
    with pytest.raises(UsageError, match="has 320 sentences and tags for 40"):
        task_of(few).load_dataset("train")
    flags = (*sizes.TAGGING, "--arch", "lstm", *sizes.LSTM)
    with pytest.raises(SystemExit, match="needs an encoder"):
        commands.train(tagging_data, tmp_path, *flags)


def test_ranking_asks_for_the_number_of_options(choice_data: Path, tmp_path: Path) -> None:
    flags = ("--task", "sentence_ranking", "--criterion", "sentence_ranking")
    with pytest.raises(SystemExit, match="--num-classes N"):
        commands.train(choice_data, tmp_path, "--arch", "roberta_deterministic", *SMALL, *flags)


@pytest.mark.skipif(not WNUT.is_dir(), reason=f"no WNUT-17 at {WNUT}")
def test_wnut17(tmp_path: Path) -> None:
    """A cut of the real corpus, from its files to the first updates; its hyphened kinds count."""
    cut = tmp_path / "cut"
    cut.mkdir()
    for path in WNUT.iterdir():
        sentences = path.read_text(encoding="utf-8").split("\n\n")[:60]
        (cut / path.name).write_text("\n\n".join(sentences) + "\n", encoding="utf-8")
    out = tmp_path / "data"
    assert labelled.run(prepare_wnut17, cut, out, "--size", 500) == 0
    flags = ("--arch", "roberta_deterministic", *SMALL, *sizes.TAGGING, *SHORT, "--no-save")
    flags = (*flags, "--max-positions", 512, "--max-tokens", 4000)
    output = commands.train(out, tmp_path / "run", *flags)
    assert output.losses()[-1] < output.losses()[0]
    task = task_of(out, max_positions=512)
    assert len(task.tags) == 13
    sample = batch(task, "valid", *range(40))
    words = sum(
        len(x.splitlines()) for x in (cut / "emerging.dev.conll").read_text().split("\n\n")[:40]
    )
    assert sample["target"].ne(IGNORED).sum() == words
