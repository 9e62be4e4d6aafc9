"""Find backends by name, and the memory in which their executables take their inputs.

A built-in backend is a module of this folder, named as the backend, that sets BACKEND to its class, a
processor.backends.base.Backend. Only the backend that is asked for is imported, and its library when the class is
called. Plug-ins add such a class by an entry point of the group `freshet.backends`: TensorFlow is one of these, because
this layer must not import it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING

from freshet_serving.processor.backends.base import Backend, Matrix, aligned
from freshet_serving.processor.errors import BadInput, FreshetError

if TYPE_CHECKING:
    from freshet_serving.processor.backends.cuda import Cuda

GROUP = "freshet.backends"
GPU_TARGETS = ("cuda", "tensorrt")


@cache
def _module_names() -> list[str]:
    return [module.name for module in iter_modules([str(Path(__file__).parent)])]


def _builtin(name: str) -> type[Backend] | None:
    if name not in _module_names():
        return None
    backend: type[Backend] | None = getattr(import_module(f"{__package__}.{name}"), "BACKEND", None)
    return backend


@cache
def builtin() -> dict[str, type[Backend]]:
    """Return the backends of this folder, by name."""
    backends = {name: _builtin(name) for name in _module_names()}
    return {name: backend for name, backend in backends.items() if backend is not None}


def load_backend(name: str) -> Backend:
    """Return the backend of that name; raise BadInput if it is unknown or its library is missing."""
    if (built_in := _builtin(name)) is not None:
        return built_in()
    added = {point.name: point for point in entry_points(group=GROUP)}
    if name not in added:
        known = ", ".join(sorted({*builtin(), *added}))
        raise BadInput(f"backend: expected one of {known}, got {name[:64]!r}")
    try:
        backend: Backend = added[name].load()()
    except FreshetError:
        raise
    except Exception as error:
        raise BadInput(f"backend {name}: the plug-in is installed, but cannot be loaded") from error
    return backend


def allocator(targets: Iterable[str], load: Callable[[str], Cuda] | None = None) -> Callable[[tuple[int, ...]], Matrix]:
    """Return the allocator of buffers: page-locked if a target is a GPU and `load` opens CUDA, else plain."""
    if any(target.startswith(GPU_TARGETS) for target in targets):
        # Loaded for a GPU alone.
        from freshet_serving.processor.backends.cuda import Cuda

        try:
            return (load or Cuda.load)("buffers").page_locked
        except FreshetError:
            return aligned
    return aligned
