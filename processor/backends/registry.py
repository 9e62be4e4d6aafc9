"""Backends by name, each imported when it is first asked for.

Others add their own as an entry point of the group `freshet.backends`: the name, and a class that is a
processor.backends.base.Backend. TensorFlow is one of these, because this floor must not import it.
"""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points

from processor.backends.base import Backend
from processor.errors import BadInput, FreshetError

GROUP = "freshet.backends"
BUILTIN = {
    "onnxruntime": "OnnxRuntime",
    "openvino": "OpenVino",
    "xla": "Xla",
    "tensorrt": "TensorRt",
}


def load_backend(name: str) -> Backend:
    """The backend of that name; raises BadInput for an unknown one, or when its library is missing."""
    if name in BUILTIN:
        backend: Backend = getattr(importlib.import_module(f"processor.backends.{name}"), BUILTIN[name])()
        return backend
    added = {point.name: point for point in entry_points(group=GROUP)}
    if name not in added:
        known = ", ".join(sorted({*BUILTIN, *added}))
        raise BadInput(f"backend: one of {known} wanted, got {name[:64]!r}")
    try:
        backend = added[name].load()()
    except FreshetError:
        raise
    except Exception as error:
        raise BadInput(f"backend {name}: it was added to this installation, but cannot be loaded") from error
    return backend
