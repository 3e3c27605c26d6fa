"""Measures quality, calibration and uncertainty of one checkpoint or ensemble on a data set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from fairseq import utils
from tqdm import tqdm

from ..core.errors import InputError
from ..tasks.kinds import is_task, question_of
from ..tasks.questions import TranslationTokens
from ..uncertainty.sampling import is_random
from . import meters
from .answering import answer, least_certain
from .evaluate_report import CheckpointReport, calibration, novelty, per_example, set_metrics
from .loading import (
    DataSelection,
    Loaded,
    chosen_device,
    labels_fit,
    load_batches,
    load_models,
    other_data,
    require_settings,
)
from .translations import Search, Translation, bleu, bleu_statistics, chrf, translate
from .varying_words import varying_words

# Settings of the data, by name of the flag: models with different ones cannot share batches.
_LANGUAGES = ("source_lang", "target_lang")
_INPUTS = (
    *("init_token", "separator_token", "num_classes", "classification_head_name"),
    *("left_pad_source", "left_pad_target", "tokens_per_sample", "sample_break_mode"),
)


@dataclass(frozen=True)
class EvaluateSettings:
    """What to measure, and on which data."""

    data: str
    subset: str
    samples: int  # samples of the attention; 0: the mean attention
    search: Callable[[Any], Search]  # task → how to translate and to join tokens to text
    dropout: bool = False  # sample dropout too
    seed: int = 1
    overrides: dict[str, Any] = field(default_factory=dict)  # settings of checkpoints to change
    limit: int | None = None  # None: all examples
    max_tokens: int = 4000  # per forward pass, counting all copies of a batch
    batch_size: int | None = None
    out_of_domain: tuple[str, str] | None = None  # data and subset
    translate: bool = True  # whether to compute BLEU and chrF of translation models
    sacrebleu: dict[str, Any] = field(default_factory=dict)  # options of sacrebleu's BLEU
    keep_examples: bool = False  # whether the report has numbers and texts of every example
    image_noise: float | None = None  # None: as in the training
    cpu: bool = False
    fp16: bool = False


class Result(NamedTuple):
    """What was measured for one checkpoint or ensemble."""

    report: CheckpointReport
    config: Any  # fairseq's configuration of the (first) checkpoint
    translations: list[Translation]  # empty unless it is a translation model


def evaluate_model(
    paths: Sequence[Path], name: str, settings: EvaluateSettings, first: Any = None
) -> Result:
    """Measure one checkpoint, or the ensemble of several.

    ``first`` is the configuration of the checkpoint that this one is compared with. Raises
    ``InputError`` if that one, or a member of the ensemble, has another task.
    """
    (models, task, config), archs = _load(paths, settings, first)
    question, search = question_of(task), settings.search(task)
    is_translation = type(question) is TranslationTokens
    dtype = torch.float16 if settings.fp16 else torch.float32
    for model in models:
        model.to(chosen_device(settings.cpu), dtype)
    random = any(is_random(model, settings.dropout) for model in models)
    samples = settings.samples if random else 0
    predict = partial(
        answer, question, models, samples=samples, max_tokens=settings.max_tokens,
        dropout=settings.dropout,
    )  # fmt: skip
    select = partial(
        DataSelection, limit=settings.limit, batch_size=settings.batch_size, skip_long=False
    )
    # All copies of a batch, one per sample, fit into one forward pass.
    tokens = settings.max_tokens // max(1, samples)
    data, subset = settings.data, settings.subset
    batches = load_batches(task, models, select(data, subset, max_tokens=tokens))
    utils.set_torch_seed(settings.seed)
    predictions = predict(tqdm(batches, f"{name}: {subset}", disable=None))
    out_of_domain = None
    if settings.out_of_domain is not None:
        place, other = settings.out_of_domain
        with other_data(task, data, place):
            others = load_batches(task, models, select(place, other, max_tokens=tokens))
        labelled = labels_fit(task, data, place, other)
        outside = predict(tqdm(others, f"{name}: {other}", disable=None), labelled=labelled)
        out_of_domain = novelty(question, place, other, predictions, outside)
    measured = calibration(question, predictions)
    indices = np.concatenate(list(batches.parts))
    measured["metrics"] |= set_metrics(question, batches.dataset, indices, predictions)
    translations: list[Translation] = []
    if is_translation and settings.translate:
        large = load_batches(task, models, select(data, subset, max_tokens=settings.max_tokens))
        translations = translate(models, task, tqdm(large, f"{name}: search", disable=None), search)
        scores = _scores(translations, settings.sacrebleu)
        measured["metrics"] = {**scores.pop("metrics"), **measured["metrics"]}
        measured |= scores
    words_at = None
    # Not in a graph, and not if the queries are regions of an image.
    has_words = task.source_dictionary is not None and question.words_are_attended
    if samples and has_words and len(models) == 1 and is_random(models[0]):
        words_at = varying_words(task, models[0], search.remove_bpe, samples)
    if settings.keep_examples:
        measured["per_example"] = per_example(predictions, translations)
    report = CheckpointReport(
        path=":".join(map(str, paths)),
        name=name,
        arch=", ".join(dict.fromkeys(archs)),
        members=len(paths),
        samples=samples,
        examples=sum(map(len, batches.parts)),
        predictions=len(predictions.example),
        least_certain=least_certain(question, predictions, batches.dataset, search.text, words_at),
        out_of_domain=out_of_domain,
        # Last, since it replaces the attention of plain models by one that shows its heads.
        meters={}
        if len(models) > 1
        else meters.measure(models[0], question, batches, settings.max_tokens, settings.seed),
        **measured,
    )
    return Result(report, config, translations)


def _scores(translations: Sequence[Translation], options: dict[str, Any]) -> dict[str, Any]:
    """The entries of a report about translations; ``options`` are those of sacrebleu's BLEU."""
    by_words = bleu(translations, **options)
    by_characters = chrf(translations, lowercase=options.get("lowercase", False))
    return {
        "metrics": {"bleu": by_words.score, "chrf": by_characters.score},
        "signature": by_words.signature,
        "chrf_signature": by_characters.signature,
        "bleu_statistics": bleu_statistics(translations, **options),
    }


def _load(
    paths: Sequence[Path], settings: EvaluateSettings, first: Any
) -> tuple[Loaded, list[str]]:
    """Load the checkpoints with the task of the first of them; also return their archs."""
    # The masks of a masked language model follow the seed, so all checkpoints get the same masks.
    overrides = {**settings.overrides, "seed": settings.seed}
    if settings.image_noise is not None:
        overrides["image_noise"] = settings.image_noise
    members = [load_models([str(path)], settings.data, overrides) for path in paths]
    for member, path in zip(members, paths, strict=True):
        require_settings(settings.overrides, member.config)
        if settings.image_noise is not None and not is_task(member.task, "vqa"):
            raise InputError(f"--image-noise: {path} is a model of another task than vqa")
    if first is not None:
        _require_same(first, "the first checkpoint", members[0].config, paths[0], _LANGUAGES)
    for member, path in zip(members[1:], paths[1:], strict=True):
        flags = (*_LANGUAGES, *_INPUTS)
        _require_same(members[0].config, str(paths[0]), member.config, path, flags)
    models = [model for member in members for model in member.models]
    archs = [
        getattr(member.config.model, "arch", None) or member.config.model._name
        for member in members
    ]
    return Loaded(models, members[0].task, members[0].config), archs


def _require_same(one: Any, name: str, other: Any, path: Path, flags: Sequence[str]) -> None:
    """Raise ``InputError`` if the configurations of two models differ in their task or its flags.

    Their dictionaries are those of the data; a model with another size of dictionary is not loaded.
    """
    tasks = [config.task for config in (one, other)]
    if tasks[0]._name != tasks[1]._name:
        raise InputError(
            f"{path} is a model of task {tasks[1]._name}, {name} one of {tasks[0]._name}; "
            "compare checkpoints of one task"
        )
    for flag in flags:
        values = [getattr(task, flag, None) for task in tasks]
        if values[0] != values[1]:
            raise InputError(
                f"{path} has --{flag.replace('_', '-')} {values[1]}, {name} has {values[0]}; "
                "they cannot be evaluated together"
            )
