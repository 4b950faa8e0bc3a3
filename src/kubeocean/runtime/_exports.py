"""Lazy exports: the public names of a package, imported from its modules at first use (PEP 562).

Importing one module of a package imports the package's `__init__` first. With lazy exports this
costs nothing: a module is imported only when one of its names is used.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module

__all__ = ["lazy_exports"]


def lazy_exports(
    package: str, modules: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return the `__getattr__` and the `__dir__` of a package that imports its exports lazily.

    - `package`: `__name__` of the package.
    - `modules`: the exported names by the module of the package that defines them. The package
      repeats these names in `__all__` and in imports under TYPE_CHECKING, for type checkers.
    """
    module_of = {name: module for module, names in modules.items() for name in names}

    def getattr_(name: str) -> object:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value: object = getattr(import_module(f"{package}.{module_of[name]}"), name)
        setattr(sys.modules[package], name, value)  # the next use finds the name in the module
        return value

    def dir_() -> list[str]:
        return sorted({*vars(sys.modules[package]), *module_of})

    return getattr_, dir_
