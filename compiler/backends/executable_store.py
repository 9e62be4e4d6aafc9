"""Keep what XLA has compiled for steps of training in the user's cache, so that the next run does not compile it again.

A run over a few thousand new rows would else spend most of its time on compiling what the run before it compiled.

Invariants
- An executable is used only for the program, the versions, the flags and the processor that it was compiled for: all of
  them are in the digest that names its file.
- It is machine code, so nothing is read that another user can have written (processor.kernels.file_trust).
- Files appear whole, by rename. No error of a file system, and no damaged file, reaches the caller: XLA compiles then.
- At most MOST_FILES are kept, those used last.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from freshet_serving.processor.backends.xla import Device
from freshet_serving.processor.kernels.code_store import processor_name, user_cache, write_whole
from freshet_serving.processor.kernels.file_trust import is_trusted

SUFFIX, MOST_FILES = ".executable", 128


def stored_or_compiled(stablehlo: bytes, on: Device, threads: int) -> Any:
    """Return the executable of a program for a CPU, from the store if it is there.

    Args:
        stablehlo: The program, a portable artifact.
        on: The device.
        threads: Its threads.
    """
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
                _remove_oldest(path.parent)
    return executable


def _folder() -> Path | None:
    cache = user_cache(os.environ)
    return None if cache is None else cache / "executables"


def _digest(stablehlo: bytes, threads: int) -> str:
    import jaxlib

    told = f"{jaxlib.__version__} {processor_name()} {threads} {os.environ.get('XLA_FLAGS', '')}"
    return hashlib.sha256(told.encode() + b"\0" + stablehlo).hexdigest()[:40]


def _remove_oldest(folder: Path) -> None:
    files = sorted(folder.glob(f"*{SUFFIX}"), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in files[MOST_FILES:]:
        file.unlink(missing_ok=True)
