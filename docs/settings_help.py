"""An extension of griffe, for the API reference: describes the fields of settings dataclasses."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import griffe


class SettingsHelp(griffe.Extension):
    """Documents each field with the help text in ``setting(default, help)``."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        value = attr.value
        if not (isinstance(value, griffe.ExprCall) and str(value.function) == "setting"):
            return
        settings = getattr(import_module(attr.module.path), attr.parent.name)
        help_text = settings.__dataclass_fields__[attr.name].metadata["help"]
        attr.docstring = griffe.Docstring(help_text, parent=attr)
        attr.value = value.arguments[0]
