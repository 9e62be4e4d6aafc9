"""Spans as an OpenTelemetry collector gets them."""

import http.server
import threading

import pytest

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="traces need the otel extra")
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from serving.otel import OtlpExporter
from serving.trail import Span


@pytest.fixture
def collector():
    """Its address, and the requests that it got."""
    got = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            got.append((self.path, ExportTraceServiceRequest.FromString(body)))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", got
    server.shutdown()
    thread.join()
    server.server_close()


def test_spans_arrive_with_their_times_parents_and_links(collector):
    address, got = collector
    exporter = OtlpExporter(address, "w1")
    spans = [
        Span("predict ctr", 7, 8, 9, 1.0, 2.5, {"freshet.model": "ctr"}, ((5, 6),), True, server=True, failed=True),
        Span("parse", 7, 10, 8, 1.0, 1.5),
    ]
    exporter.export(spans, 1000.0)
    exporter.close()
    ((path, request),) = got
    assert path == "/v1/traces"
    (resource,) = request.resource_spans
    facts = {a.key: a.value.string_value for a in resource.resource.attributes}
    assert (facts["service.name"], facts["service.instance.id"]) == ("freshet", "w1")
    server, parse = resource.scope_spans[0].spans
    assert (server.trace_id, server.parent_span_id) == ((7).to_bytes(16, "big"), (9).to_bytes(8, "big"))
    assert (server.start_time_unix_nano, server.end_time_unix_nano) == (1001 * 10**9, 1002_500_000_000)
    assert (server.kind, server.status.code) == (server.SPAN_KIND_SERVER, 2)
    assert server.links[0].span_id == (6).to_bytes(8, "big")
    assert parse.parent_span_id == server.span_id
