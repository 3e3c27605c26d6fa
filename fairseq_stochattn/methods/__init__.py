"""The methods, one file or folder each, named as its flag. Importing this package registers all.

A new file with a ``@register_method`` line is a new method.
"""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
