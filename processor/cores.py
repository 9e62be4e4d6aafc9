"""Cores: parse cpusets, find memory nodes, spread sessions over them, and read the resource limits of this process.

Pure, except run_on(), on(), ResourceLimits.here() and Occupancy.

A process may run on the cores of its affinity, limited by the quota of its control groups (a quota of 1.5 is one core
that runs all the time): its own group and any above it, of both versions. The paths of /proc/self/cgroup need not
exist: in a container they name folders of the host, and the root of /sys/fs/cgroup is the container's own group.

Occupancy: each process has two words, which it alone writes and all processes read, without a lock:

computing    number of its threads that are computing. A hint: if two processes take the last core, one batch takes
longer and nothing else goes wrong.
beats        heartbeat: counts up with every run of an executable and while its event loop runs. Of two simultaneous
increments one may be lost; readers only check whether it changes (serving.workers.worker_pool).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.errors import BadInput

NODES = Path("/sys/devices/system/node")
MAX_CPU = 1 << 16


def parse_cpus(text: str, where: str = "cpus") -> frozenset[int]:
    """Return the cores of a list such as "0-3,8", as Linux writes it; `where` is the option's name, for messages."""
    cpus: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or len(part) > 16:
            raise BadInput(f"{where}: expected cores such as 0-3,8, got {text[:64]!r}")
        low, high = int(first), int(last or first)
        if low > high or high >= MAX_CPU:
            raise BadInput(f"{where}: expected cores such as 0-3,8, got {text[:64]!r}")
        cpus.update(range(low, high + 1))
    return frozenset(cpus)


def parse_cpusets(text: str, where: str = "cpus") -> tuple[frozenset[int], ...]:
    """Parse a group's cpus: one set of cores per session, separated by semicolons; "" for none. See parse_cpus()."""
    return tuple(parse_cpus(part, where) for part in text.split(";")) if text.strip() else ()


def numa_nodes(folder: Path = NODES) -> list[frozenset[int]]:
    """Return the cores of each memory node that has any; empty if the system does not report them."""
    nodes = {}
    for path in folder.glob("node[0-9]*/cpulist"):
        try:
            text = path.read_text().strip()
            if text:
                nodes[int(path.parent.name.removeprefix("node"))] = parse_cpus(text)
        except (OSError, ValueError, BadInput):
            continue
    return [nodes[n] for n in sorted(nodes)]


def spread(allowed: frozenset[int], nodes: Sequence[frozenset[int]]) -> tuple[frozenset[int], ...]:
    """Return a cpuset for each session in turn: the allowed cores of one node each, node after node.

    So a session's buffers and threads stay on its node. Empty if one node holds all cores: the scheduler does better
    then.
    """
    sets = [node & allowed for node in nodes if node & allowed]
    return tuple(sets) if len(sets) > 1 else ()


def available() -> frozenset[int]:
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def run_on(cpus: frozenset[int]) -> None:
    """Bind the calling thread, and the threads that it starts from now on, to cores; an empty set changes nothing."""
    if cpus and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cpus)


@contextmanager
def on(cpus: frozenset[int]) -> Iterator[None]:
    """Bind the calling thread to cores for a block, see run_on()."""
    before = available()
    run_on(cpus)
    try:
        yield
    finally:
        if cpus:
            run_on(before)


CGROUP, MEMINFO = Path("proc/self/cgroup"), Path("proc/meminfo")
# Mount points of version 2, alone or beside version 1, and of the controllers of version 1.
UNIFIED = ("sys/fs/cgroup", "sys/fs/cgroup/unified")
CONTROLLERS = {"cpu": ("sys/fs/cgroup/cpu", "sys/fs/cgroup/cpu,cpuacct"), "memory": ("sys/fs/cgroup/memory",)}
# Version 1 shows a number near 2**63 if there is no limit.
UNLIMITED = 1 << 60


@dataclass(frozen=True, slots=True)
class ResourceLimits:
    """Resources that a process may use.

    Attributes:
        affinity: Number of cores that it may run on.
        quota: Cores' worth of time, None for all of them.
        memory_nbytes: None if the system does not report them.
    """

    affinity: int
    quota: float | None = None
    memory_nbytes: int | None = None

    @classmethod
    def here(cls, root: Path = Path("/")) -> ResourceLimits:
        """Read the limits of this process; `root` contains proc and sys."""
        return cls(len(available()), _quota(root), _memory_nbytes(root))

    @property
    def cores(self) -> int:
        """Number of cores that it can keep busy all the time; at least 1."""
        return self.affinity if self.quota is None else max(1, min(self.affinity, int(self.quota)))

    @property
    def why(self) -> str:
        """Explanation of the number of cores, for people."""
        counted = f"{self.cores} core{'s' if self.cores > 1 else ''}"
        quota = "no quota" if self.quota is None else f"quota {self.quota:g}"
        return f"{counted}: affinity {self.affinity}, {quota}"


def _quota(root: Path) -> float | None:
    quotas = []
    for folder in _folders(root, "cpu"):
        words = _words(folder / "cpu.max") or [
            *_words(folder / "cpu.cfs_quota_us"),
            *_words(folder / "cpu.cfs_period_us"),
        ]
        if len(words) == 2 and all(word.isdecimal() and int(word) for word in words):
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def _memory_nbytes(root: Path) -> int | None:
    limits = []
    for folder in _folders(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            limits += [int(word) for word in _words(folder / name) if word.isdecimal() and int(word) < UNLIMITED]
    match _words(root / MEMINFO):
        case ["MemTotal:", kib, "kB", *_] if kib.isdecimal():
            limits.append(int(kib) << 10)
    return min(limits, default=None)


def free_memory(root: Path = Path("/")) -> float:
    """Return the share of the machine's and its groups' memory that this process may still use; 1.0 if unknown."""
    shares = []
    for folder in _folders(root, "memory"):
        for most, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            match _words(folder / most), _words(folder / used):
                case [limit], [current] if limit.isdecimal() and current.isdecimal() and 0 < int(limit) < UNLIMITED:
                    # Cached pages of files count as used, and are free to take.
                    cached = _named(folder / "memory.stat", "inactive_file")
                    shares.append(1 - max(0, int(current) - cached) / int(limit))
    if total := _named(root / MEMINFO, "MemTotal:"):
        shares.append(_named(root / MEMINFO, "MemAvailable:") / total)
    return max(0.0, min(shares, default=1.0))


def _named(file: Path, name: str) -> int:
    """Return the number after a name in a file of the system; 0 if there is none."""
    words = _words(file)
    pairs = (int(value) for key, value in zip(words, words[1:]) if key == name and value.isdecimal())
    return next(pairs, 0)


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """Yield every visible folder that may limit this process: of its groups and of all above them."""
    for line in _text(root / CGROUP).splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            mounts: tuple[str, ...] = UNIFIED
        elif controller in controllers.split(","):
            mounts = CONTROLLERS[controller]
        else:
            continue
        parts = [part for part in PurePosixPath(path).parts if part not in ("/", "..")]
        for mount in mounts:
            yield from (root.joinpath(mount, *parts[:depth]) for depth in range(len(parts) + 1))


def _words(file: Path) -> list[str]:
    return _text(file).split()


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError, ValueError):
        return ""


class Occupancy:
    """Occupancy of a set of cores. The caller serialises writes to its own word."""

    def __init__(
        self, cores: int, words: NDArray[np.int64] | None = None, slot: int = 0, beats: NDArray[np.int64] | None = None
    ) -> None:
        """Attach to the shared words, int64 [processes], of which `slot` is its own; None for a process alone."""
        # Reading an item of a memoryview costs a fraction of reading one of an array.
        self._words, self._beats = (
            memoryview((np.zeros(slot + 1, np.int64) if shared is None else shared).data) for shared in (words, beats)
        )
        self._cores, self._slot, self._own = cores, slot, 0

    def change(self, threads: int) -> None:
        """Count `threads` more computing threads of this process; fewer if negative."""
        self._own += threads
        self._words[self._slot] = self._own

    def beat(self) -> None:
        """Record progress of this process."""
        self._beats[self._slot] += 1

    @property
    def crowded(self) -> bool:
        """True if more than one thread computes, in this process or in any."""
        return sum(self._words) > 1

    @property
    def spare(self) -> int:
        """Number of cores that no thread computes on."""
        return self._cores - sum(self._words)
