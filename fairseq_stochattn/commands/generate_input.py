"""Checks what fairseq-generate reads: each bad file or flag ends it with one line.

fairseq-generate is one function, which loads the task, the models and the data, and then searches.
So the checks are hooks: they wrap the functions of fairseq that it calls.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

from fairseq import checkpoint_utils, scoring, tasks
from fairseq.models import FairseqEncoderModel, FairseqLanguageModel
from omegaconf import DictConfig
from torch import nn

from ..analysis.data_files import (
    Vocabularies,
    require_complete,
    require_folders,
    require_known_tokens,
)
from ..analysis.fairseq_errors import reading, running
from ..analysis.loading import no_warnings, require_finite, require_settings
from ..core.errors import InputError
from ..tasks.kinds import is_task
from .command import OneLineParser, replaced

# Models that have either no decoder or no encoder.
_UNABLE = (FairseqEncoderModel, FairseqLanguageModel)


@contextmanager
def checked_input(config: DictConfig) -> Iterator[None]:
    """Within the block, bad input to fairseq-generate raises ``InputError``."""
    scorer = _reading("--scoring", scoring.build_scorer)
    with (
        running("fairseq-generate"),
        warnings.catch_warnings(),
        # subword-nmt parses the value of --bpe-codes with a parser of its own.
        replaced(argparse.ArgumentParser, "error", OneLineParser.error),
        replaced(tasks, "setup_task", _checked_setup(config, tasks.setup_task)),
        replaced(
            checkpoint_utils,
            "load_model_ensemble",
            _checked_loading(config, checkpoint_utils.load_model_ensemble),
        ),
        replaced(scoring, "build_scorer", scorer),
    ):
        # fairseq asks torch for pinned memory even without a GPU.
        warnings.filterwarnings("ignore", message=".*pin_memory")
        yield


def _checked_setup(config: DictConfig, setup_task: Callable[..., Any]) -> Callable[..., Any]:
    """Return a ``setup_task`` that checks the data, and all that the task reads later."""
    data, subset = getattr(config.task, "data", None) or "", config.dataset.gen_subset

    @wraps(setup_task)
    def checked(*args: Any, **kwargs: Any) -> Any:
        require_folders(data)
        with reading(f"the data in {data} is not for --task {config.task._name}"):
            task = setup_task(*args, **kwargs)
        known = Vocabularies.of(task)
        if known.target is not None and config.generation.sampling_topk > known.target:
            raise InputError(f"--sampling-topk: the dictionary has {known.target} entries")
        where = f"the {subset} set in {data}"
        for name, what in (
            ("get_batch_iterator", f"{where} cannot be batched"),
            ("build_generator", "the flags of the search"),
            ("build_tokenizer", "--tokenizer"),
            ("build_bpe", "--bpe"),
        ):
            setattr(task, name, _reading(what, getattr(task, name)))
        task.load_dataset = _checked_dataset(data, task.load_dataset)
        task.inference_step = _checked_search(where, known, task.inference_step)
        return task

    return checked


def _checked_loading(config: DictConfig, load: Callable[..., Any]) -> Callable[..., Any]:
    """Return a ``load_model_ensemble`` whose errors name the checkpoints."""

    @wraps(load)
    def checked(paths: Sequence[str], *args: Any, **kwargs: Any) -> Any:
        names = ", ".join(paths)
        with reading(f"{names} cannot be used for --task {config.task._name}"), no_warnings():
            models, saved = load(paths, *args, **kwargs)
        require_settings(kwargs.get("arg_overrides") or {}, saved)
        for path, model in zip(paths, models, strict=True):
            require_finite(path, model)
            if is_task(kwargs.get("task"), "translation") and isinstance(model, _UNABLE):
                raise InputError(f"{path} cannot translate: it is a model of {saved.task._name}")
        return models, saved

    return checked


def _checked_dataset(data: str, load_dataset: Callable[..., Any]) -> Callable[..., Any]:
    """Return a ``load_dataset`` that refuses damaged files."""

    @wraps(load_dataset)
    def checked(split: str, *args: Any, **kwargs: Any) -> Any:
        require_complete(data, split)
        with reading(f"no {split} set in {data}"):
            return load_dataset(split, *args, **kwargs)

    return checked


def _checked_search(
    where: str, known: Vocabularies, step: Callable[..., Any]
) -> Callable[..., Any]:
    """Return an ``inference_step`` that refuses token ids beyond the dictionary."""

    @wraps(step)
    def checked(
        generator: Any, models: Sequence[nn.Module], sample: dict[str, Any], **kwargs: Any
    ) -> Any:
        require_known_tokens(sample, known, where)
        return step(generator, models, sample, **kwargs)

    return checked


def _reading(what: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with its errors converted by ``reading``."""

    @wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        with reading(what):
            return function(*args, **kwargs)

    return checked
