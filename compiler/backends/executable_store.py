"""Keep what XLA has compiled for steps of training in the user's cache, so that the next run need not compile it again.

Otherwise a run over a few thousand new rows would spend most of its time on compiling and tracing a known program.

Invariants
- An executable is used only for the program, versions, flags and processor that it was compiled for: the digest that
  names its file covers all of them.
- A program is used only for the code of this release, the versions and the settings that it was traced from.
- It is machine code, so nothing is read that another user can have written (processor.kernels.file_trust).
- Files appear whole, by rename. No error of a file system, and no damaged file, reaches the caller: XLA compiles then.
- At most MOST_FILES are kept, those used last.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from freshet_serving.compiler.frameworks import tf
from freshet_serving.processor.backends.xla import Device
from freshet_serving.processor.kernels.code_store import processor_name, user_cache, write_whole
from freshet_serving.processor.kernels.file_trust import is_trusted

SUFFIX, PROGRAM, MOST_FILES = ".executable", ".program", 128
TRACED_BY = ("models", "compiler", "processor/package")
"""Folders with the code that programs are traced from."""


def stored_or_compiled(stablehlo: bytes, on: Device, threads: int) -> Any:
    """Return the executable of a portable StableHLO artifact for a CPU, from the store if it is there."""
    folder = _folder()
    path = None if folder is None else folder / f"{_digest(stablehlo, threads)}{SUFFIX}"
    if path is not None and path.is_file() and is_trusted(path):
        # What deserialising damaged bytes raises is jaxlib's choice.
        with suppress(Exception):
            executable = on.client.deserialize_executable(path.read_bytes(), on.places, None)
            os.utime(path)
            return executable
    executable = on.compile(stablehlo)
    if path is not None:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            if is_trusted(path.parent):
                write_whole(path, on.client.serialize_executable(executable))
                _remove_oldest(path.parent, SUFFIX)
    return executable


class StoredProgram:
    """The place of one program in the store. A program without settings ("") is not stored."""

    def __init__(self, settings: str) -> None:
        folder = _folder() if settings else None
        self._path: Path | None = None
        if folder is not None:
            digest = hashlib.sha256(_code() + settings.encode()).hexdigest()[:40]
            self._path = folder / f"{digest}{PROGRAM}"

    def read(self) -> bytes | None:
        with suppress(OSError):
            if self._path is not None and self._path.is_file() and is_trusted(self._path):
                data = self._path.read_bytes()
                os.utime(self._path)
                if hashlib.sha256(data[32:]).digest() == data[:32]:
                    return data[32:]
        return None

    def write(self, data: bytes) -> None:
        with suppress(OSError):
            if self._path is not None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                if is_trusted(self._path.parent):
                    write_whole(self._path, hashlib.sha256(data).digest() + data)
                    _remove_oldest(self._path.parent, PROGRAM)


def _folder() -> Path | None:
    cache = user_cache(os.environ)
    return None if cache is None else cache / "executables"


def _digest(stablehlo: bytes, threads: int) -> str:
    import jaxlib

    versions = f"{jaxlib.__version__} {processor_name()} {threads} {os.environ.get('XLA_FLAGS', '')}"
    return hashlib.sha256(versions.encode() + b"\0" + stablehlo).hexdigest()[:40]


@lru_cache(maxsize=1)
def _code() -> bytes:
    import jaxlib

    digest = hashlib.sha256(" ".join((tf.__version__, version("keras"), jaxlib.__version__)).encode())
    root = Path(__file__).resolve().parents[2]
    for file in sorted(file for folder in TRACED_BY for file in (root / folder).rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.digest()


def _remove_oldest(folder: Path, suffix: str) -> None:
    files = sorted(folder.glob(f"*{suffix}"), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in files[MOST_FILES:]:
        file.unlink(missing_ok=True)
