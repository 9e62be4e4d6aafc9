"""Trace a sample of the requests: note times on the request path, and build spans from them on a thread.

A traced request has a span of its own (its parent is the one that its traceparent names) with the children `parse`,
`queue` and `encode`. The batch that computed it is a trace of its own, `batch` with `sparse` and `dense`, which several
traced requests may share. The two link to each other.

Invariants
- The request path notes times and appends to a bounded queue once the request has been answered; if the queue is full,
  the trace is dropped and counted. Ids are drawn on the request path, spans are built on the thread.
- A client that sends a traceparent decides whether its request is traced; of the other requests a share is traced.
- A batch's span is built once: spans are built SETTLE_S after the end of a trace, when all requests of its batch have
  ended.
"""

from __future__ import annotations

import logging
import math
import random
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, Protocol

from freshet_serving.processor.counter_block import CounterBlock, Slot, Snapshot
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.sessions.request import Timing
from freshet_serving.serving.codecs.wire import Headers
from freshet_serving.serving.request_headers import TRACEPARENT, request_id_of

log = logging.getLogger("freshet.trace")

MAX_QUEUED = 4096
EXPORT_INTERVAL_S = 1.0
SETTLE_S = 0.25
CLOSE_S = 3.0
CONTEXT = re.compile(rb"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
SAMPLED = 1
COUNTERS = (
    Slot("tracer", "traced", "traced_requests", "Requests whose traces were sent."),
    Slot("tracer", "dropped", "traces_dropped", "Traces dropped because the queue was full or sending failed."),
)
TRACED, DROPPED = range(len(COUNTERS))

Value = str | int
NOTHING: Mapping[str, Value] = MappingProxyType({})


class TraceSpan(NamedTuple):
    """One finished span, with monotonic times.

    Attributes:
        trace_id: 128 bits.
        span_id: 64 bits.
        parent_id: 64 bits; 0 for none.
        links: (trace_id, span_id) of linked spans.
        server: It is a server span; otherwise internal.
    """

    name: str
    trace_id: int
    span_id: int
    parent_id: int
    began_s: float
    ended_s: float
    attributes: Mapping[str, Value] = NOTHING
    links: tuple[tuple[int, int], ...] = ()
    server: bool = False
    failed: bool = False


class Exporter(Protocol):
    def export(self, spans: Sequence[TraceSpan], unix_offset_s: float) -> None:
        """Send spans; may block or raise. The offset is Unix time minus monotonic time."""

    def close(self) -> None: ...


@dataclass(slots=True, eq=False)
class Trace:
    """A traced request. Times are monotonic; 0 if the request did not reach that point."""

    trace_id: int
    span_id: int
    parent_id: int
    began_s: float
    protocol: str = ""
    model: str = ""
    request_id: str = ""
    parsed_s: float = 0.0
    encoding_s: float = 0.0
    ended_s: float = 0.0
    status: int = 0
    generation: Generation | None = None
    timing: Timing | None = None

    def computed(self, generation: Generation, timing: Timing | None) -> None:
        """Note that the reply is available and is about to be encoded."""
        self.generation, self.timing, self.encoding_s = generation, timing, time.monotonic()


class Tracer:
    def __init__(self, share: float, exporter: Exporter) -> None:
        """Start the thread that exports a share of the requests without a traceparent."""
        self._share, self._exporter = share, exporter
        # Number of requests until the next one without a traceparent is traced.
        self._left = self._skip()
        self._queue: deque[Trace] = deque()
        self._closing = threading.Event()
        # Dropped ones are counted by the request path, while the queue is full, and by the thread.
        self._counters = CounterBlock(COUNTERS)
        self._thread = threading.Thread(target=self._run, name="freshet-trace", daemon=True)
        self._thread.start()

    def begin(self, headers: Headers, protocol: str) -> Trace | None:
        """Return the trace of the next request, or None if it is not traced."""
        self._left -= 1
        parent = headers.get(TRACEPARENT)
        if parent is None and self._left > 0:
            return None
        match = CONTEXT.fullmatch(parent) if parent is not None else None
        if match is not None:
            trace_id, parent_id = int(match[1], 16), int(match[2], 16)
            if trace_id and parent_id:
                if not int(match[3], 16) & SAMPLED:
                    return None
                return Trace(trace_id, _id(), parent_id, time.monotonic(), protocol, "", request_id_of(headers))
        if self._left > 0:
            return None
        self._left = self._skip()
        return Trace(random.getrandbits(128) or 1, _id(), 0, time.monotonic(), protocol, "", request_id_of(headers))

    def _skip(self) -> int:
        """Return the number of requests until the next traced one, drawn so that each has the share's probability."""
        if self._share <= 0:
            return sys.maxsize
        return 1 if self._share >= 1 else 1 + int(math.log(1.0 - random.random()) / math.log1p(-self._share))

    def end(self, trace: Trace, status: int) -> None:
        """Note that the request has been answered with this status code, and queue its trace."""
        trace.status, trace.ended_s = status, time.monotonic()
        if len(self._queue) >= MAX_QUEUED:
            self._counters.cells[DROPPED] += 1
        else:
            self._queue.append(trace)

    def send(self, until_s: float) -> None:
        """Export the spans of traces that ended before a monotonic time; the thread's work."""
        traces = []
        while self._queue and self._queue[0].ended_s <= until_s:
            traces.append(self._queue.popleft())
        if not traces:
            return
        try:
            self._exporter.export(spans_of(traces), time.time() - time.monotonic())
            self._counters.cells[TRACED] += len(traces)
        except Exception as error:
            self._counters.cells[DROPPED] += len(traces)
            log.warning("could not send %d traces: %s", len(traces), type(error).__name__)

    def counted(self) -> Snapshot:
        return self._counters.snapshot()

    def close(self) -> None:
        """Send what is queued, within CLOSE_S."""
        self._closing.set()
        self._thread.join(CLOSE_S)
        self._exporter.close()

    def _run(self) -> None:
        while not self._closing.wait(EXPORT_INTERVAL_S):
            self.send(time.monotonic() - SETTLE_S)
        self.send(time.monotonic())


def spans_of(traces: Sequence[Trace], new_id: Callable[[], int] | None = None) -> list[TraceSpan]:
    """Return the spans of finished traces, and of the batches that computed them."""
    new_id = new_id or _id
    spans: list[TraceSpan] = []
    batches: dict[int, tuple[int, int, list[Trace]]] = {}
    for trace in traces:
        if trace.timing is not None:
            _, _, batch_traces = batches.setdefault(id(trace.timing), (new_id() << 64 | new_id(), new_id(), []))
            batch_traces.append(trace)
    for trace in traces:
        batch = batches.get(id(trace.timing))
        spans += _request_spans(trace, batch[:2] if batch else None, new_id)
    for trace_id, span_id, batch_traces in batches.values():
        timing = batch_traces[0].timing
        assert timing is not None, "a batch is one that has a timing"
        facts: dict[str, Value] = {
            "freshet.model": batch_traces[0].model, "freshet.requests": timing.requests, "freshet.rows": timing.rows,
        }  # fmt: skip
        links = tuple((trace.trace_id, trace.span_id) for trace in batch_traces)
        dense_s = timing.began_s + timing.sparse_s
        spans.append(TraceSpan("batch", trace_id, span_id, 0, timing.began_s, timing.ended_s, facts, links))
        spans.append(TraceSpan("sparse", trace_id, new_id(), span_id, timing.began_s, dense_s))
        spans.append(TraceSpan("dense", trace_id, new_id(), span_id, dense_s, dense_s + timing.dense_s))
    return spans


def _request_spans(trace: Trace, batch: tuple[int, int] | None, new_id: Callable[[], int]) -> list[TraceSpan]:
    facts: dict[str, Value] = {
        "http.response.status_code": trace.status, "freshet.protocol": trace.protocol, "freshet.model": trace.model,
    }  # fmt: skip
    if trace.request_id:
        facts["freshet.request_id"] = trace.request_id
    if trace.generation is not None:
        facts["freshet.generation"] = str(trace.generation)
    parts = [("parse", trace.began_s, trace.parsed_s)]
    if trace.timing is not None:
        parts.append(("queue", trace.parsed_s, max(trace.parsed_s, trace.timing.began_s)))
    parts.append(("encode", trace.encoding_s, trace.ended_s))
    spans = [
        TraceSpan(
            f"predict {trace.model}", trace.trace_id, trace.span_id, trace.parent_id, trace.began_s, trace.ended_s,
            facts, (batch,) if batch else (), server=True, failed=trace.status >= 500,
        )
    ]  # fmt: skip
    return spans + [
        TraceSpan(name, trace.trace_id, new_id(), trace.span_id, began_s, ended_s)
        for name, began_s, ended_s in parts
        if began_s and ended_s
    ]


def _id() -> int:
    return random.getrandbits(64) or 1
