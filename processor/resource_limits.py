"""The allowance of a process: how many cores' worth of time, and how much memory, it may take. Read, never set.

Cores: those that it may run on (affinity), and of those as many as its control groups pay for (a quota of 1.5 is one
that runs all the time). A limit counts from wherever it stands: at the process's own group or at any above it. Both
versions of control groups are read, and the paths of /proc/self/cgroup need not exist here: in a container they name
folders of the host, and what stands at the root of /sys/fs/cgroup is the container's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from freshet_serving.processor.cores import available

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
