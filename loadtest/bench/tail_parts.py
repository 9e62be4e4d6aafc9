"""Where the latency of requests goes: stamps of a server joined to what its client measured. Pure, but for /proc.

The parts of a request exclude each other and add up to its latency, from when it was sent until the kernel had its
reply. Before it is read, the loop's thread has run (for others), has stood ready without a core, or neither: it waited
for a lock, a page or the network. After that the same three are known as sums, from the stamps at both ends; what it
ran is divided among reading, queue, computing and writing by how long each took. That holds where the loop's thread
computes (`--compute inline`); on threads of their own, sessions' time would count as waiting.

What the thread did before a request was sent is told from the last stamp before that, at most a tick ago: parts before
the read are bounded by it, not exact.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadtest.bench.stamped_server import NAP, REQUEST, TICK

CORE = "waits for a core"
PARTS = (
    CORE,
    "waits for the loop",
    "waits for a lock, a page or the network",
    "is read",
    "waits in the batch queue",
    "is computed",
    "is answered",
    "reply on its way",
)
Table = NDArray[np.void]


@dataclass(frozen=True, slots=True)
class RequestParts:
    """Requests in no order. latency_ns: of each; parts_ns: [requests, PARTS]."""

    latency_ns: NDArray[np.int64]
    parts_ns: NDArray[np.float64]

    def tail(self, percentile: float = 99.0) -> RequestParts:
        """Return the requests at or above a percentile of the latency."""
        if not len(self.latency_ns):
            return self
        least_ns = np.percentile(self.latency_ns, percentile, method="inverted_cdf")
        return self.where(self.latency_ns >= least_ns)

    def where(self, mask: NDArray[np.bool_]) -> RequestParts:
        return RequestParts(self.latency_ns[mask], self.parts_ns[mask])

    def with_a_core(self) -> RequestParts:
        """Return the same requests without what they waited for a core."""
        parts_ns = self.parts_ns.copy()
        parts_ns[:, PARTS.index(CORE)] = 0
        latency_ns = self.latency_ns - self.parts_ns[:, PARTS.index(CORE)].astype(np.int64)
        return RequestParts(latency_ns, parts_ns)

    def quantile_ms(self, percentile: float) -> float:
        """Return a percentile of the latency in milliseconds; 0 without requests."""
        return float(np.percentile(self.latency_ns, percentile)) / 1e6 if len(self.latency_ns) else 0.0

    def shares(self) -> dict[str, float]:
        """Return each part's share of the sum of the latencies."""
        total = max(1.0, float(self.parts_ns.sum()))
        return {name: float(column) / total for name, column in zip(PARTS, self.parts_ns.sum(axis=0))}

    def mean_ms(self) -> float:
        """Return the mean latency in milliseconds; 0 without requests."""
        return float(self.latency_ns.mean()) / 1e6 if len(self.latency_ns) else 0.0


def request_parts(replies: Table, stamps: Table) -> RequestParts:
    """Divide every reply's latency that the server has stamped.

    Args:
        replies: REPLY of loadtest.load.openloop.
        stamps: STAMP of loadtest.bench.stamped_server, of all processes, in the time of the run alone.
    """
    served = stamps[stamps["kind"] == REQUEST]
    keys, asked = (table["port"] << 32 | table["number"] for table in (served, replies))
    _, ours, theirs = np.intersect1d(keys, asked, return_indices=True)
    served, replies = served[ours], replies[theirs]
    parts = np.zeros((len(replies), len(PARTS)))
    for loop in np.unique(served["loop"]):
        own = served["loop"] == loop
        parts[own] = _divided(replies[own], served[own], _samples(stamps[stamps["loop"] == loop]))
    return RequestParts(replies["came_ns"] - replies["sent_ns"], parts)


def _samples(stamps: Table) -> NDArray[np.int64]:
    """Clock, core time and waits of one loop's thread, [samples, 3], ascending."""
    requests, ticks = stamps[stamps["kind"] == REQUEST], stamps[stamps["kind"] == TICK]
    columns = [
        np.stack([table[name] for name in names], axis=1)
        for table, names in (
            (requests, ("read_ns", "read_ran_ns", "read_waited_ns")),
            (requests, ("written_ns", "written_ran_ns", "written_waited_ns")),
            (ticks, ("written_ns", "written_ran_ns", "written_waited_ns")),
        )
    ]
    samples = np.concatenate(columns)
    return samples[np.argsort(samples[:, 0], kind="stable")]


def _divided(replies: Table, stamps: Table, samples: NDArray[np.int64]) -> NDArray[np.float64]:
    sent_ns, came_ns = replies["sent_ns"], replies["came_ns"]
    before = samples[np.maximum(0, np.searchsorted(samples[:, 0], sent_ns, side="right") - 1)]
    unread_ns = np.maximum(0, stamps["read_ns"] - sent_ns)
    ran_ns = np.clip(stamps["read_ran_ns"] - before[:, 1], 0, unread_ns)
    waited_ns = np.clip(stamps["read_waited_ns"] - before[:, 2], 0, unread_ns - ran_ns)
    held_ns = unread_ns - ran_ns - waited_ns
    # Of a reply that the kernel had before write() returned, the server's part ends there.
    end_ns = np.minimum(stamps["written_ns"], came_ns)
    inside_ns = np.maximum(1, end_ns - stamps["read_ns"])
    inside_waited_ns = np.clip(stamps["written_waited_ns"] - stamps["read_waited_ns"], 0, inside_ns)
    inside_ran_ns = np.clip(stamps["written_ran_ns"] - stamps["read_ran_ns"], 0, inside_ns - inside_waited_ns)
    inside_held_ns = inside_ns - inside_waited_ns - inside_ran_ns
    edges = np.stack(
        [
            *(np.minimum(stamps[name], end_ns) for name in ("read_ns", "submitted_ns", "began_ns", "ended_ns")),
            end_ns,
        ],
        axis=1,
    )
    stages_ns = np.maximum(0, np.diff(edges, axis=1))
    stages_ns = stages_ns * (inside_ran_ns / np.maximum(1, stages_ns.sum(axis=1)))[:, None]
    way_ns = np.maximum(0, came_ns - stamps["written_ns"])
    return np.column_stack([waited_ns + inside_waited_ns, ran_ns, held_ns + inside_held_ns, stages_ns, way_ns])


def loop_late_ms(stamps: Table) -> NDArray[np.float64]:
    """Return by how many milliseconds each tick was read late, and without the loop's waits for a core: [ticks, 2]."""
    late = [np.zeros((0, 2))]
    for loop in np.unique(stamps["loop"]):
        own = stamps[stamps["loop"] == loop]
        ticks, samples = own[own["kind"] == TICK], _samples(own)
        before = samples[np.maximum(0, np.searchsorted(samples[:, 0], ticks["read_ns"], side="right") - 1)]
        late_ns = np.maximum(0, ticks["written_ns"] - ticks["read_ns"])
        waited_ns = np.clip(ticks["written_waited_ns"] - before[:, 2], 0, late_ns)
        late.append(np.column_stack([late_ns, late_ns - waited_ns]) / 1e6)
    return np.concatenate(late)


def lock_late_ms(stamps: Table) -> NDArray[np.float64]:
    """Return by how many milliseconds each nap ended late, without its thread's own wait for a core."""
    naps = stamps[stamps["kind"] == NAP]
    late_ns = naps["written_ns"] - naps["submitted_ns"] - (naps["written_waited_ns"] - naps["read_waited_ns"])
    return np.asarray(np.maximum(0.0, late_ns / 1e6), np.float64)


@dataclass(frozen=True, slots=True)
class ThreadSums:
    """Sums over threads, as the kernel counts: of a core, of waits for one, and how often a core was taken away."""

    ran_s: float = 0.0
    waited_s: float = 0.0
    preempted: int = 0

    def __sub__(self, other: ThreadSums) -> ThreadSums:
        return ThreadSums(
            max(0.0, self.ran_s - other.ran_s),
            max(0.0, self.waited_s - other.waited_s),
            max(0, self.preempted - other.preempted),
        )


def thread_sums(pids: Iterable[int], loops: Iterable[int], proc: Path = Path("/proc")) -> dict[str, ThreadSums]:
    """Return the sums of processes' threads: of `loops`, numbers of event loops' threads, and of the `others`."""
    chosen = frozenset(loops)
    sums: dict[str, list[Any]] = {"loops": [0, 0, 0], "others": [0, 0, 0]}
    for pid in pids:
        for task in (proc / str(pid) / "task").glob("*"):
            try:
                ran_ns, waited_ns, _ = (task / "schedstat").read_text().split()
                lines = (task / "status").read_text().splitlines()
            except (OSError, ValueError):
                continue
            taken = next((line.split()[1] for line in lines if line.startswith("nonvoluntary_ctxt_switches")), "0")
            into = sums["loops" if int(task.name) in chosen else "others"]
            for n, value in enumerate((ran_ns, waited_ns, taken)):
                into[n] += int(value)
    return {name: ThreadSums(ran / 1e9, waited / 1e9, taken) for name, (ran, waited, taken) in sums.items()}
