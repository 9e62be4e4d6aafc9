"""Delta files that somebody dropped into a version's folder, deltas/<step>.safetensors, without a record.

The file that continues the log is looked up by its name. Files that only a listing finds (after a gap, a compacted
delta) may wait: listings have a time budget, so watching a folder costs the same however many files it contains.

A file that was refused for good is not read again until it changes; one that continues nothing yet, not until there are
other records.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from freshet_serving.processor.errors import NotReady, shortage
from freshet_serving.processor.package import SUFFIX
from freshet_serving.processor.repository.storage import FolderWatch, Identity, identity_of
from freshet_serving.processor.repository.version import DELTAS

STEP = re.compile(r"[1-9][0-9]{0,17}")
SHARE, MOST_S = 0.001, 0.05
"""Time budget of listings: share of the time, and the largest burst in seconds."""
FOR_GOOD = -1
"""A number of records that there never is."""


@dataclass(frozen=True, slots=True)
class UnrecordedDelta:
    """A delta file without a record, known by its name alone."""

    step: int
    path: Path


def unrecorded_deltas(folder: Path) -> list[UnrecordedDelta]:
    """Return every delta file named by a step, ascending, also recorded ones; raise NotReady if it cannot be listed."""
    deltas = []
    try:
        with os.scandir(folder / DELTAS) as entries:
            for entry in entries:
                stem = entry.name.removesuffix(SUFFIX)
                if entry.name.endswith(SUFFIX) and STEP.fullmatch(stem) and entry.is_file(follow_symlinks=False):
                    deltas.append(UnrecordedDelta(int(stem), Path(entry.path)))
    except OSError as error:
        if (short := shortage(error)) is not None:
            raise short from None
        return []
    return sorted(deltas, key=lambda bare: bare.step)


class DroppedDeltas:
    """The dropped files of one version. Its length is the number of those that wait."""

    def __init__(self, folder: Path, now_s: Callable[[], float]) -> None:
        self._folder, self._now_s = folder, now_s
        self._watch = FolderWatch(folder / DELTAS)
        self._credit_s, self._counted_s = MOST_S, now_s()
        self._listed: list[UnrecordedDelta] = []
        # Path -> identity of the file, and the number of records (or FOR_GOOD) at which it was refused.
        self._refused: dict[Path, tuple[Identity, int]] = {}
        self._waiting: dict[Path, str] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def next(self, top: int) -> list[UnrecordedDelta]:
        """Return the file of the step after `top`, if it exists."""
        path = self._folder / DELTAS / f"{top + 1}{SUFFIX}"
        return [UnrecordedDelta(top + 1, path)] if os.path.isfile(path) and not os.path.islink(path) else []

    def others(self, top: int) -> list[UnrecordedDelta]:
        """Return files of steps above `top`, ascending, as of the last listing within the time budget."""
        now_s = self._now_s()
        self._credit_s = min(MOST_S, self._credit_s + SHARE * (now_s - self._counted_s))
        self._counted_s = now_s
        if self._credit_s > 0 and self._watch.changed():
            try:
                self._listed = unrecorded_deltas(self._folder)
            except NotReady:
                self.again()
                raise
            self._credit_s -= self._now_s() - now_s
        self._listed = [b for b in self._listed if b.step > top]
        return self._listed

    def again(self) -> None:
        self._watch.again()

    def prune(self, top: int) -> None:
        """Forget files that are gone, or whose step has been used; `top` is the newest one."""
        self._waiting = {path: why for path, why in self._waiting.items() if _step(path) > top and path.exists()}

    def worth_a_try(self, bare: UnrecordedDelta, number: int) -> Identity | None:
        """Return the identity of a file to be tried now; None if it is gone, or was refused as it is by this number."""
        identity, refused = identity_of(bare.path), self._refused.get(bare.path)
        if identity is None or refused in ((identity, number), (identity, FOR_GOOD)):
            return None
        self._waiting.pop(bare.path, None)
        return identity

    def refuse(self, bare: UnrecordedDelta, seen: Identity, number: int, why: str) -> str:
        """Note why a file waits, until there are more records (FOR_GOOD: until it changes); return a line on it."""
        self._refused[bare.path] = seen, number
        self._waiting[bare.path] = line = f"delta {bare.step} {why}"
        return line

    def first(self, top: int) -> tuple[str, bool]:
        """Return why the first file waits, and True if that is refused and blocks the others; one must wait."""
        step, path = min((_step(path), path) for path in self._waiting)
        return self._waiting[path], step == top + 1 and self._refused.get(path, ((), 0))[1] == FOR_GOOD


def _step(path: Path) -> int:
    return int(path.name.removesuffix(SUFFIX))
