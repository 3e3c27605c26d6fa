"""Question answering: data, loss, padding, methods, checkpoints, predictions and errors."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from fairseq.tasks import TASK_REGISTRY
from omegaconf import OmegaConf
from torch import nn

import labelled
import prepare_squad
import runner
import sizes
import squad_corpus
import zoo
from fairseq_stochattn import compat
from fairseq_stochattn.analysis.answer_texts import read_questions
from fairseq_stochattn.analysis.squad_metrics import scores
from fairseq_stochattn.commands import evaluate, predict
from fairseq_stochattn.compat import UsageError
from fairseq_stochattn.criterions.question_answering import QuestionAnsweringCriterion
from fairseq_stochattn.tasks.question_answering import (
    IMPOSSIBLE,
    SPAN_HEAD,
    QuestionAnsweringTask,
    answerable,
    span_logits,
)

SMALL = (*sizes.ROBERTA, "--dropout", 0, "--attention-dropout", 0)
TASK = (
    *("--task", "question_answering", "--criterion", "question_answering"),
    *("--separator-token", 2, "--max-positions", 64, "--batch-size", 16, "--max-tokens", 4000),
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("squad")
    return squad_corpus.prepare(squad_corpus.write(folder / "from"), folder / "data")


def task_of(data: Path, **more: object) -> QuestionAnsweringTask:
    defaults = getattr(TASK_REGISTRY["question_answering"], "__dataclass")
    flags = {"data": str(data), "separator_token": 2, "max_positions": 64, "seed": 1, **more}
    return QuestionAnsweringTask.setup_task(OmegaConf.merge(OmegaConf.structured(defaults), flags))


def collate(task: QuestionAnsweringTask, split: str, *indices: int) -> dict:
    dataset = task.load_dataset(split)
    return dataset.collater([dataset[index] for index in indices])


def answerer(task: QuestionAnsweringTask, arch: str = "roberta_deterministic") -> nn.Module:
    args = {**zoo.TINY["roberta"], "dropout": 0.0, "attention_dropout": 0.0}
    torch.manual_seed(1)
    return task.build_model(OmegaConf.create({"_name": arch, **args}))


def test_targets_are_the_tokens_of_the_answer(data: Path) -> None:
    task = task_of(data)
    questions = read_questions(str(data), "train")
    windows = [(q, w) for q in questions for w in q.windows]
    batch = collate(task, "train", *range(len(windows)))
    tokens, (start, end) = batch["net_input"]["src_tokens"], batch["target"].T
    seen = 0
    for row, (question, (_, first, count)) in enumerate(windows):
        words = question.context.text.split()[first : first + count]
        known = tokens[row][tokens[row].ne(task.dictionary.pad())]
        assert task.dictionary.string(known).split() == ["ka", "?", *words]
        if start[row] == 0:
            assert end[row] == 0
            assert not any(word.startswith("ka") for word in words)
        else:
            assert task.dictionary[tokens[row, start[row]]] == question.answers[0]
            seen += 1
        assert tokens[row, 0] == 0
    assert seen > 40
    assert len(windows) > len(questions)  # some contexts are long


def test_only_the_context_and_the_first_token_can_answer(data: Path) -> None:
    """The same for one separator, as BERT has, and for two; padding never can."""
    for separator, added in ((2, 1), (None, 0)):
        task = task_of(data, separator_token=separator)
        batch = collate(task, "train", 0, 1, 2, 3)
        tokens, lengths = batch["net_input"]["src_tokens"], batch["net_input"]["src_lengths"]
        mask = answerable(tokens, task.dictionary)
        for row, length in enumerate(lengths.tolist()):
            first = 4 + added  # <s> ka ? </s>
            expected = [0, *range(first, length - 1)]
            assert mask[row].nonzero().flatten().tolist() == expected


def test_loss_is_the_cross_entropy_of_start_and_end(data: Path) -> None:
    task = task_of(data)
    model, batch = answerer(task), collate(task, "train", *range(6))
    loss, size, log = QuestionAnsweringCriterion(task)(model.train(), batch)
    output, _ = model(**batch["net_input"], classification_head_name=SPAN_HEAD)
    tokens, total, exact = batch["net_input"]["src_tokens"], 0.0, 0
    for row, target in enumerate(batch["target"].tolist()):
        length = int(batch["net_input"]["src_lengths"][row])
        allowed = [0, *range(5, length - 1)]
        right = 0
        for side in (0, 1):
            logits = output[row, allowed, side].double()
            total -= math.log(logits.softmax(dim=0)[allowed.index(target[side])].item())
            right += allowed[int(logits.argmax())] == target[side]
        exact += right == 2
    assert tokens.shape == output.shape[:2]
    assert loss.item() == pytest.approx(total, rel=1e-5)
    assert size == 12 == log["sample_size"]  # so that the mean of both losses is minimised
    assert log["nexact"] == exact


def test_logits_do_not_depend_on_the_batch(data: Path) -> None:
    task = task_of(data)
    model = answerer(task).eval()

    def logits(*indices: int) -> torch.Tensor:
        inputs = collate(task, "train", *indices)["net_input"]
        output, _ = model(**inputs, classification_head_name=SPAN_HEAD)
        return span_logits(output, inputs["src_tokens"], task.dictionary)

    together = logits(*range(10))
    for index in range(10):
        (alone,) = logits(index)
        n = alone.size(1)
        torch.testing.assert_close(together[index, :, :n], alone, rtol=1e-5, atol=1e-5)
        assert together[index, :, n:].eq(IMPOSSIBLE).all()
        assert together[index, :, n:].size(1) == together.size(2) - n


METHODS = {
    "babn": ("--arch", "roberta_babn", "--criterion", "elbo"),
    "alignment": ("--arch", "roberta_alignment", "--alignment", "ct", "--criterion", "alignment"),
    "asa": ("--arch", "roberta_asa", "--criterion", "asa"),
    "smart": ("--arch", "roberta_deterministic", "--criterion", "smart"),
    "freelb": ("--arch", "roberta_deterministic", "--criterion", "freelb"),
    "attendout": ("--arch", "roberta_attendout", "--criterion", "attendout"),
    "electra": ("--arch", "electra_babn_small", "--embedding-dim", 16, "--criterion", "elbo"),
}


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains(method: str, data: Path, tmp_path: Path) -> None:
    """The loss stays finite and equals the plain one where the method does not change it."""
    flags = (*TASK, *METHODS[method], *SMALL, "--max-update", 2, "--no-save")
    output = runner.train(data, tmp_path, *flags)
    losses = output.losses()
    assert len(losses) == 2
    assert all(math.isfinite(x) for x in losses)
    row = output.stats["train_inner"][0]
    named = {"babn": "kl", "asa": "asa", "smart": "smart", "freelb": "adv_loss"}.get(method)
    if named:
        assert math.isfinite(float(row[named]))
    if method == "asa":
        # Two positions per window: the divergence is of the same size as the loss, not of 1e4.
        assert 0 <= float(row["asa"]) < 10


@pytest.fixture(scope="module")
def checkpoint(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with babn that has learnt the task."""
    folder = tmp_path_factory.mktemp("answerer")
    flags = (*TASK, "--arch", "roberta_babn", *SMALL, "--criterion", "elbo", "--lr", 0.01)
    runner.train(data, folder, *flags, "--max-update", 120, "--validate-interval", 30)
    return folder / "checkpoint_last.pt"


def run(data: Path, checkpoint: Path, *flags: object) -> int:
    return predict.main([str(x) for x in (data, "--path", checkpoint, "--cpu", *flags)])


def test_predict_writes_the_official_files(
    data: Path, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """The trained model answers; the printed scores are those of the file it writes."""
    names = ("output", "no-answer-output", "n-best-output", "metrics")
    files = {name: tmp_path / f"{name}.json" for name in names}
    flags = [x for name, path in files.items() for x in (f"--{name}", path)]
    capsys.readouterr()
    assert run(data, checkpoint, "--gen-subset", "test", "--json", *flags) == 0
    printed = json.loads(capsys.readouterr().out)
    written = {name: json.loads(path.read_text()) for name, path in files.items()}
    assert written["metrics"] == printed
    questions = read_questions(str(data), "test")
    gold = {question.id: question.answers for question in questions}
    assert list(written["output"]) == list(gold) == list(written["no-answer-output"])
    found = scores(gold, written["output"])
    assert {name: printed[name] for name in found} == pytest.approx(
        {name: 100 * value for name, value in found.items()}, abs=0.01
    )
    assert printed["exact"] > 85  # always_no_answer is 50
    assert printed["always_no_answer"] == 50
    assert printed["best_f1"] >= printed["f1"] - 0.01
    for question in questions:
        p = written["no-answer-output"][question.id]
        answer = written["output"][question.id]
        assert (answer == "") == (p > 0.5)
        assert answer in question.context.text
        best = written["n-best-output"][question.id]
        assert answer in ("", best[0]["text"])


def test_threshold_of_another_split(
    data: Path, checkpoint: Path, capsys: pytest.CaptureFixture
) -> None:
    def printed(*flags: object) -> dict:
        capsys.readouterr()
        assert run(data, checkpoint, "--json", *flags) == 0
        return json.loads(capsys.readouterr().out)

    chosen = printed("--gen-subset", "valid")["best_f1_threshold"]
    found = printed("--gen-subset", "test", "--no-answer-threshold", "valid")
    assert found["threshold"] == pytest.approx(chosen, abs=1e-5)
    silent = printed("--gen-subset", "test", "--no-answer-threshold", -1)
    assert (silent["no_answer_exact"], silent["has_answer_f1"]) == (100, 0)
    assert silent["exact"] == silent["always_no_answer"]
    loud = printed("--gen-subset", "test", "--no-answer-threshold", 1)
    assert loud["no_answer_f1"] == 0
    assert loud["has_answer_f1"] >= found["has_answer_f1"]


def test_samples_and_ensembles_average_logits(
    data: Path, checkpoint: Path, capsys: pytest.CaptureFixture
) -> None:
    def printed(path: object, *flags: object) -> dict:
        capsys.readouterr()
        assert run(data, path, "--json", *flags) == 0
        return json.loads(capsys.readouterr().out)

    alone = printed(checkpoint)
    assert printed(f"{checkpoint}:{checkpoint}") == alone
    assert printed(checkpoint, "--samples", 4)["exact"] > 80


def test_evaluate_measures_both_decisions(
    data: Path, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    file = tmp_path / "e.json"
    args = (data, "--path", checkpoint, "--cpu", "--samples", 3, "--json", file)
    assert evaluate.main([str(x) for x in args]) == 0
    (found,) = json.loads(file.read_text())["checkpoints"]
    windows = len(labelled.labels(data, "valid"))
    assert (found["examples"], found["predictions"]) == (windows, 2 * windows)
    metrics = found["metrics"]
    assert metrics["accuracy"] >= metrics["exact"] > 85
    for name in ("nll", "ece", "pavpu", "predictive_entropy"):
        assert math.isfinite(metrics[name])
    assert metrics["mutual_information"] > 0
    row = found["least_certain"][0]
    assert row["text"].startswith(("start: ka ?", "end: ka ?"))
    assert "accuracy" in capsys.readouterr().out


def test_a_checkpoint_of_another_task_gives_the_encoder(
    data: Path, checkpoint: Path, tmp_path: Path
) -> None:
    """The head starts anew, the encoder does not; and the other way the head is dropped."""
    state = compat.load_checkpoint(str(checkpoint))["model"]
    shutil.copytree(data / "input0", tmp_path / "mlm")
    mlm = ("--task", "masked_lm", "--criterion", "masked_lm", "--tokens-per-sample", 64)
    small = ("--arch", "roberta_babn", *SMALL, "--lr", 0, "--max-update", 1)
    start = ("--finetune-from-model", checkpoint)
    runner.train(tmp_path / "mlm", tmp_path / "pre", *small, *mlm, *start)
    plain = compat.load_checkpoint(str(tmp_path / "pre" / "checkpoint_last.pt"))["model"]
    assert not any(SPAN_HEAD in name for name in plain)
    assert all(torch.equal(plain[name], state[name]) for name in plain if name in state)
    again = ("--finetune-from-model", tmp_path / "pre" / "checkpoint_last.pt")
    runner.train(data, tmp_path / "qa", *small, *TASK, *again)
    found = compat.load_checkpoint(str(tmp_path / "qa" / "checkpoint_last.pt"))["model"]
    weight = f"classification_heads.{SPAN_HEAD}.out_proj.weight"
    assert found[weight].shape == (2, 32)
    assert not torch.equal(found[weight], state[weight])


def test_a_set_without_answers_is_predicted(
    data: Path, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """No metrics are printed; training and choosing a threshold on such a set are errors."""
    other = tmp_path / "data"
    shutil.copytree(data, other)
    (other / "label" / "valid.label").unlink()
    path = other / "questions" / "valid.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps({**row, "answers": None}) + "\n" for row in rows))
    output = tmp_path / "answers.json"
    assert run(other, checkpoint, "--output", output) == 0
    assert "the set has no labels" in capsys.readouterr().out
    assert len(json.loads(output.read_text())) == len(rows)
    with pytest.raises(SystemExit, match="this split has no answers"):
        run(other, checkpoint, "--gen-subset", "test", "--no-answer-threshold", "valid")
    flags = (*TASK, "--arch", "roberta_deterministic", *SMALL, "--max-update", 1, "--no-save")
    with pytest.raises(SystemExit, match="a set without answers cannot be used"):
        runner.train(other, tmp_path / "run", *flags)


def test_questions_that_all_have_answers_are_always_answered(tmp_path: Path) -> None:
    """As in SQuAD 1.1: no threshold is applied and none is reported."""
    folder = squad_corpus.write(tmp_path / "from")
    data = squad_corpus.prepare(folder, tmp_path / "data", "--answerable")
    flags = (*TASK, "--arch", "roberta_deterministic", *SMALL, "--max-update", 1)
    runner.train(data, tmp_path / "run", *flags)
    files = ("--output", tmp_path / "p.json", "--metrics", tmp_path / "m.json")
    path = tmp_path / "run" / "checkpoint_last.pt"
    assert run(data, path, *files, "--no-answer-threshold", -1) == 0
    assert all(json.loads((tmp_path / "p.json").read_text()).values())
    metrics = json.loads((tmp_path / "m.json").read_text())
    assert set(metrics) == {"subset", "questions", "windows", "exact", "f1"}


def test_an_empty_context_has_the_empty_answer(
    data: Path, checkpoint: Path, tmp_path: Path
) -> None:
    folder = squad_corpus.write(tmp_path / "from")
    content = json.loads((folder / "dev-v2.0.json").read_text())
    rows = content["data"][-1]["paragraphs"]
    answers = [{"text": "kaba", "answer_start": 0}]
    rows.append({"context": " ", "qas": [{"id": "e", "question": "ka ?", "answers": answers}]})
    rows.append({"context": "kaba", "qas": [{"id": "o", "question": "", "answers": answers}]})
    (folder / "dev-v2.0.json").write_text(json.dumps(content))
    out = squad_corpus.prepare(folder, tmp_path / "data", "--model-from", data)
    output = tmp_path / "p.json"
    assert run(out, checkpoint, "--gen-subset", "test", "--output", output) == 0
    found = json.loads(output.read_text())
    assert found["e"] == ""
    assert found["o"] in ("", "kaba")


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ("0 0 0\n", "line 1: not a start and an end"),
        ("3 2\n", "line 1: 3 2 is not a span of"),
        ("0 99\n", "line 1: 0 99 is not a span of"),
        ("-1 -1\n", "has 1 lines for"),
    ],
)
def test_damaged_labels(label: str, message: str, data: Path, tmp_path: Path) -> None:
    other = tmp_path / "data"
    shutil.copytree(data, other)
    (other / "label" / "train.label").write_text(label)
    with pytest.raises(UsageError, match=message):
        task_of(other).load_dataset("train")


def test_wrong_use_is_one_line(data: Path, tmp_path: Path, checkpoint: Path) -> None:
    with pytest.raises(UsageError, match="no other set in"):
        task_of(data).load_dataset("other")
    with pytest.raises(UsageError, match="--separator-token 7"):
        task_of(data, separator_token=7)
    with pytest.raises(SystemExit, match="needs an encoder"):
        runner.train(data, tmp_path, *TASK, "--arch", "lstm", *sizes.LSTM)
    for flags, message in (
        (("--n-best", 0), "must be positive"),
        (("--no-answer-threshold", "nothing"), "no nothing set"),
    ):
        with pytest.raises(SystemExit, match=message):
            run(data, checkpoint, *flags)


def test_other_tasks_have_no_answer_files(classification_data: Path, tmp_path: Path) -> None:
    flags = ("--arch", "roberta_deterministic", *SMALL, *sizes.CLASSIFICATION, "--max-update", 1)
    runner.train(classification_data, tmp_path, *flags, "--init-token", 0)
    with pytest.raises(SystemExit, match="--n-best-output: the model was not trained with"):
        run(classification_data, tmp_path / "checkpoint_last.pt", "--n-best-output", tmp_path / "x")


def test_fp16_and_fp32_agree(data: Path, checkpoint: Path, tmp_path: Path) -> None:
    found = []
    for name, flags in (("a", ()), ("b", ("--fp16",))):
        output = tmp_path / f"{name}.json"
        assert run(data, checkpoint, "--output", output, *flags) == 0
        found.append(json.loads(output.read_text()))
    same = [found[0][key] == found[1][key] for key in found[0]]
    assert np.mean(same) > 0.95


def test_the_prepared_folder_names_the_flags(data: Path, capsys: pytest.CaptureFixture) -> None:
    folder = data.parent / "from"
    flags = (*squad_corpus.FLAGS,)
    assert labelled.run(prepare_squad, folder, data, *flags) == 0
    out = capsys.readouterr().out
    assert "already complete" in out
    assert "--task question_answering --criterion question_answering" in out
    assert "--separator-token 2" in out
