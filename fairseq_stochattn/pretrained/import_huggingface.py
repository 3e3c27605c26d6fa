"""Imports a pretrained encoder: converts a Hugging Face folder to a fairseq checkpoint.

The import writes a folder with model.pt, dict.txt, the tokenizer and manifest.json. fairseq-train
reads model.pt with ``--finetune-from-model`` or ``--restore-file``; the scripts in data-prep read
the folder with ``--model-from`` or ``--tokenizer``.
"""

from __future__ import annotations

import json
import logging
import shutil
import warnings
from argparse import Namespace
from dataclasses import dataclass, fields
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

from ..core.errors import InputError
from ..core.files import atomic_folder
from ..core.tensor_file import save_tensors
from ..models.backbone import PLAIN_ARCHS
from ..models.embeddings import EmbeddingConfig, flags_plain_fairseq_lacks
from .export_fairseq import is_plain_fairseq, is_plugin_parameter
from .families import SEGMENTS, Family, family_of
from .huggingface_folder import CONFIG, read_json, read_tensors, refuse_existing
from .settings import POST_NORM, flags_from_config
from .tensors import to_fairseq
from .vocabulary import Vocabulary, read_vocabulary, tokenizer_files

logger = logging.getLogger(__name__)

MODEL, DICTIONARY, MANIFEST = "model.pt", "dict.txt", "manifest.json"
# The key in a checkpoint's extra_state for the names of the parameters that the Hugging Face folder
# did not contain.
NOT_IMPORTED = "fresh"


@dataclass(frozen=True)
class Encoder:
    """The content of a Hugging Face folder, in fairseq's terms."""

    family: Family
    flags: dict[str, Any]  # fairseq's model flags
    vocabulary: Vocabulary
    weights: dict[str, Tensor]  # by fairseq's names


def import_folder(source: Path, out: Path, arch: str, force: bool = False) -> list[str]:
    """Import the encoder in ``source`` to the folder ``out``.

    Returns the flags that fairseq-train needs for the imported model.
    """
    refuse_existing(out, force, (MODEL, DICTIONARY))
    if not source.is_dir():
        raise InputError(f"{source} is not a folder")
    encoder = read_encoder(source, arch)
    family, plain = encoder.family, is_plain_fairseq(arch)
    flags = ["--arch", arch, *_command_line_flags(encoder.flags, plain)]
    dictionary = encoder.vocabulary.dictionary()
    state = make_checkpoint(out, flags, family, dictionary, encoder.weights)
    if not plain:
        flags = ["--user-dir", str(Path(__file__).parents[1]), *flags]
    with atomic_folder(out) as folder:
        save_tensors(state, folder / MODEL)
        dictionary.save(str(folder / DICTIONARY))
        for file in [source / CONFIG, *tokenizer_files(source)]:
            shutil.copyfile(file, folder / file.name)
        manifest = {
            "recipe": {"subwords": "tokenizer", "lowercase": False},
            "model": {"flags": " ".join(flags), "two_separators": family.two_separators},
        }
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    return flags


def read_encoder(source: Path, arch: str) -> Encoder:
    """Read and check all files of the encoder in the folder ``source``."""
    where = str(source / CONFIG)
    config = read_json(source / CONFIG)
    family = family_of(config, where)
    check_arch(arch, family)
    config = family.defaults | config
    flags = flags_from_config(config, family, where)
    vocabulary = read_vocabulary(source, config["vocab_size"])
    weights = to_fairseq(read_tensors(source), config, family, vocabulary, str(source))
    flags["segment_embeddings"] = len(weights.get(SEGMENTS, ()))
    return Encoder(family, flags, vocabulary, weights)


def check_arch(arch: str, family: Family) -> None:
    """Raise unless the arch is an encoder of this family."""
    if arch not in ARCH_MODEL_REGISTRY:
        raise InputError(
            f"--arch: unknown arch '{arch}' (stochattn-methods --archs lists those of this plugin)"
        )
    if PLAIN_ARCHS.get(arch, arch) not in ARCH_MODEL_INV_REGISTRY[family.backbone]:
        raise InputError(
            f"--arch: {arch} cannot load this encoder, use {family.backbone}_<method>, "
            f"for instance {family.backbone}_deterministic"
        )


def make_checkpoint(
    out: Path,
    flags: list[str],
    family: Family,
    dictionary: Dictionary,
    weights: dict[str, Tensor],
) -> dict[str, Any]:
    """Create a checkpoint with these weights, as after 0 updates of the family's pre-training.

    Parameters of attention methods are not stored, so that a training run initialises them with
    its own flags. Parameters that only pre-training needs, such as ELECTRA's generator, are not
    stored either.
    """
    config = training_config(out, flags, family.pretraining_task)
    task = TASK_REGISTRY[family.pretraining_task](config.task, dictionary)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.common.seed)
        initial = task.build_model(config.model).state_dict()
    expected = {
        name: value
        for name, value in initial.items()
        if not is_plugin_parameter(name)
        and (name in weights or not name.startswith(family.pretraining_only))
    }
    not_imported = [x for x in expected if x not in weights and not x.endswith(".version")]
    if not_imported:
        logger.info(
            "the folder has no masked-language-modelling head: the head is initialised randomly"
        )
    for name, value in expected.items():
        if name in weights and weights[name].shape != value.shape:
            found, wanted = tuple(weights[name].shape), tuple(value.shape)
            raise InputError(
                f"the shape of {name} is {found}, but according to {CONFIG} it should be {wanted}"
            )
    return {
        "args": None,
        "cfg": OmegaConf.to_container(config, resolve=True, enum_to_str=True),
        "model": {**expected, **weights},
        "criterion": None,
        "optimizer_history": [
            {
                "criterion_name": CRITERION_REGISTRY[family.pretraining_task].__name__,
                "optimizer_name": "",
                "lr_scheduler_state": {},
                "num_updates": 0,
            }
        ],
        "task_state": {},
        "extra_state": {
            "train_iterator": {"epoch": 1, "iterations_in_epoch": 0, "version": 2},
            NOT_IMPORTED: not_imported,
        },
        "last_optimizer_state": None,
    }


def training_config(out: Path, flags: list[str], task: str) -> DictConfig:
    """The configuration of fairseq-train for these model flags and this pre-training task."""
    positions = flags[flags.index("--max-positions") + 1]
    given = ["--task", task, "--criterion", task, "--tokens-per-sample", positions]
    parser = options.get_training_parser()
    args = options.parse_args_and_arch(parser, [str(out.resolve()), *given, *flags])
    for flag, required in POST_NORM.items():
        found = getattr(args, flag, required)
        if found != required:
            raise InputError(
                f"--arch {args.arch} has {flag} {found}, but the pretrained model needs {required}"
            )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # hydra's warnings about how fairseq calls it
        return convert_namespace_to_omegaconf(args)


def _command_line_flags(values: dict[str, Any], plain: bool) -> list[str]:
    """Convert flags to command line arguments.

    If ``plain``, flags that plain fairseq does not know are left out; raises if the model needs one
    of them.
    """
    unsupported = flags_plain_fairseq_lacks(Namespace(**values))
    if plain and unsupported:
        raise InputError(
            f"plain fairseq has no {' '.join(unsupported)}; use --arch roberta_deterministic"
        )
    dropped = {entry.name for entry in fields(EmbeddingConfig)} if plain else set()
    flags = []
    for name, value in values.items():
        if name in dropped or value is False:
            continue
        flag = f"--{name.replace('_', '-')}"
        flags += [flag] if value is True else [flag, str(value)]
    return flags
