"""Backends by name, each imported when it is first asked for."""

from __future__ import annotations

from processor.backends.base import Backend
from processor.errors import BadInput

NAMES = ("onnxruntime",)


def load_backend(name: str) -> Backend:
    """The backend of that name; raises BadInput for an unknown one, or when its library is missing."""
    if name == "onnxruntime":
        from processor.backends.onnxruntime import OnnxRuntime

        return OnnxRuntime()
    raise BadInput(f"backend: one of {', '.join(NAMES)} wanted, got {name[:64]!r}")
