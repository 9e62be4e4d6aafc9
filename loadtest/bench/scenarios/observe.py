"""Measures what it costs to be observed: metrics on / off, traces of one request in a hundred / none.

Front end and engine in one process (loadtest.bench.front), both sides alternating on one thread: processor time of a
side with over that of one without. Without metrics means that nothing is counted, timed or sketched, which no option of
the server does. With traces means that they are made into spans and sent to a collector within the turn that is
measured.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

from freshet_serving.processor.counter_block import by_name
from freshet_serving.processor.sessions import session as session_module
from freshet_serving.serving.front import exchange as exchange_module
from freshet_serving.serving.telemetry import tracing as tracing_module
from freshet_serving.serving.telemetry.otel import OtlpExporter
from freshet_serving.serving.telemetry.tracing import Tracer
from loadtest.bench.front import FrontEnd
from loadtest.bench.harness import CONNECTIONS, Bench, Result, Row
from loadtest.bench.pairs import Pair, compare
from loadtest.load.sides import Ratio

GOAL = 1.02
TRACE_SHARE = 0.01
CASES = ((1, CONNECTIONS), (1, 1), (64, CONNECTIONS))
# Turns long enough that a collection of garbage is no event, and that a send of traces is what it is in a second.
METRICS_TURN_S, TRACES_TURN_S = 0.1, 0.5


class NullCounts:
    """Counts that count nothing."""

    def observe(self, *_: Any) -> None:
        pass

    predicted = phase = observe


def run(bench: Bench) -> Result:
    """Measures every case of both, metrics and traces."""
    result = Result("observe", "Metrics on / off, traces of 1 % / none: ratios of processor time")
    with contextlib.ExitStack() as stack:
        endpoint = stack.enter_context(collector())
        for candidates, connections in CASES:
            front = FrontEnd(bench.repository(), bench.payload(candidates), connections)
            stack.callback(front.close)
            what = f"{candidates} candidate{'s' if candidates > 1 else ''}, {connections} at once"
            rounds = _rounds(front, METRICS_TURN_S)
            found = compare(_metrics(front, rounds, connections), bench.micro_rounds, time.process_time_ns)
            _keep(bench, result, f"metrics on / off, {what}", found, bench.micro_rounds)
            tracer = _tracer(endpoint)
            stack.callback(tracer.close)
            rounds, turns = _rounds(front, TRACES_TURN_S), max(3, bench.micro_rounds // 5)
            found = compare(_traces(front, tracer, rounds, connections), turns, time.process_time_ns)
            _keep(bench, result, f"traces of 1 % / none, {what}", found, turns)
            counts = by_name(tracer.counted(), "tracer")
            result.facts.append((f"traces sent, {what}", f"{counts['traced']}, dropped {counts['dropped']}"))
    return result


@contextlib.contextmanager
def collector() -> Iterator[str]:
    """A collector in a process of its own; yields its address."""
    command = [sys.executable, "-m", "loadtest.bench.collector"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        process.communicate()


def _keep(bench: Bench, result: Result, what: str, found: Any, rounds: int) -> None:
    bench.say(f"{what}: {found.median:.3f}")
    result.rows.append(Row(what, Ratio(found.median, found.low, found.high, rounds), ("<=", GOAL)))
    result.facts.append((what, f"{found.a_ns / 1e3:.1f} / {found.b_ns / 1e3:.1f} us a request"))


def _rounds(front: FrontEnd, turn_s: float) -> int:
    """How many rounds of all connections take so long."""
    front.run(50)
    started_s = time.perf_counter()
    front.run(50)
    return max(1, int(50 * turn_s / (time.perf_counter() - started_s)))


def _metrics(front: FrontEnd, rounds: int, connections: int) -> Pair:
    def on() -> None:
        front.run(rounds)

    def off() -> None:
        with (
            patch.object(front.app, "metrics", NullCounts()),
            patch.object(front.app.serving_context, "metrics", NullCounts()),
            patch.object(session_module, "note_batch", _nothing),
            patch.object(exchange_module, "TIMED_EVERY", sys.maxsize),
        ):
            front.run(rounds)

    return Pair("metrics", on, off, rounds * connections, "request")


def _nothing(*_: Any) -> None:
    pass


def _traces(front: FrontEnd, tracer: Tracer, rounds: int, connections: int) -> Pair:
    def sides(watched: Tracer | None) -> Callable[[], None]:
        def turn() -> None:
            front.app.serving_context.tracer = watched
            try:
                front.run(rounds)
                tracer.send(time.monotonic())
            finally:
                front.app.serving_context.tracer = None

        return turn

    return Pair("traces", sides(tracer), sides(None), rounds * connections, "request")


def _tracer(endpoint: str) -> Tracer:
    """One that sends when it is told to, and not in between."""
    kept, tracing_module.EXPORT_INTERVAL_S = tracing_module.EXPORT_INTERVAL_S, 3600.0
    try:
        return Tracer(TRACE_SHARE, OtlpExporter(endpoint, "bench"))
    finally:
        # The thread has read it by the time that the first turn is over.
        time.sleep(0.1)
        tracing_module.EXPORT_INTERVAL_S = kept
