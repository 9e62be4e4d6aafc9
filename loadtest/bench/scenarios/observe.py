"""Measures what it costs to be observed: metrics on / off, traces of one request in a hundred / none.

Front end and engine in one process (loadtest.bench.front), both sides alternating on one thread: processor time of a
side with over that of one without. Without metrics means that nothing is counted, timed or sketched, which no option of
the server does. With traces means that they are made into spans and sent to a collector within the turn that is
measured.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from freshet_serving.processor.counter_block import by_name
from freshet_serving.processor.sessions import session as session_module
from freshet_serving.serving.front import exchange as exchange_module
from freshet_serving.serving.telemetry import tracing as tracing_module
from freshet_serving.serving.telemetry.otel import OtlpExporter
from freshet_serving.serving.telemetry.tracing import Tracer
from loadtest.bench.front import FrontEnd
from loadtest.bench.harness import CONNECTIONS, Bench, Result
from loadtest.bench.pairs import Pair
from loadtest.load.launch import LineProcess

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
    result = Result("observe", "Metrics on / off, traces of 1 % / none: ratios of processor time")
    with contextlib.ExitStack() as stack:
        command = [sys.executable, "-m", "loadtest.bench.echo"]
        collector = stack.enter_context(LineProcess(command, "the collector"))
        endpoint = f"http://127.0.0.1:{int(collector.read())}"
        for candidates, connections in CASES:
            front = FrontEnd(bench.repository(), bench.payload(candidates), connections)
            stack.callback(front.close)
            what = f"{candidates} candidate{'s' if candidates > 1 else ''}, {connections} at once"
            tracer = _tracer(endpoint)
            stack.callback(tracer.close)
            metrics = _metrics(front, f"metrics on / off, {what}", connections)
            bench.pair(result, metrics, ("<=", GOAL), clock_ns=time.process_time_ns)
            traces = _traces(front, tracer, f"traces of 1 % / none, {what}", connections)
            rounds = max(3, bench.micro_rounds // 5)
            bench.pair(result, traces, ("<=", GOAL), clock_ns=time.process_time_ns, rounds=rounds)
            counts = by_name(tracer.counted(), "tracer")
            result.fact(f"traces sent, {what}", f"{counts['traced']}, dropped {counts['dropped']}")
    return result


def _rounds(front: FrontEnd, turn_s: float) -> int:
    """How many rounds of all connections take so long."""
    front.run(50)
    started_s = time.perf_counter()
    front.run(50)
    return max(1, int(50 * turn_s / (time.perf_counter() - started_s)))


def _metrics(front: FrontEnd, name: str, connections: int) -> Pair:
    rounds = _rounds(front, METRICS_TURN_S)

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

    return Pair(name, on, off, rounds * connections, "request")


def _nothing(*_: Any) -> None:
    pass


def _traces(front: FrontEnd, tracer: Tracer, name: str, connections: int) -> Pair:
    rounds = _rounds(front, TRACES_TURN_S)

    def sides(watched: Tracer | None) -> Callable[[], None]:
        def turn() -> None:
            front.app.serving_context.tracer = watched
            try:
                front.run(rounds)
                tracer.send(time.monotonic())
            finally:
                front.app.serving_context.tracer = None

        return turn

    return Pair(name, sides(tracer), sides(None), rounds * connections, "request")


def _tracer(endpoint: str) -> Tracer:
    """One that sends when it is told to, and not in between."""
    with patch.object(tracing_module, "EXPORT_INTERVAL_S", 3600.0):
        tracer = Tracer(TRACE_SHARE, OtlpExporter(endpoint, "bench"))
        # The thread has read it by the time that the first turn is over.
        time.sleep(0.1)
    return tracer
