"""Packages whose names are imported on first use, so that a command imports what it needs and no more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from edgefl import garbage


def imports(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package: ``modules`` gives the module, in the package, of each name that it exports."""

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with garbage.pausing_collection():
            return getattr(import_module(f"{package}.{modules[name]}"), name)

    return get
