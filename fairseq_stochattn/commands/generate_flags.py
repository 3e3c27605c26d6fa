"""Parses and checks the flags of fairseq-generate, which fairseq itself mostly does not check."""

from __future__ import annotations

import argparse
import math
import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq_cli import generate as fairseq_generate
from omegaconf import DictConfig

from ..analysis.data_files import require_split_name
from ..analysis.fairseq_errors import reading
from ..analysis.loading import no_warnings, parse_overrides
from ..core.errors import InputError, require_not_negative, require_positive
from .command import MAX_SEED, OneLineParser, load_user_dir, replaced, require_subword_kind

_FINITE = (
    *("lenpen", "unkpen", "temperature", "max_len_a", "lm_weight", "sampling_topp"),
    *("diverse_beam_strength", "diversity_rate"),
)
_SIZES = ("max_tokens", "batch_size")  # flags in the group ``dataset`` of fairseq's configuration


def parse_flags(prog: str, flags: Sequence[str]) -> DictConfig:
    """Parse the flags as fairseq-generate does. Raises ``InputError`` for bad values."""
    user_dir = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    user_dir.add_argument("--user-dir")
    load_user_dir(user_dir.parse_known_args(flags)[0].user_dir)
    parsed: list[Namespace] = []
    with (
        replaced(sys, "argv", [prog, *flags]),
        replaced(argparse.ArgumentParser, "error", OneLineParser.error),
        replaced(fairseq_generate, "main", parsed.append),
        reading("the flags"),
    ):
        fairseq_generate.cli_main()
    (args,) = parsed
    with reading("the flags"), no_warnings():
        config = convert_namespace_to_omegaconf(args)
    check_flags(config)
    return config


def check_flags(config: DictConfig) -> None:
    """Raise ``InputError`` for a value that fairseq would fail on later, or silently ignore."""
    common, data, search = config.common, config.dataset, config.generation
    if config.common_eval.path is None:
        raise InputError("--path is missing: name the checkpoint")
    require_split_name(data.gen_subset)
    if not 0 <= common.seed <= MAX_SEED:
        raise InputError(f"--seed {common.seed} is not between 0 and {MAX_SEED}")
    require_positive(data, *(name for name in _SIZES if data[name] is not None))
    require_positive(data, "required_batch_size_multiple")
    require_not_negative(data, "num_workers", "num_shards", "shard_id")
    require_not_negative(search, "prefix_size", "no_repeat_ngram_size")
    require_positive(search, "beam", "nbest", "temperature")
    for name in _FINITE:
        if not math.isfinite(search.get(name, 0.0)):
            raise InputError(f"--{name.replace('_', '-')} must be a finite number")
    if search.nbest > search.beam:
        raise InputError(f"--nbest {search.nbest} is more than --beam {search.beam}")
    _check_sampling(search)
    if search.replace_unk is not None and data.dataset_impl != "raw":
        raise InputError("--replace-unk needs raw text: --dataset-impl raw")
    if search.constraints:
        raise InputError(
            "--constraints: prepared data contains no constraints; use fairseq-interactive, which "
            "reads them with its input"
        )
    parse_overrides(config.common_eval.model_overrides)
    require_subword_kind(config.common_eval.post_process)


def _check_sampling(search: Any) -> None:
    """Raise ``InputError`` for sampling flags with bad values or in a bad combination."""
    if not search.sampling:
        return
    if search.nbest != search.beam:
        raise InputError("--sampling needs --nbest equal to --beam")
    if search.sampling_topk == 0 or search.sampling_topk < -1:
        raise InputError("--sampling-topk must be positive, or -1 for all tokens")
    if not (search.sampling_topp == -1 or 0 < search.sampling_topp <= 1):
        raise InputError("--sampling-topp must be above 0 and at most 1, or -1 for all tokens")
