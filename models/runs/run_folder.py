"""Write the files of one run for people, beside the repository's own files.

A run matters more than its records: when a file cannot be written, the folder reports it once and ignores everything
after that. No folder is created before the first file, so a run that has nothing to do leaves nothing behind.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from freshet_serving.processor.package import atomic_file

T = TypeVar("T")


class RunFolder:
    """A folder named by the time of the run's start, UTC: `20260131-093000`, or `20260131-093000.2` if that is taken.

    `path` is None until it is created; `broken` says that something could not be written.
    """

    def __init__(self, parent: Path, unix_s: float, note: Callable[[str], None]) -> None:
        """Create nothing yet; `note` receives one message if something cannot be written."""
        self._parent, self._note = parent, note
        self._name = datetime.fromtimestamp(unix_s, UTC).strftime("%Y%m%d-%H%M%S")
        self.path: Path | None = None
        self.broken = False

    def append(self, name: str, text: str) -> None:
        self.attempt(lambda folder: _append(folder / name, text))

    def write(self, name: str, text: str) -> Path | None:
        """Write a whole file, replacing an existing one; return its path, or None if it cannot be written."""
        return self.attempt(lambda folder: _write(folder / name, text))

    def attempt(self, work: Callable[[Path], T]) -> T | None:
        """Return work(folder), or None if it raises OSError or something has failed before."""
        if self.broken:
            return None
        try:
            if self.path is None:
                self.path = self._made()
            return work(self.path)
        except OSError as error:
            self.broken = True
            self._note(f"cannot write the run's folder ({error.strerror or error}): training continues without it")
            return None

    def _made(self) -> Path:
        self._parent.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(1):
            path = self._parent / (self._name if number == 1 else f"{self._name}.{number}")
            try:
                path.mkdir()
            except FileExistsError:
                continue
            return path
        raise AssertionError("count() never ends")


def _append(path: Path, text: str) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.write(text)


def _write(path: Path, text: str) -> Path:
    with atomic_file(path) as file:
        file.write(text.encode())
    return path
