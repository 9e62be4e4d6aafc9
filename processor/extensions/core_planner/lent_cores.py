"""Lend cores that a server does not need to a trainer on the same machine, and take them back.

The server says which cores are lent, in a file of the repository; the trainer follows. Nothing is agreed: a core is
back when the file says so.

    <repository>/.cores/<boot>.json    {"server": "9f2c01aa", "written_s": 5301.2, "lent": [6, 7], "kept": 1}

`boot` names one start of one machine, so a server and a trainer of different machines never meet, and both read the
same monotonic clock.

Invariants
- The server alone writes, whole files, each turn of its plan. A file older than STALE_S says nothing: a server that was
  killed lends nothing.
- A trainer looks every LOOK_S, on a thread of its own, and moves all its threads at once, within their batches, and its
  child processes, which decode files. So a core is back within LOOK_S however long a batch takes.
- It moves once it has learned rows: by then libraries have made their threads, as many as it has cores of its own.
- Sessions may still use a lent core, and come first there.
- A trainer that is lent nothing keeps one core, `kept`: the lowest shared one. What it publishes becomes older, and
  never stops. Once it has found a server, all its threads have a lower priority (NICE), for good: on that core they
  have a tenth of the time while sessions want all of it.
- Training never fails because of the file: what cannot be read, or is no such file, says nothing.
- Of two servers with one repository on one machine the first lends.

Costs: the server writes 100 bytes each turn; a look reads them, four times a second; a move reads a file a process.

Rejected: a look between two batches (a batch may take long, and each trainer would have to look); pausing a trainer
that is lent nothing (freshness is what it is there for); SCHED_IDLE (the same, on a saturated core); shared memory (a
name outside of the repository, to be agreed upon).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from freshet_serving.processor.cores import available
from freshet_serving.processor.errors import Corrupt
from freshet_serving.processor.package import atomic_file, read_file
from freshet_serving.processor.standby_thread import PeriodicThread

log = logging.getLogger("freshet.cores")

FOLDER = ".cores"
BOOT = Path("/proc/sys/kernel/random/boot_id")
PROC = Path("/proc")
STALE_S, LOOK_S = 15.0, 0.25
NICE = 10
MOST_NBYTES, MOST_CORES = 1 << 16, 1 << 13


@dataclass(frozen=True, slots=True)
class Loan:
    """Cores that a server, by a random name, lends to trainers, as its file said at a monotonic time.

    `kept` is the core of a trainer that is lent nothing.
    """

    server: str
    written_s: float
    lent: frozenset[int]
    kept: int

    def dump(self) -> bytes:
        fields = {"server": self.server, "written_s": self.written_s, "lent": sorted(self.lent), "kept": self.kept}
        return json.dumps(fields).encode() + b"\n"

    @classmethod
    def parse(cls, text: bytes) -> Loan | None:
        """Return what a file says; None if it is no such file."""
        try:
            fields = json.loads(text)
            server, written_s, lent, kept = (fields[name] for name in ("server", "written_s", "lent", "kept"))
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        numbers = (
            isinstance(lent, list) and len(lent) <= MOST_CORES and all(type(core) is int for core in (*lent, kept))
        )
        if not numbers or not isinstance(server, str) or type(written_s) not in (int, float):
            return None
        return cls(server, written_s, frozenset(lent), kept)


def loan_file(folder: Path) -> Path | None:
    """Return the path of the file in a repository's folder, for this machine since it was started; None for no name."""
    try:
        return folder / FOLDER / f"{BOOT.read_text().strip()}.json"
    except OSError:
        return None


def read_loan(path: Path, now_s: float) -> Loan | None:
    """Return what a server says now, in monotonic seconds; None if none does."""
    try:
        loan = Loan.parse(read_file(path, MOST_NBYTES).tobytes())
    except (OSError, Corrupt):
        return None
    return loan if loan is not None and 0 <= now_s - loan.written_s < STALE_S else None


class Lender:
    """The server's half; used by one thread at a time."""

    def __init__(self, folder: Path, now_s: Callable[[], float] = time.monotonic) -> None:
        self._path, self._now_s = loan_file(folder), now_s
        self._server = secrets.token_hex(4)
        self._failed = False

    def write(self, lent: frozenset[int], kept: int) -> None:
        """Say which cores are lent now; a file that cannot be written lends nothing."""
        if self._path is None or self._another():
            return
        try:
            self._path.parent.mkdir(exist_ok=True)
            with atomic_file(self._path) as file:
                file.write(Loan(self._server, self._now_s(), lent, kept).dump())
        except OSError as error:
            if not self._failed:
                log.warning("no cores are lent to trainers: %s", error)
            self._failed = True
        else:
            self._failed = False

    def close(self) -> None:
        if self._path is not None and not self._another():
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)

    def _another(self) -> bool:
        loan = None if self._path is None else read_loan(self._path, self._now_s())
        return loan is not None and loan.server != self._server


class Borrower:
    """The trainer's half: keeps the threads of this process on the cores that it is lent, within a block."""

    def __init__(
        self, repository: str, learning: Callable[[], bool], now_s: Callable[[], float] = time.monotonic
    ) -> None:
        """Take the address of the repository that the trainer publishes to; no cores are lent through an object store.

        `learning` returns True once rows have been learned.
        """
        self._path, self._now_s = None if "://" in repository else loan_file(Path(repository)), now_s
        self._learning = learning
        self._own = self._cores = available()
        self._yields = False
        self._thread = PeriodicThread(self.look, LOOK_S, LOOK_S, "freshet-borrower")

    def __enter__(self) -> Self:
        if self._path is not None:
            self.look()
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._thread.is_alive():
            self._thread.close(LOOK_S)
            self._move(self._own)

    def look(self) -> bool:
        """Go where the server says; return False: there is nothing more to do at once."""
        loan = None if self._path is None else read_loan(self._path, self._now_s())
        if loan is None:
            self._move(self._own)
            return False
        if not self._yields:
            self._yields = True
            _each_thread(lambda thread: os.setpriority(os.PRIO_PROCESS, thread, max(NICE, os.nice(0))))
            log.info("a server on this machine plans its cores: training yields to it")
        if self._learning():
            self._move((loan.lent or frozenset({loan.kept})) & self._own or self._own)
        return False

    def _move(self, cores: frozenset[int]) -> None:
        if cores != self._cores:
            self._cores = cores
            _each_thread(lambda thread: os.sched_setaffinity(thread, cores))


def _each_thread(act: Callable[[int], Any]) -> None:
    """Do something to every thread, by its number, of this process and of its children, those started meanwhile too."""
    done: set[int] = set()
    while missing := set(own_threads()) - done:
        for thread in missing:
            # One that has ended, or a system that forbids it.
            with contextlib.suppress(OSError):
                act(thread)
        done |= missing


def own_threads() -> Iterator[int]:
    children: dict[int, list[int]] = {}
    for process in PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # After the name, which may contain anything.
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(process.name))
    processes = [os.getpid()]
    for process_id in processes:
        processes += children.get(process_id, ())
        with contextlib.suppress(OSError):
            yield from [int(task.name) for task in (PROC / str(process_id) / "task").iterdir()]
