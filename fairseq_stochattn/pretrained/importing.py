"""``stochattn-import``: a pretrained encoder in Hugging Face's layout → a fairseq checkpoint.

The folder it writes is what ``--finetune-from-model``, ``--restore-file`` and, of data-prep,
``--model-from`` and ``--tokenizer`` read: model.pt, dict.txt, the tokenizer, a manifest.
"""

from __future__ import annotations

import json
import logging
import shutil
import warnings
from argparse import Namespace
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from fairseq import options
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_MODEL_INV_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.tasks import TASK_REGISTRY
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from fairseq_stochattn.errors import UsageError
from fairseq_stochattn.export import is_ours
from fairseq_stochattn.models.backbone import PLAIN_ARCHS
from fairseq_stochattn.models.embeddings import EmbeddingConfig, beyond_plain
from fairseq_stochattn.pretrained.families import SEGMENTS, Family, family_of
from fairseq_stochattn.pretrained.folders import (
    CONFIG,
    read_json,
    read_tensors,
    refuse_existing,
    whole_folder,
)
from fairseq_stochattn.pretrained.settings import POST_NORM, flags_of
from fairseq_stochattn.pretrained.tensors import to_fairseq
from fairseq_stochattn.pretrained.vocabulary import read_vocabulary, tokenizer_files

logger = logging.getLogger(__name__)

MODEL, DICTIONARY, MANIFEST = "model.pt", "dict.txt", "manifest.json"
FRESH = "fresh"  # key of a checkpoint's extra_state: the parameters that were not in the folder


def import_folder(source: Path, out: Path, arch: str, force: bool = False) -> list[str]:
    """Write the checkpoint and what belongs to it; returns fairseq-train's flags for its model."""
    refuse_existing(out, force, (MODEL, DICTIONARY))
    if not source.is_dir():
        raise UsageError(f"{source} is no folder")
    where = str(source / CONFIG)
    config = read_json(source / CONFIG)
    family = family_of(config, where)
    check_arch(arch, family)
    values = flags_of(config, family, where)
    vocabulary = read_vocabulary(source, config["vocab_size"])
    weights = to_fairseq(read_tensors(source), config, family, vocabulary, str(source))
    values["segment_embeddings"] = len(weights.get(SEGMENTS, ()))
    plain = ARCH_MODEL_REGISTRY[arch].__module__.startswith("fairseq.")
    flags = ["--arch", arch, *_as_flags(values, plain)]
    dictionary = vocabulary.dictionary()
    state = make_checkpoint(out, flags, family, dictionary, weights)
    if not plain:
        flags = ["--user-dir", str(Path(__file__).parents[1]), *flags]
    with whole_folder(out) as folder:
        torch.save(state, folder / MODEL)
        dictionary.save(str(folder / DICTIONARY))
        for file in [source / CONFIG, *tokenizer_files(source)]:
            shutil.copyfile(file, folder / file.name)
        manifest = {
            "recipe": {"subwords": "tokenizer", "lowercase": False},
            "model": {"flags": " ".join(flags), "two_separators": family.two_separators},
        }
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    return flags


def check_arch(arch: str, family: Family) -> None:
    """Only archs that are this family's encoder can take its weights."""
    if arch not in ARCH_MODEL_REGISTRY:
        raise UsageError(
            f"--arch: no arch '{arch}' (stochattn-methods --archs lists those of this plugin)"
        )
    if PLAIN_ARCHS.get(arch, arch) not in ARCH_MODEL_INV_REGISTRY[family.backbone]:
        raise UsageError(
            f"--arch: {arch} is no encoder of this kind, use {family.backbone}_<method>, "
            f"for instance {family.backbone}_deterministic"
        )


def make_checkpoint(
    out: Path,
    flags: list[str],
    family: Family,
    dictionary: Dictionary,
    weights: dict[str, Tensor],
) -> dict[str, Any]:
    """A checkpoint of the family's pre-training, as if no update had been made yet.

    A method's own parameters are left out: they start fresh, with the flags of the run. So is what
    the model itself makes anew, such as ELECTRA's generator.
    """
    config = training_config(out, flags, family.task)
    task = TASK_REGISTRY[family.task](config.task, dictionary)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.common.seed)
        built = task.build_model(config.model).state_dict()
    expected = {
        name: value
        for name, value in built.items()
        if not is_ours(name) and (name in weights or not name.startswith(family.pretraining))
    }
    fresh = [x for x in expected if x not in weights and not x.endswith(".version")]
    if fresh:
        logger.info("no head for masked language modelling: it starts fresh")
    for name, value in expected.items():
        if name in weights and weights[name].shape != value.shape:
            found, wanted = tuple(weights[name].shape), tuple(value.shape)
            raise UsageError(f"{CONFIG} asks for {name} of shape {wanted}, there is {found}")
    return {
        "args": None,
        "cfg": OmegaConf.to_container(config, resolve=True, enum_to_str=True),
        "model": {**expected, **weights},
        "criterion": None,
        "optimizer_history": [
            {
                "criterion_name": CRITERION_REGISTRY[family.task].__name__,
                "optimizer_name": "",
                "lr_scheduler_state": {},
                "num_updates": 0,
            }
        ],
        "task_state": {},
        "extra_state": {
            "train_iterator": {"epoch": 1, "iterations_in_epoch": 0, "version": 2},
            FRESH: fresh,
        },
        "last_optimizer_state": None,
    }


def training_config(out: Path, flags: list[str], task: str) -> DictConfig:
    """What fairseq-train would make of these flags for this task of pre-training."""
    positions = flags[flags.index("--max-positions") + 1]
    given = ["--task", task, "--criterion", task, "--tokens-per-sample", positions]
    parser = options.get_training_parser()
    args = options.parse_args_and_arch(parser, [str(out.resolve()), *given, *flags])
    for flag, value in POST_NORM.items():
        if getattr(args, flag, value) != value:
            raise UsageError(f"--arch {args.arch} differs from the pretrained model in {flag}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of hydra about how fairseq uses it
        return convert_namespace_to_omegaconf(args)


def _as_flags(values: dict[str, Any], plain: bool) -> list[str]:
    """For the command line; plain fairseq must do without those that it lacks."""
    needed = beyond_plain(Namespace(**values))
    if plain and needed:
        raise UsageError(f"plain fairseq has no {' '.join(needed)}; use roberta_deterministic")
    lacking = {entry.name for entry in fields(EmbeddingConfig)} if plain else ()
    flags = []
    for name in [name for name in values if name not in lacking]:
        flag = f"--{name.replace('_', '-')}"
        if values[name] is True:
            flags.append(flag)
        elif values[name] is not False:
            flags += [flag, str(values[name])]
    return flags
