"""``stochattn-methods``: list the methods, their archs and flags, and the path for --user-dir.

``fairseq-train --help`` cannot show these flags: it prints its help before it reads ``--arch``.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import fields
from pathlib import Path

from fairseq.criterions import CRITERION_REGISTRY
from fairseq.dataclass import FairseqDataclass
from fairseq.models import ARCH_MODEL_INV_REGISTRY, MODEL_DATACLASS_REGISTRY, MODEL_REGISTRY
from fairseq.optim import OPTIMIZER_REGISTRY

from ..core.method import METHODS
from ..criterions.attention_losses import AttentionLosses, criterion_config
from ..models.backbone import BACKBONES, PLAIN_ARCHS, StochasticModel
from ..models.method_flags import AttentionConfig, settings_flags
from ..optim import OPTIMIZERS
from ..tasks.kinds import WRAPPABLE
from .command import OneLineParser, command

DESCRIPTION = "List the attention methods with their archs and flags, and the path for --user-dir."
EXAMPLE = "stochattn-methods --archs"
PACKAGE = Path(__file__).resolve().parents[1]


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Print the whole list."""
    args = build_parser().parse_args(argv)
    print(f"--user-dir {PACKAGE}")
    for part in (
        list_methods(args.archs),
        list_model_flags(),
        list_other_models(args.archs),
        list_criterions(),
        list_optimizers(),
    ):
        print("\n".join(part))
    return 0


def build_parser() -> OneLineParser:
    parser = OneLineParser(prog="stochattn-methods", description=DESCRIPTION, example=EXAMPLE)
    parser.add_argument(
        "--archs", action="store_true", help="list every arch, including those of presets"
    )
    return parser


def list_methods(all_archs: bool) -> Iterator[str]:
    """Yield the attention methods with their archs and their own flags."""
    for name, method in METHODS.items():
        yield f"\n{name}: {_summary(method)}"
        archs = [arch for arch in PLAIN_ARCHS if _is_arch_of(arch, name)]
        shown = archs if all_archs else [a for a in archs if a.endswith(f"_{name}")]
        yield from (f"  --arch {arch}" for arch in shown)
        yield from _flags(settings_flags(method.Settings))


def list_model_flags() -> Iterator[str]:
    """Yield the flags that all archs of the methods share, then those of each backbone."""
    yield "\nflags of all these archs:"
    yield from _flags(AttentionConfig)
    for backbone in BACKBONES.values():
        if flags := _flags(backbone.extra_config):
            yield f"\nflags of {backbone.name} archs:"
            yield from flags


def list_other_models(all_archs: bool) -> Iterator[str]:
    """Yield the models of this package, except fairseq's models with an attention method."""
    for name, model in MODEL_REGISTRY.items():
        if _is_ours(model) and not issubclass(model, StochasticModel):
            yield f"\n{name}: {_summary(model)}"
            shown = ARCH_MODEL_INV_REGISTRY[name] if all_archs else [name]
            yield from (f"  --arch {arch}" for arch in shown)
            for config in getattr(model, "own_flags", None) or [MODEL_DATACLASS_REGISTRY[name]]:
                yield from _flags(config)


def list_criterions() -> Iterator[str]:
    """Yield the criterions of this package with their flags, except those of wrapped criterions."""
    inherited = {x.name for wrapped in WRAPPABLE for x in fields(criterion_config(wrapped))}
    for name, criterion in CRITERION_REGISTRY.items():
        if _is_ours(criterion):
            yield f"\n--criterion {name}: {_summary(criterion)}"
            hidden = inherited if issubclass(criterion, AttentionLosses) else ()
            yield from _flags(criterion_config(name), without=hidden)


def list_optimizers() -> Iterator[str]:
    """Yield the optimizers of this package with their flags."""
    for name, config in OPTIMIZERS.items():
        yield f"\n--optimizer {name}: {OPTIMIZER_REGISTRY[name].__doc__}"
        yield from _flags(config)


def _is_ours(registered: type) -> bool:
    return registered.__module__.startswith(PACKAGE.name)


def _summary(documented: type) -> str:
    """Return the first line of the docstring."""
    return (documented.__doc__ or "").strip().splitlines()[0]


def _flags(config: type[FairseqDataclass], without: Container[str] = ()) -> list[str]:
    return [
        f"  --{entry.name.replace('_', '-')}: {entry.metadata['help']} (default: {entry.default})"
        for entry in fields(config)
        if "help" in entry.metadata and entry.name not in without
    ]


def _is_arch_of(arch: str, method: str) -> bool:
    """Return whether ``arch`` is ``<backbone>_<method>``, optionally followed by a preset."""
    return any(f"{arch}_".startswith(f"{backbone}_{method}_") for backbone in BACKBONES)


if __name__ == "__main__":
    raise SystemExit(main())
