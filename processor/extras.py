"""Extras: libraries that Freshet serves without, and what to install where one of them is wanted after all.

The core serves packages on a CPU. Whatever else needs a library imports it inside `needed`, or lets the ImportError
pass to the command line, which asks `wanted`: either way the reader gets one line, never a traceback.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from freshet_serving.processor.errors import BadInput

DISTRIBUTION = "freshet-serving"
# The import name of a library -> the extra that brings it.
EXTRA_OF = {
    "cffi": "capi",
    "confluent_kafka": "kafka",
    "cryptography": "signed",
    "httpx": "client",
    "jax": "gpu",
    "jaxlib": "xla",
    "keras": "train",
    "mpi4py": "mpi",
    "obstore": "objects",
    "onnx": "train",
    "openvino": "openvino",
    "pyarrow": "train",
    "redis": "redis",
    "tensorflow": "train",
    "tensorrt": "gpu",
    "tf2onnx": "train",
}


def how_to_install(extra: str) -> str:
    """The line that installs an extra, to be pasted into a shell; in a checkout, one that works there."""
    checkout = Path(__file__).resolve().parents[1]
    if (checkout / "pyproject.toml").is_file():
        pip = ".venv/bin/pip" if Path(sys.prefix) == checkout / ".venv" else "pip"
        return f"{pip} install -e '.[{extra}]'"
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def wanted(subject: str, error: ImportError, extra: str = "") -> str | None:
    """What to say of an import that failed; None if it was no library of an extra.

    subject: what needs the library, such as "record". extra: which one to name, where a smaller one than the library's
    own does.
    """
    library = (error.name or "").partition(".")[0]
    if library not in EXTRA_OF:
        return None
    if not isinstance(error, ModuleNotFoundError):
        return f"{subject} needs {library}, which is installed and cannot be loaded: {str(error)[:200]}"
    return f"{subject} needs {library}, which is not installed: {how_to_install(extra or EXTRA_OF[library])}"


@contextmanager
def needed(subject: str, extra: str = "") -> Iterator[None]:
    """The block imports a library of an extra; raises BadInput that says what to install where it is missing."""
    try:
        yield
    except ImportError as error:
        if (line := wanted(subject, error, extra)) is None:
            raise
        raise BadInput(line) from None
