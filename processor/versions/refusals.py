"""Refusals: the versions of a model that could not be served, and when each is worth another try.

A version is tried again when one of the files that it is loaded from has changed, wherever in its folder that lies: who
mends a table leaves the manifest as it was. What comes with every delta (chain, deltas, snapshots) is left out: a
stream of them would have the version read whole again and again.

Costs: nothing where nothing is refused; else a stat a file, every LOOK_S. A change counts once nothing has moved for
so long, so that a file that is still being copied is not taken for the mended one.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from processor.chain.chain_record import CHAIN
from processor.chain.patrol import Identity, identity_of
from processor.clock import Clock
from processor.package.version import DELTAS, SNAPSHOTS

LOOK_S = 1.0
MAX_FILES = 10_000
GROWING = {CHAIN, DELTAS, SNAPSHOTS}

Files = Mapping[str, Identity]
"""What the files of a version are, by path."""


class Refusal(str):
    """A line that wants somebody's attention: what cannot be served, and why."""

    __slots__ = ()


def report(log: logging.Logger, lines: Iterable[str]) -> None:
    """Logs what poll() says has happened, refusals as errors."""
    for line in lines:
        log.log(logging.ERROR if isinstance(line, Refusal) else logging.INFO, "%s", line)


class Refusals:
    """The refused versions of one model, by the files that they were refused with. Used under the model's lock."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        """folder: the model's."""
        self._folder, self._clock = folder, clock
        self._refused: dict[int, Files] = {}
        self._seen: dict[int, Files] = {}
        self._next_s = 0.0

    def worth_a_try(self, number: int) -> Files | None:
        """What the files of a version are now, if there are any and they were not refused before.

        To be asked before the version is read: it may be replaced meanwhile.
        """
        files = self._files(number)
        return None if not files or self._refused.get(number) == files else files

    def note(self, number: int, files: Files) -> None:
        """The version was refused, its files being these."""
        self._refused[number] = files

    def forget(self, number: int) -> None:
        """The version is served, or is not asked for any more."""
        self._refused.pop(number, None)
        self._seen.pop(number, None)

    def changed(self) -> bool:
        """Whether a refused version is worth another try; looked at every LOOK_S."""
        now_s = self._clock.now_s()
        if not self._refused or now_s < self._next_s:
            return False
        self._next_s = now_s + LOOK_S
        before, self._seen = self._seen, {number: self._files(number) for number in self._refused}
        return any(files not in ({}, self._refused[n]) and files == before.get(n) for n, files in self._seen.items())

    def _files(self, number: int) -> Files:
        root, found = self._folder / str(number), dict[str, Identity]()
        for folder, folders, names in os.walk(root):
            folders[:] = [name for name in folders if name not in GROWING and not name.startswith(".")]
            for name in names:
                path = Path(folder, name)
                identity = identity_of(path)
                if identity is not None and len(found) < MAX_FILES:
                    found[path.relative_to(root).as_posix()] = identity
        return found
