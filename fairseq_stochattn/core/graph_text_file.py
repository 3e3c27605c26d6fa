"""Reads SPLIT.jsonl, which data-prep writes: graphs with texts about them, one per line.

A line is an object with these fields; all texts are tokens separated by spaces:

    entities    names of the entities
    types       one symbol per entity, such as <method>
    triples     [head, relation, tail]: number of an entity, name of a relation, number of an entity
    title       a title; absent in corpora without titles
    text        the text to write, with <entity_3> for a mention of entity 3
    references  the texts that generated ones are compared with, without entity symbols
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import InputError
from .json_input import parse_json

ENTITY = "<entity_{}>"


@dataclass(frozen=True)
class GraphText:
    """One graph, and a text about it."""

    entities: list[str]
    types: list[str]
    triples: list[tuple[int, str, int]]
    text: str
    references: list[str]
    title: str | None = None

    def as_text(self) -> str:
        """The graph as a line of text: title, then triples, then entities without a triple."""
        names = [f"{ENTITY.format(i)} {name}" for i, name in enumerate(self.entities)]
        joined = {i for head, _, tail in self.triples for i in (head, tail)}
        parts = [] if self.title is None else [self.title]
        parts += [f"{names[h]} {relation_symbol(r)} {names[t]}" for h, r, t in self.triples]
        parts += [name for i, name in enumerate(names) if i not in joined]
        return " ".join(parts)

    def fill(self, text: str) -> str:
        """A text in which entity symbols are replaced by names; unknown symbols are dropped."""
        names = {ENTITY.format(i): name for i, name in enumerate(self.entities)}
        words = (names.get(x, "" if is_entity(x) else x) for x in text.split())
        return " ".join(word for word in words if word)


def relation_symbol(name: str) -> str:
    """The symbol of a relation in dictionaries and in graphs as text."""
    return f"<relation:{'_'.join(name.split())}>"


def is_entity(symbol: str) -> bool:
    """Whether a symbol stands for an entity."""
    return symbol.startswith("<entity_") and symbol[8:-1].isdigit() and symbol.endswith(">")


def read_graph_texts(path: Path) -> Iterator[GraphText]:
    """Yield the examples of a file; raises ``InputError`` that names the first wrong line."""
    if not path.is_file():
        raise InputError(f"{path} does not exist")
    try:
        with path.open(encoding="utf-8", newline="\n") as file:
            for number, line in enumerate(file, start=1):
                try:
                    value = parse_json(line)
                    if "\\u" in line:  # an escape can encode half of a surrogate pair
                        json.dumps(value, ensure_ascii=False).encode()
                    yield _checked(value)
                except UnicodeEncodeError:
                    raise InputError(f"{path}, line {number} has half a character") from None
                except (InputError, ValueError) as error:
                    raise InputError(f"{path}, line {number} {error}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} cannot be read: it is not UTF-8") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None


def _checked(value: Any) -> GraphText:
    if not isinstance(value, dict):
        raise InputError("is not an object")
    lists = {name: value.get(name) for name in ("entities", "types", "references")}
    for name, items in lists.items():
        if not (isinstance(items, list) and all(isinstance(x, str) for x in items)):
            raise InputError(f"has no list of texts {name!r}")
    text, title, triples = value.get("text"), value.get("title"), value.get("triples")
    if not isinstance(text, str) or not isinstance(title, str | None):
        raise InputError("has a 'text' or 'title' that is not a text")
    entities = lists["entities"]
    if len(lists["types"]) != len(entities):
        raise InputError(f"has {len(entities)} entities but {len(lists['types'])} types")
    if not isinstance(triples, list):
        raise InputError("has no list 'triples'")
    for triple in triples:
        if not (isinstance(triple, list) and [type(x) for x in triple] == [int, str, int]):
            raise InputError("has a triple that is not [number, relation, number]")
        if not all(0 <= triple[i] < len(entities) for i in (0, 2)):
            raise InputError(f"has a triple of an entity that is missing: {triple[0]}, {triple[2]}")
    return GraphText(
        entities, lists["types"], [tuple(x) for x in triples], text, lists["references"], title
    )
