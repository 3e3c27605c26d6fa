"""Which sites, layers and heads a user selects: ``all``, ``first``, ``last``, ``encoder``, ``0,2``.

``name`` is the name of the selection in error messages: a flag, or a parameter of the Python API.
"""

from __future__ import annotations

from collections.abc import Sequence

from .errors import InputError

SITES = ("encoder", "decoder", "cross")
Selection = str | Sequence[str | int]  # "encoder,cross" or ["encoder", "cross"], "0,2" or [0, 2]


def as_text(spec: Selection, name: str) -> str:
    """A selection as text; the items of a list, tuple or range are joined by commas."""
    if isinstance(spec, str):
        return spec.strip()
    if not isinstance(spec, (list, tuple, range)):
        raise InputError(f"{name} must be a string or a list, not {type(spec).__name__}")
    for item in spec:
        if type(item) not in (str, int):
            raise InputError(
                f"{name} must be a list of strings or integers, not of {type(item).__name__}"
            )
    return ",".join(map(str, spec)).strip()


def parse_sites(spec: Selection, present: Sequence[str], name: str = "sites") -> list[str]:
    """``all`` or names such as ``encoder,cross`` → sites, each of which the model has."""
    spec = as_text(spec, name)
    if spec == "all":
        return list(present)
    chosen = [part.strip() for part in spec.split(",") if part.strip()]
    if not chosen:
        raise InputError(f"{name} is empty; give all or some of {', '.join(present)}")
    for site in chosen:
        if site not in SITES:
            known = ", ".join(SITES)
            raise InputError(f"{name}: unknown site '{site}' (known: all, {known})")
        if site not in present:
            has = ", ".join(present)
            raise InputError(f"{name}: this model has no {site} attention (it has: {has})")
    return list(dict.fromkeys(chosen))


def parse_layers(spec: Selection, num_layers: int, site: str, name: str = "layers") -> list[int]:
    """``all``, ``first``, ``last`` or indices such as ``0,2`` → layer indices of one site."""
    spec = as_text(spec, name)
    named = {"all": list(range(num_layers)), "first": [0], "last": [num_layers - 1]}
    if spec in named:
        return named[spec]
    layers = parse_indices(spec, name, "all, first, last, or indices such as 0,2")
    for layer in layers:
        if not 0 <= layer < num_layers:
            raise InputError(
                f"{name} {layer}: out of range, the {site} stack has layers 0 to {num_layers - 1}"
            )
    return layers


def parse_heads(spec: str, num_heads: int, name: str = "heads") -> list[int]:
    """``all`` or indices such as ``0,2`` → head indices of one attention module."""
    if spec.strip() == "all":
        return list(range(num_heads))
    heads = parse_indices(spec, name, "all, or indices such as 0,2")
    for head in heads:
        if not 0 <= head < num_heads:
            raise InputError(f"{name} {head}: out of range, the heads are 0 to {num_heads - 1}")
    return heads


def parse_indices(spec: str, name: str, expected: str) -> list[int]:
    """Comma-separated integers, sorted and without repetitions."""
    try:
        return sorted({int(part) for part in spec.split(",")})
    except ValueError:
        raise InputError(f"{name}: expected {expected}, not '{spec}'") from None
