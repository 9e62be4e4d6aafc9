"""Delta files that somebody dropped into a version's folder without a record: deltas/<step>.safetensors.

Found without listing the folder: a file that continues the chain is looked for under its name. What a listing alone
finds (a gap, a compacted delta) may wait: listings are paced by what they have cost, so that watching a folder takes
the same processor time however many files lie in it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from freshet_serving.processor.errors import NotReady, shortage
from freshet_serving.processor.package.delta import SUFFIX
from freshet_serving.processor.repository.model_repository import FolderWatch
from freshet_serving.processor.repository.version import DELTAS

STEP = re.compile(r"[1-9][0-9]{0,17}")
SHARE, MOST_S = 0.001, 0.05
"""Listings take this share of the time at most, and so much at once on top."""


@dataclass(frozen=True, slots=True)
class UnrecordedDelta:
    """A delta file without a record, known by its name alone."""

    step: int
    path: Path


def unrecorded_deltas(folder: Path) -> list[UnrecordedDelta]:
    """Every file of a version's deltas that is named by a step, by ascending step; recorded ones too. Raises NotReady
    where the folder cannot be listed for now."""
    found = []
    try:
        with os.scandir(folder / DELTAS) as entries:
            for entry in entries:
                stem = entry.name.removesuffix(SUFFIX)
                if entry.name.endswith(SUFFIX) and STEP.fullmatch(stem) and entry.is_file(follow_symlinks=False):
                    found.append(UnrecordedDelta(int(stem), Path(entry.path)))
    except OSError as error:
        if (short := shortage(error)) is not None:
            raise short from None
        return []
    return sorted(found, key=lambda bare: bare.step)


class DeltaFolderScanner:
    """What is new in one version's folder of deltas."""

    def __init__(self, folder: Path, now_s: Callable[[], float]) -> None:
        self._folder, self._now_s = folder, now_s
        self._watch = FolderWatch(folder / DELTAS)
        self._credit_s, self._counted_s = MOST_S, now_s()
        self._listed: list[UnrecordedDelta] = []

    def next(self, top: int) -> list[UnrecordedDelta]:
        """The bare file of the step after `top`, if it is there."""
        path = self._folder / DELTAS / f"{top + 1}{SUFFIX}"
        return [UnrecordedDelta(top + 1, path)] if os.path.isfile(path) and not os.path.islink(path) else []

    def others(self, top: int) -> list[UnrecordedDelta]:
        """Bare files of steps above `top`, ascending, as the last listing that could be afforded found them."""
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
        """Makes the next look list the folder again, though it may not have changed."""
        self._watch.again()
