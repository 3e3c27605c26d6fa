"""The console commands: ``stochattn-import``, ``stochattn-export`` and ``stochattn-methods``."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Container, Sequence
from dataclasses import fields
from pathlib import Path

from fairseq.criterions import CRITERION_REGISTRY
from fairseq.dataclass import FairseqDataclass
from fairseq.models import (
    ARCH_MODEL_INV_REGISTRY,
    ARCH_MODEL_REGISTRY,
    MODEL_DATACLASS_REGISTRY,
    MODEL_REGISTRY,
)
from fairseq.optim import OPTIMIZER_REGISTRY

import fairseq_stochattn
from fairseq_stochattn.attention.method import METHODS
from fairseq_stochattn.attention.stack import AttentionConfig
from fairseq_stochattn.criterions.attention_losses import (
    WRAPPABLE,
    AttentionLosses,
    criterion_config,
)
from fairseq_stochattn.errors import UsageError
from fairseq_stochattn.export import export
from fairseq_stochattn.models.backbone import BACKBONES, PLAIN_ARCHS, StochasticModel
from fairseq_stochattn.optim import OPTIMIZERS
from fairseq_stochattn.pretrained.exporting import export_folder
from fairseq_stochattn.pretrained.importing import MODEL, import_folder


def export_main(argv: Sequence[str] | None = None) -> int:
    """Write a checkpoint of ours as a plain fairseq checkpoint, or as a Hugging Face folder."""
    parser = argparse.ArgumentParser(prog="stochattn-export", description=export_main.__doc__)
    parser.add_argument("checkpoint", type=Path, help="a checkpoint trained with one of our archs")
    parser.add_argument("output", type=Path, help="the plain checkpoint, or the folder, to write")
    parser.add_argument("--to", choices=("fairseq", "huggingface"), default="fairseq")
    parser.add_argument(
        "--like",
        type=Path,
        metavar="FOLDER",
        help="to huggingface: what the model was imported to, or a folder with its tokenizer and "
        "config.json; default: where the checkpoint is",
    )
    parser.add_argument("--force", action="store_true", help="overwrite an existing output")
    args = parser.parse_args(argv)
    if args.to == "huggingface":
        export_folder(args.checkpoint, args.output, args.like, args.force)
        print(f"{args.output}: for transformers' from_pretrained")
        return 0
    if args.like is not None:
        raise UsageError("--like goes with --to huggingface")
    arch = export(args.checkpoint, args.output, args.force)
    if ARCH_MODEL_REGISTRY[arch].__module__.startswith("fairseq."):
        print(f"{args.output}: a plain fairseq checkpoint, no --user-dir needed")
    else:
        print(f"{args.output}: {arch} with plain attention; fairseq lacks it, keep --user-dir")
    return 0


def import_main(argv: Sequence[str] | None = None) -> int:
    """Write a pretrained BERT, RoBERTa or ELECTRA in Hugging Face's layout as a checkpoint."""
    parser = argparse.ArgumentParser(prog="stochattn-import", description=import_main.__doc__)
    parser.add_argument("source", type=Path, help="folder with config.json, weights, tokenizer")
    parser.add_argument("output", type=Path, help="folder to write: model.pt, dict.txt, tokenizer")
    parser.add_argument("--arch", required=True, help="such as roberta_babn, electra_babn, roberta")
    parser.add_argument("--force", action="store_true", help="overwrite an earlier import")
    args = parser.parse_args(argv)
    logging.getLogger("hydra").setLevel(logging.WARNING)  # fairseq shows the log at every level
    flags = import_folder(args.source, args.output, args.arch, args.force)
    print(f"data:  data-prep/prepare_*.py … --model-from {args.output}")
    model = f"--finetune-from-model {args.output / MODEL}"
    print(f"train: fairseq-train DATA {' '.join(flags)} {model}")
    return 0


def methods_main(argv: Sequence[str] | None = None) -> int:
    """List the attention methods with their archs and flags, and the directory for --user-dir."""
    parser = argparse.ArgumentParser(prog="stochattn-methods", description=methods_main.__doc__)
    parser.add_argument("--archs", action="store_true", help="list every arch, presets included")
    args = parser.parse_args(argv)
    print(f"--user-dir {Path(fairseq_stochattn.__file__).parent}")
    for name, method in METHODS.items():
        summary = (method.__doc__ or "").strip().splitlines()[0]
        archs = [arch for arch in PLAIN_ARCHS if _is_arch_of(arch, name)]
        shown = archs if args.archs else [a for a in archs if PLAIN_ARCHS[a] in BACKBONES]
        print(f"\n{name}: {summary}")
        print("\n".join([*(f"  --arch {arch}" for arch in shown), *_flags(method.Config)]))
    # fairseq prints its own help before it knows the arch, so ours is nowhere else.
    print("\nflags of all these archs:")
    print("\n".join(_flags(AttentionConfig)))
    for backbone in BACKBONES.values():
        if own := _flags(backbone.extra_config):
            print("\n".join([f"\nflags of {backbone.name} archs:", *own]))
    for name, model in MODEL_REGISTRY.items():
        ours = model.__module__.startswith(fairseq_stochattn.__name__)
        if ours and not issubclass(model, StochasticModel):
            print(f"\n{name}: {(model.__doc__ or '').strip().splitlines()[0]}")
            shown = ARCH_MODEL_INV_REGISTRY[name] if args.archs else [name]
            print("\n".join(f"  --arch {arch}" for arch in shown))
            parts = getattr(model, "own_flags", None) or [MODEL_DATACLASS_REGISTRY[name]]
            print("\n".join(line for part in parts for line in _flags(part)))
    passed_on = {e.name for x in WRAPPABLE for e in fields(criterion_config(x))}
    for name, criterion in CRITERION_REGISTRY.items():
        if criterion.__module__.startswith(fairseq_stochattn.__name__):
            print(f"\n--criterion {name}: {(criterion.__doc__ or '').strip().splitlines()[0]}")
            hidden = passed_on if issubclass(criterion, AttentionLosses) else ()
            print("\n".join(_flags(criterion_config(name), without=hidden)))
    for name, config in OPTIMIZERS.items():
        print(f"\n--optimizer {name}: {OPTIMIZER_REGISTRY[name].__doc__}")
        print("\n".join(_flags(config)))
    return 0


def _flags(config: type[FairseqDataclass], without: Container[str] = ()) -> list[str]:
    own = [
        entry for entry in fields(config) if "help" in entry.metadata and entry.name not in without
    ]
    return [
        f"  --{entry.name.replace('_', '-')}: {entry.metadata['help']} (default: {entry.default})"
        for entry in own
    ]


def _is_arch_of(arch: str, method: str) -> bool:
    plain = PLAIN_ARCHS[arch]
    return any(
        plain.startswith(backbone) and arch == f"{backbone}_{method}{plain[len(backbone) :]}"
        for backbone in BACKBONES
    )
