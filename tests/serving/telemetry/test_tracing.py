"""Which requests are traced, and what becomes of them."""

import itertools
import threading

import pytest

from freshet_serving.processor.generation import Generation
from freshet_serving.processor.sessions.request import Timing
from freshet_serving.serving.telemetry import tracing as tracing_module
from freshet_serving.serving.telemetry.tracing import Trace, Tracer, spans_of
from tests.support.counters import counted
from tests.support.waiting import until

TRACE_ID, PARENT_ID = 0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7
TRACEPARENT = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
GIVE_UP_S = 30


class Sink:
    """serving.telemetry.tracing.Exporter."""

    def __init__(self):
        self.spans, self.closed, self.gate, self.fail = [], False, threading.Event(), False
        self.gate.set()

    def export(self, spans, unix_offset_s):
        self.gate.wait(GIVE_UP_S)
        if self.fail:
            raise ConnectionError("gone")
        self.spans += spans

    def close(self):
        self.closed = True


@pytest.fixture
def trails(monkeypatch):
    monkeypatch.setattr(tracing_module, "EXPORT_INTERVAL_S", 0.01)
    monkeypatch.setattr(tracing_module, "SETTLE_S", 0.0)
    opened = []

    def make(share=1.0):
        opened.append(Tracer(share, Sink()))
        return opened[-1]

    yield make
    for tracer in opened:
        tracer._exporter.gate.set()
        tracer.close()


def begin(tracer, headers):
    """What the request path asks."""
    return tracer.begin(headers, "kserve")


def timing(began_s=1.0):
    return Timing(began_s, began_s + 0.007, 0.002, 0.004, 2, 8)


def trace(number, timing=None, parent_id=0, status=200):
    """A request that came at 0.5 s, was read by 0.6 s and answered at 1.2 s."""
    made = Trace(100 + number, 200 + number, parent_id, 0.5, "kserve", "ctr", "", 0.6, 1.1, 1.2, status)
    if timing is not None:
        made.generation, made.timing = Generation(3, 17), timing
    return made


def by_name(spans):
    return {span.name: span for span in spans}


def test_traceparent_of_the_client_decides_about_tracing(trails):
    tracer = trails(share=0.0)
    found = begin(tracer, {b"traceparent": TRACEPARENT})
    assert (found.trace_id, found.parent_id) == (TRACE_ID, PARENT_ID)
    assert found.span_id not in (0, PARENT_ID)
    assert begin(trails(share=1.0), {b"traceparent": TRACEPARENT[:-2] + b"00"}) is None


@pytest.mark.parametrize(
    "header", [b"", b"00-0-0-01", b"01" + TRACEPARENT[2:], TRACEPARENT.upper(), b"00-" + b"0" * 32 + TRACEPARENT[35:]]
)
def test_malformed_traceparent_is_ignored(trails, header):
    assert begin(trails(share=0.0), {b"traceparent": header}) is None
    assert begin(trails(share=1.0), {b"traceparent": header}).parent_id == 0


def test_share_of_the_other_requests_is_traced(trails):
    tracer = trails(share=0.1)
    found = sum(begin(tracer, {}) is not None for _ in range(10_000))
    assert 800 < found < 1200


def test_request_has_its_stages_and_a_link_to_its_batch():
    made = timing()
    spans = by_name(spans_of([trace(1, made, parent_id=9)], itertools.count(1000).__next__))
    server = spans["predict ctr"]
    assert (server.trace_id, server.span_id, server.parent_id) == (101, 201, 9)
    assert server.server
    assert server.attributes["http.response.status_code"] == 200
    assert server.attributes["freshet.generation"] == "3.17"
    parts = {name: (spans[name].began_s, spans[name].ended_s) for name in ("parse", "queue", "encode")}
    assert parts == {"parse": (0.5, 0.6), "queue": (0.6, 1.0), "encode": (1.1, 1.2)}
    assert {spans[name].parent_id for name in parts} == {201}
    batch = spans["batch"]
    assert server.links == ((batch.trace_id, batch.span_id),)
    assert batch.links == ((101, 201),)
    assert batch.attributes == {"freshet.model": "ctr", "freshet.requests": 2, "freshet.rows": 8}
    assert (spans["sparse"].parent_id, spans["dense"].parent_id) == (batch.span_id, batch.span_id)
    assert spans["dense"].ended_s == pytest.approx(1.006)


def test_batch_is_one_span_linking_all_its_requests():
    shared = timing()
    spans = spans_of([trace(1, shared), trace(2, shared), trace(3, timing())])
    batches = [span for span in spans if span.name == "batch"]
    assert [span.links for span in batches] == [((101, 201), (102, 202)), ((103, 203),)]
    assert len({span.span_id for span in spans}) == len(spans)


def test_refused_request_has_the_stages_it_reached():
    refused = Trace(1, 2, 0, 0.5, "kserve", "ctr", "", 0.0, 0.0, 0.7, 429)
    (span,) = spans_of([refused])
    assert (span.name, span.failed) == ("predict ctr", False)
    (span,) = spans_of([Trace(1, 2, 0, 0.5, "kserve", "ctr", "abc", 0.0, 0.0, 0.7, 503)])
    assert span.failed
    assert span.attributes["freshet.request_id"] == "abc"


def test_traces_are_sent_and_counted(trails):
    tracer = trails()
    tracer.end(begin(tracer, {}), 200)
    until(lambda: counted(tracer)["traced"] == 1)
    assert counted(tracer) == {"traced": 1, "dropped": 0}
    assert by_name(tracer._exporter.spans).keys() == {"predict "}


def test_full_queue_or_missing_collector_loses_only_traces(trails, monkeypatch, caplog):
    monkeypatch.setattr(tracing_module, "MAX_QUEUED", 2)
    tracer = trails()
    tracer._exporter.gate.clear()
    tracer._exporter.fail = True
    tracer.end(begin(tracer, {}), 200)
    until(lambda: not tracer._queue)
    for _ in range(5):
        tracer.end(begin(tracer, {}), 200)
    assert counted(tracer)["dropped"] == 3
    tracer._exporter.gate.set()
    until(lambda: counted(tracer)["dropped"] == 6)
    assert "traces: ConnectionError" in caplog.text


def test_remaining_traces_are_sent_at_the_end(trails, monkeypatch):
    monkeypatch.setattr(tracing_module, "EXPORT_INTERVAL_S", 3600.0)
    tracer = trails()
    tracer.end(begin(tracer, {}), 200)
    tracer.close()
    assert counted(tracer)["traced"] == 1
    assert tracer._exporter.closed
