"""The console commands: ``stochattn-export`` and ``stochattn-methods``."""

from __future__ import annotations

import argparse
from collections.abc import Container, Sequence
from dataclasses import fields
from pathlib import Path

from fairseq.criterions import CRITERION_DATACLASS_REGISTRY, CRITERION_REGISTRY
from fairseq.dataclass import FairseqDataclass
from fairseq.models import ARCH_MODEL_REGISTRY

import fairseq_stochattn
from fairseq_stochattn.attention.method import METHODS
from fairseq_stochattn.attention.stack import AttentionConfig
from fairseq_stochattn.criterions.attention_losses import WRAPPABLE, AttentionLosses
from fairseq_stochattn.export import export
from fairseq_stochattn.models.backbone import BACKBONES, PLAIN_ARCHS


def export_main(argv: Sequence[str] | None = None) -> int:
    """Write a checkpoint of ours as a plain fairseq checkpoint."""
    parser = argparse.ArgumentParser(prog="stochattn-export", description=export_main.__doc__)
    parser.add_argument("checkpoint", type=Path, help="a checkpoint trained with one of our archs")
    parser.add_argument("output", type=Path, help="the plain checkpoint to write")
    parser.add_argument("--force", action="store_true", help="overwrite an existing output")
    args = parser.parse_args(argv)
    arch = export(args.checkpoint, args.output, args.force)
    if ARCH_MODEL_REGISTRY[arch].__module__.startswith("fairseq."):
        print(f"{args.output}: a plain fairseq checkpoint, no --user-dir needed")
    else:
        print(f"{args.output}: {arch} with plain attention; fairseq lacks it, keep --user-dir")
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
    print("\nflags of every arch:")
    print("\n".join(_flags(AttentionConfig)))
    passed_on = {e.name for x in WRAPPABLE for e in fields(CRITERION_DATACLASS_REGISTRY[x])}
    for name, criterion in CRITERION_REGISTRY.items():
        if criterion.__module__.startswith(fairseq_stochattn.__name__):
            print(f"\n--criterion {name}: {(criterion.__doc__ or '').strip().splitlines()[0]}")
            hidden = passed_on if issubclass(criterion, AttentionLosses) else ()
            print("\n".join(_flags(CRITERION_DATACLASS_REGISTRY[name], without=hidden)))
    return 0


def _flags(config: type[FairseqDataclass], without: Container[str] = ()) -> list[str]:
    own = [
        entry
        for entry in fields(config)
        if not entry.name.startswith("_") and entry.name not in without
    ]
    return [
        f"  --{entry.name.replace('_', '-')}: {entry.metadata.get('help', '')} "
        f"(default: {entry.default})"
        for entry in own
    ]


def _is_arch_of(arch: str, method: str) -> bool:
    plain = PLAIN_ARCHS[arch]
    return any(
        plain.startswith(backbone) and arch == f"{backbone}_{method}{plain[len(backbone) :]}"
        for backbone in BACKBONES
    )
