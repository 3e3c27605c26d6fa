"""Selections of sites and layers, as text or as a list."""

from __future__ import annotations

import pytest

from fairseq_stochattn.core.errors import InputError
from fairseq_stochattn.core.selection import parse_layers, parse_sites

PRESENT = ("encoder", "decoder", "cross")


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("encoder,cross", ["encoder", "cross"]),
        ("cross, encoder", (" cross", "encoder ")),
        ("all", ["all"]),
    ],
)
def test_sites_may_be_a_list(text: str, items: object) -> None:
    assert parse_sites(items, PRESENT) == parse_sites(text, PRESENT)


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("0,2", [0, 2]),
        ("0,2", ("2", "0")),
        ("0,1,2", range(3)),
        ("last", ["last"]),
        (" all ", ["all"]),
    ],
)
def test_layers_may_be_a_list(text: str, items: object) -> None:
    assert parse_layers(items, 4, "encoder") == parse_layers(text, 4, "encoder")


def test_the_order_of_sites_is_kept_and_that_of_layers_is_not() -> None:
    assert parse_sites(["cross", "encoder", "cross"], PRESENT) == ["cross", "encoder"]
    assert parse_layers([2, 0, 2], 4, "encoder") == [0, 2]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (None, "must be a string or a list, not NoneType"),
        (0, "must be a string or a list, not int"),
        ({"encoder"}, "must be a string or a list, not set"),
        ([None], "must be a list of strings or integers, not of NoneType"),
        ([True], "must be a list of strings or integers, not of bool"),
        ([["0"]], "must be a list of strings or integers, not of list"),
    ],
)
def test_another_type_is_an_error_of_one_line(spec: object, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_sites(spec, PRESENT)
    assert str(caught.value) == f"sites {message}"
    with pytest.raises(InputError) as caught:
        parse_layers(spec, 4, "encoder")
    assert str(caught.value) == f"layers {message}"


def test_an_empty_list_is_refused() -> None:
    with pytest.raises(InputError, match="sites is empty; give all or some of encoder"):
        parse_sites([], PRESENT)
    with pytest.raises(InputError, match="layers: expected all, first, last, or indices"):
        parse_layers([], 4, "encoder")
