"""Which files of ours run while something is done, seen by Python's profiler in every thread of this process.

Invariant: a thread is seen only if it started after the recorder was installed; install it before what is measured.

A file counts when one of its functions is called. Not seen, and not counted: modules that only give constants, types,
attributes or kernels that are called by other compiled kernels. Threads of BESIDE work by a timer, whether something is
done or not, and are left out.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.structure.sources import FLOORS

BESIDE = ("freshet-guard", "freshet-files", "freshet-listing", "freshet-watcher", "freshet-admin")

QUIET_S, MOST_LOOKS = 0.02, 20


class Recorder:
    """A context manager; one at a time in a process."""

    def __init__(self, root: Path) -> None:
        self._root = os.path.realpath(root) + os.sep
        self._ours: dict[str, str] = {}
        self._seen: set[str] | None = None
        self._calls = 0

    def __enter__(self) -> Recorder:
        threading.setprofile(self._called)
        sys.setprofile(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    @contextmanager
    def recording(self) -> Iterator[set[str]]:
        """Yield the set that files are added to until the end of the block, as paths from the root."""
        self._seen = seen = set()
        try:
            yield seen
        finally:
            self._seen = None

    def files_of(self, act: Callable[[int], None], times: int) -> list[str]:
        """
        Return the files that run in most of the times that something is done: what a timer adds at times is left out.

        Args:
            act: does it; called with the number of the time, from 0.
            times: how often.
        """
        counts: Counter[str] = Counter()
        for number in range(times):
            with self.recording() as seen:
                act(number)
                self._wait_quiet()
            counts.update(list(seen))
        return sorted(path for path, count in counts.items() if 2 * count > times)

    def _wait_quiet(self) -> None:
        """Wait until no function of ours is called for a moment: threads go on after whoever waited has the answer."""
        for _ in range(MOST_LOOKS):
            before = self._calls
            time.sleep(QUIET_S)
            if self._calls == before:
                return

    def _called(self, frame, event, argument) -> None:
        seen = self._seen
        if seen is None or event != "call":
            return
        name = frame.f_code.co_filename
        if name.startswith("<"):
            # Methods that dataclasses generate have no file of their own.
            name = frame.f_globals.get("__file__", name)
        path = self._ours.get(name)
        if path is None:
            path = self._ours[name] = self._own(name)
        if path and not threading.current_thread().name.startswith(BESIDE):
            seen.add(path)
            self._calls += 1

    def _own(self, name: str) -> str:
        """Return a file's path from the root; empty where it lies in none of the top folders."""
        real = os.path.realpath(name)
        path = real.removeprefix(self._root).replace(os.sep, "/") if real.startswith(self._root) else ""
        return path if path.partition("/")[0] in FLOORS else ""
