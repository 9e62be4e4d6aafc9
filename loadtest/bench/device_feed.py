"""`make -C loadtest device-feed`: how fast one core feeds a device that takes no time; loadtest/results/device-feed.md.

The benchmark's DeepFM: 26 ids of tables with 16 floats a row, 13 floats, half of both the user's, who is sent once a
request. The device is played: it has the rows of all tables by place, takes what is sent to it, and computes nothing,
so what is measured is what the engine does for it, from arrays to a reply: bind, find places, hand over. Sixteen
requests are under way at once, through one session and one device stage.

- **lookups alone**: the kernel that finds places, over requests that have been bound before; in turn with the engine.
- **rows sent**: the engine as it feeds a device that has no rows: the host pools and sends all columns.
- **where it goes**: microseconds of a request in parts of the engine, each without the parts that it calls, and with
  the clock that it is measured by; the rest is what threads take to hand over to one another.

Turns alternate. Times are of the processor; a ratio is that of the median of its pairs of turns, with quartiles.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from rich.console import Console

from freshet_serving.processor.backends import xla
from freshet_serving.processor.counter_block import by_name
from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.extensions.device_rows import device_modules, placed_rows, slot_kernels
from freshet_serving.processor.extensions.device_stages.device import DeviceStages, StagedSession
from freshet_serving.processor.features.bound_request import BatchView
from freshet_serving.processor.features.plan import SparsePlan
from freshet_serving.processor.package.manifest_entries import ExecutableEntry
from freshet_serving.processor.sessions.group import SessionGroup
from freshet_serving.processor.sessions.predictor import Predictor
from freshet_serving.processor.sessions.session import Queue
from freshet_serving.processor.versions.replica import Replica
from loadtest.bench import bench_useronce
from loadtest.bench.pairs import Pair, compare
from loadtest.reports.report import RESULTS, begun, opening, store, table

MODEL, DIM, TARGET = "feed", 16, "cuda-null"
CANDIDATES, BUCKETS = (64, 500, 2000), (1, 16, 64, 256, 1024, 4096)
"""Buckets are those of docs/how-to/gpu."""
ROWS = (100_000, 2_000_000)
AIMS, LEAST_RATIO, MOST_NBYTES = {100_000: 3e6, 2_000_000: 1e6}, 0.6, 160
"""Rows a second at 500 candidates by rows of a table; of the lookups' rate; bytes of a row."""
REQUESTS = 16
PARTS: Sequence[tuple[Any, str, str]] = (
    (Predictor, "submit", "submit"),
    (SparsePlan, "bind_inputs", "bind"),
    (SessionGroup, "enqueue", "queue"),
    (Queue, "take", "queue"),
    (StagedSession, "run", "session"),
    (slot_kernels, "fill", "places and numbers"),
    (DeviceStages, "_run", "device stage"),
)
"""Functions, and the parts of the engine that they are."""
REST = "threads"


class NullDevice(xla._Cpu):
    """A device that computes nothing, in no time."""

    target = TARGET

    def __init__(self) -> None:
        super().__init__(1)

    def compile(self, stablehlo: bytes) -> Any:
        return NullExecutable()

    def handler(self, shape: tuple[int, ...], dtype: np.dtype[Any] = xla.FLOAT32) -> Any:
        return shape

    def fetch(self, result: Any, into: np.ndarray) -> None:
        """Leave what is there."""


class NullExecutable:
    """Takes arguments; its results are shapes."""

    def execute_sharded(self, arguments: Sequence[Any]) -> NullExecutable:
        return self

    def consume_with_handlers(self, handlers: Sequence[tuple[int, ...]]) -> list[NullResult]:
        return [NullResult(shape) for shape in handlers]


@dataclass(frozen=True, slots=True)
class NullResult:
    """The shape of a result."""

    shape: tuple[int, ...]

    def block_until_ready(self) -> None:
        """Return at once."""

    def on_device_size_in_bytes(self) -> int:
        return 4 * int(np.prod(self.shape))


def write(repository: Path, table_rows: int) -> None:
    """Write the model, with executables that a null device takes."""
    from tests.gpu.package import folder_of, relist

    draft = bench_useronce.manifest(MODEL, "context", table_rows, DIM)
    repository.mkdir(parents=True)
    version = bench_useronce.publish(repository, draft, (8,), (1,))
    given = version.manifest.executables[0]
    null = ExecutableEntry("xla", TARGET, 1, given.file, given.source, given.weights, origin=given.file)
    relist(folder_of(repository, MODEL), [replace(null, bucket=bucket) for bucket in BUCKETS])


@contextmanager
def engine(repository: Path, by_place: bool) -> Iterator[Processor]:
    """Yield the engine in front of a null device; by_place: rows are on it."""
    with ExitStack() as stack:
        stack.enter_context(patch.dict(xla._devices, {("cuda", 0): NullDevice()}))
        stack.enter_context(patch.object(device_modules, "gathering", lambda *arguments: b""))
        if not by_place:
            stack.enter_context(patch.object(Replica, "_place", lambda *arguments: None))
        options: dict[str, Any] = {"sessions": 1, "device_stages": 1, "device_rows_mb": 8192, "delta_guard": "off"}
        yield stack.enter_context(Processor.initialize(ProcessorConfig(str(repository), **options)))


def lookups(processor: Processor, asked: Sequence[PredictRequest]) -> Callable[[], None]:
    """Return what finds the places of all requests, which are bound here."""
    replica = processor.predictor.replica(MODEL)
    rows = replica._placed
    assert isinstance(rows, placed_rows.DeviceRows)
    (one,) = rows.inputs[replica.graphs.undivided.name].lines
    state = replica.pin(0)
    replica.unpin(0)
    views = [BatchView.of(state.tables, state.epoch, replica.plan.bind_inputs(request.inputs)) for request in asked]
    lines, layout = np.zeros((max(CANDIDATES), one.layout.line), np.float32), one.layout

    def find() -> None:
        for view in views:
            slot_kernels.fill(
                view.tables, rows.mirror.devices, layout.lookups, layout.floats[:0], layout.scaling[:0], view.inputs(),
                view.spans, view.epoch, lines, view.counts,
            )  # fmt: skip

    return find


def measure(table_rows: int, candidates: Sequence[int], rounds: int) -> Iterator[dict[str, Any]]:
    """Yield the figures of one size of tables by number of candidates: rows a second of the engine; its rate over that
    of the lookups alone, and over that of rows sent (lower quartile, median, upper quartile); bytes of a row that are
    sent; microseconds of a request in parts of the engine."""
    with tempfile.TemporaryDirectory(prefix="freshet-feed-") as place:
        repository = Path(place) / "models"
        write(repository, table_rows)
        with engine(repository, True) as placed, engine(repository, False) as sent:
            for count in candidates:
                asked = [PredictRequest(MODEL, one) for one in bench_useronce.requests(count, REQUESTS, table_rows)]

                def by(processor: Processor, asked: Sequence[PredictRequest] = asked) -> Callable[[], None]:
                    def ask() -> None:
                        for reply in processor.batch_process(asked):
                            if isinstance(reply, Exception):
                                raise reply

                    return ask

                rows = count * REQUESTS
                alone = compare(Pair("", lookups(placed, asked), by(placed), rows, "row"), rounds, time.process_time_ns)
                against = compare(Pair("", by(sent), by(placed), rows, "row"), rounds, time.process_time_ns)
                before = counted(placed)
                by(placed)()
                nbytes = (counted(placed) - before) / rows
                yield {
                    "table_rows": table_rows,
                    "candidates": count,
                    "rows_s": 1e9 / alone.b_ns,
                    **{
                        name: [found.ratio.low, found.ratio.median, found.ratio.high]
                        for name, found in (("lookups", alone), ("sent", against))
                    },
                    "nbytes": nbytes,
                    "parts": parts(by(placed), rounds),
                }


def parts(ask: Callable[[], None], rounds: int) -> dict[str, float]:
    """Return the microseconds of a request by part of the engine: medians of rounds of REQUESTS requests."""
    times: dict[str, list[int]] = {part: [] for part in dict.fromkeys([*(part for *_, part in PARTS), REST])}
    within, spent = threading.local(), dict[str, int]()

    def timed(function: Callable[..., Any], part: str) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            outer, within.ns, began_ns = getattr(within, "ns", 0), 0, time.thread_time_ns()
            try:
                return function(*arguments, **named)
            finally:
                all_ns = time.thread_time_ns() - began_ns
                spent[part] = spent.get(part, 0) + all_ns - within.ns
                within.ns = outer + all_ns

        return call

    with ExitStack() as stack:
        for owner, name, part in PARTS:
            stack.enter_context(patch.object(owner, name, timed(getattr(owner, name), part)))
        for _ in range(rounds):
            spent.clear()
            began_ns = time.process_time_ns()
            ask()
            spent[REST] = max(0, time.process_time_ns() - began_ns - sum(spent.values()))
            for part, ns in spent.items():
                times[part].append(ns)
    return {part: statistics.median(ns) / REQUESTS / 1e3 for part, ns in times.items() if ns}


def counted(processor: Processor) -> float:
    """Return the bytes of lines that were sent."""
    return by_name(processor.predictor.replica(MODEL).counted(), placed_rows.BLOCK)["sent_nbytes"]


def page(results: dict[str, Any]) -> str:
    rows, spent = [], []
    for f in results["figures"]:
        table_rows, count = f["table_rows"], f["candidates"]
        aim = f"{AIMS[table_rows] / 1e6:g}" if count == 500 and table_rows in AIMS else ""
        ratios = ["**{1:.2f}** ({0:.2f} to {2:.2f})".format(*f[name]) for name in ("lookups", "sent")]
        sizes = [f"{table_rows:,}", f"{count:,}"]
        rows.append([*sizes, f"{f['rows_s'] / 1e6:.2f}", aim, *ratios, f"{f['nbytes']:.0f}"])
        spent.append([*sizes, *(f"{us:.1f}" for us in f["parts"].values())])
    heads = [
        "rows a table",
        "candidates",
        "million rows a second",
        "aim",
        f"over lookups alone (aim {LEAST_RATIO})",
        "over rows sent",
        f"bytes a row, padding included (aim {MOST_NBYTES})",
    ]
    named = ["rows a table", "candidates", *results["figures"][0]["parts"]]
    where = ["## Where it goes", "", "Microseconds of a request.", "", table(named, spent)]
    return "\n".join([*opening("What feeds a device", __doc__ or "", results), table(heads, rows), "", *where, ""])


def main() -> None:
    parser = argparse.ArgumentParser(prog="make -C loadtest device-feed", description=__doc__)
    add = parser.add_argument
    add("--rounds", type=int, default=25)
    add("--rows", type=int, nargs="+", default=list(ROWS), help="rows of each table")
    add("--candidates", type=int, nargs="+", default=list(CANDIDATES))
    add("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    console = Console(stderr=True, highlight=False)
    results = begun("device-feed") | {"figures": []}
    for table_rows in options.rows:
        for figures in measure(table_rows, options.candidates, options.rounds):
            console.print(figures)
            results["figures"].append(figures)
            store(options.out, "device-feed", results, page(results))


if __name__ == "__main__":
    main()
