"""Errors of fairseq about input become one line; mistakes of this package stay tracebacks."""

from __future__ import annotations

import pytest
import torch
from fairseq.data import Dictionary, data_utils
from fairseq.search import DiverseBeamSearch
from omegaconf import OmegaConf
from torch import nn

from fairseq_stochattn.analysis.fairseq_errors import cause, reading, running
from fairseq_stochattn.analysis.training_log import TrainingLog
from fairseq_stochattn.core.errors import InputError


def test_reading_converts_errors_of_other_packages() -> None:
    with (
        pytest.raises(InputError, match=r"^the file: Unknown post_process option: x$"),
        reading("the file"),
    ):
        data_utils.post_process("", "x")
    with pytest.raises(InputError, match=r"^the file: .*mismatch"), reading("the file"):
        nn.Linear(2, 3).load_state_dict({"weight": torch.zeros(1), "bias": torch.zeros(3)})
    with (
        pytest.raises(
            InputError, match=r"^settings: ConfigAttributeError: Key .x. is not in struct"
        ),
        reading("settings"),
    ):
        _ = OmegaConf.create({}, flags={"struct": True}).x


def test_reading_lets_our_mistakes_pass() -> None:
    with pytest.raises(AttributeError), reading("the log"):
        TrainingLog().add("train", 1, 5)  # the error is raised in a file of this package
    with pytest.raises(InputError, match=r"^as it is$"), reading("the log"):
        raise InputError("as it is")


def test_reading_of_some_modules_only() -> None:
    with pytest.raises(RuntimeError), reading("x", raised_by=["fairseq"]):
        torch.nn.functional.linear(torch.zeros(2), torch.zeros(3, 3))
    with pytest.raises(InputError), reading("x", raised_by=["fairseq"]):
        data_utils.post_process("", "x")


def test_running_converts_only_checks_of_fairseq() -> None:
    search = DiverseBeamSearch(Dictionary(), num_groups=3, diversity_strength=0.5)
    with pytest.raises(InputError, match=r"^search: Diverse.* requires"), running("search"):
        search.step(1, torch.zeros(1, 5, 9), torch.zeros(1, 5, 1))
    # Wrong shapes may come from our attention, even if fairseq's code meets them.
    with pytest.raises(RuntimeError), running("search"):
        nn.Linear(2, 3)(torch.zeros(5))
    with pytest.raises(AssertionError), running("search"):
        raise AssertionError("raised in a file that is not fairseq's")


def test_cause_names_the_class_where_the_message_alone_says_little() -> None:
    assert cause(KeyError("task")) == "KeyError: 'task'"
    assert cause(ValueError("two\nlines\nthree")) == "two lines"
    assert cause(EOFError()) == "EOFError"
    assert cause(Exception("could not infer")) == "could not infer"
