"""Backends by name.

A backend of ours is a module of this folder that is named as the backend and says BACKEND = its class, a
processor.backends.base.Backend: there is no other list. Its library is imported when the class is called.

Others add their own as an entry point of the group `freshet.backends`: the name, and such a class. TensorFlow is one of
these, because this floor must not import it.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from pkgutil import iter_modules

from freshet_serving.processor.backends.base import Backend
from freshet_serving.processor.errors import BadInput, FreshetError

GROUP = "freshet.backends"


@cache
def builtin() -> dict[str, type[Backend]]:
    """The backends of this folder, by name, in the alphabet's order."""
    names = [module.name for module in iter_modules([str(Path(__file__).parent)])]
    modules = {name: import_module(f"{__package__}.{name}") for name in names}
    return {name: module.BACKEND for name, module in modules.items() if hasattr(module, "BACKEND")}


def load_backend(name: str) -> Backend:
    """The backend of that name; raises BadInput for an unknown one, or when its library is missing."""
    if name in builtin():
        return builtin()[name]()
    added = {point.name: point for point in entry_points(group=GROUP)}
    if name not in added:
        known = ", ".join(sorted({*builtin(), *added}))
        raise BadInput(f"backend: one of {known} wanted, got {name[:64]!r}")
    try:
        backend: Backend = added[name].load()()
    except FreshetError:
        raise
    except Exception as error:
        raise BadInput(f"backend {name}: it was added to this installation, but cannot be loaded") from error
    return backend
