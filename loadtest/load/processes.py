"""Memory and processor time that a running server takes: those of a process and all that it started."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

PROC = Path("/proc")


def tree(pid: int, proc: Path = PROC) -> list[int]:
    """A process and its descendants, itself first."""
    children: dict[int, list[int]] = {}
    for folder in proc.iterdir():
        if folder.name.isdigit():
            parent = _parent(folder)
            if parent is not None:
                children.setdefault(parent, []).append(int(folder.name))
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found


def pss_nbytes(pids: Iterable[int], proc: Path = PROC) -> int:
    """Proportional set size: what is shared by n processes counts 1/n for each, so that a sum over all counts it once.
    Processes that have gone meanwhile count nothing."""
    total = 0
    for pid in pids:
        try:
            lines = (proc / str(pid) / "smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total


def cpu_s(pids: Iterable[int], proc: Path = PROC, ended: bool = False) -> float:
    """Processor time that the processes have taken since their starts, in user and kernel. Gone processes count
    nothing. ended: their children that have ended count too."""
    ticks = 0
    for pid in pids:
        try:
            text = (proc / str(pid) / "stat").read_text()
        except OSError:
            continue
        # Behind the name: state, parent, ... utime and stime are the fields 14 and 15 of proc(5), then the children's.
        ticks += sum(map(int, text.rpartition(")")[2].split()[11 : 15 if ended else 13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _parent(folder: Path) -> int | None:
    try:
        text = (folder / "stat").read_text()
    except OSError:
        return None
    # The name stands in parentheses and may hold any character; the parent is the second field after it.
    return int(text.rpartition(")")[2].split()[1])
