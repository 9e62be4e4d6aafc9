"""Load the names that a subpackage exports on first use, so that a process loads only the modules that it needs.

A subpackage lists them once, as imports that type checkers read and programs do not run:

    if TYPE_CHECKING:
        from freshet_serving.processor.package.delta import Delta, parse_delta
        from freshet_serving.processor.package import item_rows
    else:
        __getattr__ = lazy_names(__name__, __file__)

Modules that others may import are listed too, and load as any module does. Cost: a fifth of a millisecond each.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

IMPORT = re.compile(r"^    from ([\w.]+) import (\([^)]*\)|.+)$", re.M)


def lazy_names(package: str, file: str) -> Callable[[str], Any]:
    """Return the `__getattr__` of a subpackage (PEP 562), from the indented imports in its file.

    A module must not have the name of what it exports: once it is loaded, it would hide it.
    """
    listed = IMPORT.findall(Path(file).read_text(encoding="utf-8"))
    module_of = {name: module for module, names in listed if module != package for name in re.findall(r"\w+", names)}

    def load(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(module_of[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return load
