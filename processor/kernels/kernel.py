"""Compile functions with Numba: `@kernel(signature)` in place of `@nb.njit(signature, cache=True, nogil=True)`.

Machine code is looked for by what it was compiled from and for (kernels.code_store): first in the bundle of the
package, made when a wheel or an image is built; then in files of its own in a cache folder; else Numba compiles it, and
it is written to the first such folder that can be written to. A process that can write nowhere compiles at every start.

Why not Numba's own cache: it raises where no folder can be written to, even where a filled one can be read; it knows
code by the name of the processor, so that what an image was built with is compiled again on the next machine; it reads
pickles whoever wrote them; and it notices a change of a kernel's file, but not of a kernel that it inlines.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
import time
from collections.abc import Callable
from functools import cache, partial
from types import CodeType, ModuleType
from typing import Any

import numba as nb
import numpy as np
from numba.core.caching import _Cache
from numba.core.dispatcher import Dispatcher

from freshet_serving.processor.kernels.code_store import CodeStore

log = logging.getLogger("freshet.kernels")

PROGRESS_S = 10.0
"""Seconds between two lines of the log while kernels compile."""

PACKAGE = __name__.partition(".")[0]

inlined = partial(nb.njit, nogil=True, inline="always")
"""Decorate a function that kernels inline: it has no machine code of its own."""

store = CodeStore.here()


def kernel(signature: Any, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that compiles a function for one signature, to run without the GIL.

    Args:
        signature: Types of Numba, as nb.void(nb.int64).
        options: Passed to numba.njit, as error_model="numpy".

    Example:
        >>> @kernel(nb.int64(nb.int64))
        ... def twice(number):
        ...     return 2 * number
        >>> twice(21)
        42
    """

    def compiled(function: Callable[..., Any]) -> Any:
        dispatcher = nb.njit(nogil=True, **options)(function)
        dispatcher._cache = KernelCode(function, signature, options)
        dispatcher.compile(signature)
        dispatcher.disable_compile()
        return dispatcher

    return compiled


class KernelCode(_Cache):
    """The stored machine code of one kernel, as Numba's dispatcher asks for it."""

    cache_path = None

    def __init__(self, function: Callable[..., Any], signature: Any, options: dict[str, Any]) -> None:
        self.name = f"{function.__module__}.{function.__qualname__}{signature}"
        # A set has another order in each process.
        self._options = sorted(
            (key, sorted(value) if isinstance(value, set) else value) for key, value in options.items()
        )
        self._function = function

    @property
    def stamp(self) -> str:
        """SHA-256 of all that the code is compiled from, as hexadecimal digits."""
        return hashlib.sha256(f"{self._options} {_stamp(self._function)}".encode()).hexdigest()

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the kernel from the store, or None to have it compiled."""
        target_context.refresh()
        result = store.read(self.name, self.stamp, target_context)
        if result is None:
            _progress.note(self._function.__name__)
        return result

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep a kernel that has just been compiled."""
        store.write(self.name, self.stamp, data)

    def enable(self) -> None:
        """Do nothing."""

    def disable(self) -> None:
        """Do nothing."""

    def flush(self) -> None:
        """Do nothing: code of another stamp is never read."""


class _Progress:
    """Says that kernels compile, once and then every few seconds."""

    def __init__(self) -> None:
        self._count, self._last_s = 0, 0.0

    def note(self, name: str) -> None:
        if store.recorded is not None:
            return
        now_s = time.monotonic()
        if not self._count:
            log.warning("compiling kernels for this processor, which takes about a minute; %s", store.kept)
            self._last_s = now_s
        elif now_s >= self._last_s + PROGRESS_S:
            log.warning("compiling kernels: %d done, now %s", self._count, name)
            self._last_s = now_s
        self._count += 1


_progress = _Progress()


@cache
def _source_digest(file: str) -> str:
    with open(file, "rb") as source:
        return hashlib.sha256(source.read()).hexdigest()


@cache
def _stamp(function: Any) -> str:
    """Return a text that changes with all that a function's machine code is compiled from.

    That is its source file, the constants that it uses, and the same of every function of ours that it calls.
    """
    parts = [_source_digest(inspect.getfile(function))]
    closed = dict(zip(function.__code__.co_freevars, (cell.cell_contents for cell in function.__closure__ or ())))
    for name in sorted(_names(function.__code__)):
        value = closed.get(name, function.__globals__.get(name))
        if isinstance(value, Dispatcher):
            parts.append(f"{name}={_stamp(value.py_func)}")
        elif isinstance(value, np.ndarray):
            parts.append(f"{name}={value.dtype}{value.shape}{hashlib.sha256(value.tobytes()).hexdigest()}")
        elif isinstance(value, bool | int | float | str | bytes | tuple | np.generic):
            parts.append(f"{name}={value!r}")
        elif not isinstance(value, ModuleType | type) and getattr(value, "__module__", "").startswith(PACKAGE):
            # An intrinsic: what it emits is in its file.
            parts.append(f"{name}={_source_digest(inspect.getfile(getattr(value, '_defn', value)))}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _names(code: CodeType) -> set[str]:
    names = {*code.co_names, *code.co_freevars}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names(constant)
    return names
