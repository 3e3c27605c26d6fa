"""Between QKᵀ and softmax: one method, one file. Every module here is imported, so a new file with
a ``@register_method`` line is a new method."""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
