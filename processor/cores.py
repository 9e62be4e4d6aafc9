"""Cores: cpusets as text, memory nodes, how sessions are spread over them, and what of all that a process is allowed.

Pure, but for run_on(), on() and ResourceLimits.here().

The allowance of a process: how many cores' worth of time, and how much memory, it may take. Read, never set.

Cores: those that it may run on (affinity), and of those as many as its control groups pay for (a quota of 1.5 is one
that runs all the time). A limit counts from wherever it stands: at the process's own group or at any above it. Both
versions of control groups are read, and the paths of /proc/self/cgroup need not exist here: in a container they name
folders of the host, and what stands at the root of /sys/fs/cgroup is the container's own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from freshet_serving.processor.errors import BadInput

NODES = Path("/sys/devices/system/node")
MAX_CPU = 1 << 16


def parse_cpus(text: str, where: str = "cpus") -> frozenset[int]:
    """Cores of a list such as "0-3,8", as Linux writes it; raises BadInput."""
    cpus: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or len(part) > 16:
            raise BadInput(f"{where}: cores such as 0-3,8 wanted, got {text[:64]!r}")
        low, high = int(first), int(last or first)
        if low > high or high >= MAX_CPU:
            raise BadInput(f"{where}: cores such as 0-3,8 wanted, got {text[:64]!r}")
        cpus.update(range(low, high + 1))
    return frozenset(cpus)


def parse_cpusets(text: str, where: str = "session_cpus") -> tuple[frozenset[int], ...]:
    """Parses session_cpus: one set of cores a session, separated by semicolons; "" for none."""
    return tuple(parse_cpus(part, where) for part in text.split(";")) if text.strip() else ()


def numa_nodes(folder: Path = NODES) -> list[frozenset[int]]:
    """The cores of each memory node, nodes without cores left out; empty where the system does not say."""
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
    """A cpuset for each session in turn: the allowed cores of one node each, node after node, so that a session's
    buffers and threads stay on its node. Empty where one node holds all: the scheduler knows better."""
    sets = [node & allowed for node in nodes if node & allowed]
    return tuple(sets) if len(sets) > 1 else ()


def available() -> frozenset[int]:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def run_on(cpus: frozenset[int]) -> None:
    """Binds the calling thread to cores, and the threads that it starts from now on; no cores: changes nothing."""
    if cpus and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cpus)


@contextmanager
def on(cpus: frozenset[int]) -> Iterator[None]:
    """run_on() for the length of a block."""
    before = available()
    run_on(cpus)
    try:
        yield
    finally:
        if cpus:
            run_on(before)


CGROUP, MEMINFO = Path("proc/self/cgroup"), Path("proc/meminfo")
# Where systems mount the second version, alone or beside the first, and the controllers of the first.
UNIFIED = ("sys/fs/cgroup", "sys/fs/cgroup/unified")
CONTROLLERS = {"cpu": ("sys/fs/cgroup/cpu", "sys/fs/cgroup/cpu,cpuacct"), "memory": ("sys/fs/cgroup/memory",)}
# The first version writes a number near 2**63 where there is no limit.
UNLIMITED = 1 << 60


@dataclass(frozen=True, slots=True)
class ResourceLimits:
    """What a process may take. affinity: cores that it may run on. quota: cores' worth of time, None for all of them.
    memory_nbytes: None where the system does not say."""

    affinity: int
    quota: float | None = None
    memory_nbytes: int | None = None

    @classmethod
    def here(cls, root: Path = Path("/")) -> ResourceLimits:
        """This process's. root: where proc and sys lie."""
        return cls(len(available()), _quota(root), _memory_nbytes(root))

    @property
    def cores(self) -> int:
        """Cores that it can keep busy all the time; at least 1."""
        return self.affinity if self.quota is None else max(1, min(self.affinity, int(self.quota)))

    @property
    def why(self) -> str:
        """Where the number of cores comes from, in words."""
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


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """Every folder that may limit this process: of its groups and all above them, as far as they are to be seen."""
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
    """What a file says; "" where there is none."""
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError, ValueError):
        return ""
