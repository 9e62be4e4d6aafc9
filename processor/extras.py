"""Optional libraries: report which extra installs a library that is missing.

Code that needs one imports it inside `needed`, or lets the ImportError propagate to the command line, which calls
`install_hint`: either way the user sees one line, never a traceback.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from freshet_serving.processor.errors import BadInput

DISTRIBUTION = "freshet-serving"
# Import name of a library -> the extra that installs it.
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
    "onnx": "onnx",
    "openvino": "openvino",
    "pyarrow": "train",
    "redis": "redis",
    "tensorflow": "train",
    "tensorrt": "tensorrt",
    "tf2onnx": "train",
}


def how_to_install(extra: str) -> str:
    """Return the shell command that installs an extra; in a checkout, one that works there."""
    checkout = Path(__file__).resolve().parents[1]
    if (checkout / "pyproject.toml").is_file():
        pip = ".venv/bin/pip" if Path(sys.prefix) == checkout / ".venv" else "pip"
        return f"{pip} install -e '.[{extra}]'"
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def install_hint(subject: str, error: ImportError, extra: str = "") -> str | None:
    """Return the message for a failed import of an extra's library, or None; `extra` replaces the library's own."""
    library = (error.name or "").partition(".")[0]
    if library not in EXTRA_OF:
        return None
    if not isinstance(error, ModuleNotFoundError):
        return f"{subject} needs {library}, which is installed but cannot be loaded: {str(error)[:200]}"
    return f"{subject} needs {library}, which is not installed: {how_to_install(extra or EXTRA_OF[library])}"


class MissingLibrary(BadInput):
    """Raised where the library of an extra is missing; the message says how to install it."""


@contextmanager
def needed(subject: str, extra: str = "") -> Iterator[None]:
    """Raise MissingLibrary with the install command if the block's import of a library fails; see install_hint()."""
    try:
        yield
    except ImportError as error:
        if (line := install_hint(subject, error, extra)) is None:
            raise
        raise MissingLibrary(line) from None
