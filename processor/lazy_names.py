"""Load the names that a subpackage exports on first use, so that a process loads only the modules that it needs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazy_names(package: str, names: dict[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a subpackage (PEP 562), from what each module exports, separated by spaces.

    A module must not have the name of what it exports: once it is loaded, it would hide it.
    """
    module_of = {name: module for module, exported in names.items() for name in exported.split()}

    def load(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{module_of[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return load
