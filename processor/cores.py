"""Cores: cpusets as text, memory nodes, how sessions are spread over them. Pure, but for run_on() and on()."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

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
