"""Spans as an OpenTelemetry collector gets them."""

import base64
import http.server
import json
import threading

import pytest

from freshet_serving.processor.engine import Processor, ProcessorConfig
from freshet_serving.processor.errors import BadInput
from freshet_serving.serving.telemetry.otel import OtlpExporter
from freshet_serving.serving.telemetry.tracing import TraceSpan
from tests.e2e.servers import LiveServer
from tests.e2e.test_production_live import INPUTS
from tests.serving.test_server import fetch, running
from tests.support.extensions import needs
from tests.support.packages import write_package
from tests.support.waiting import until

SPANS = [
    TraceSpan("predict ctr", 7, 8, 9, 1.0, 2.5, {"freshet.model": "ctr", "n": 3}, ((5, 6),), server=True, failed=True),
    TraceSpan("parse", 7, 10, 8, 1.0, 1.5),
]


@pytest.fixture
def collector():
    """Its address, what it got, and what it answers."""
    got, answers = [], [200]

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            got.append((self.path, json.loads(self.rfile.read(int(self.headers["content-length"])))))
            self.send_response(answers[0])
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", got, answers
    server.shutdown()
    thread.join()
    server.server_close()


def spans_in(got):
    return [s for _, body in got for r in body["resourceSpans"] for scope in r["scopeSpans"] for s in scope["spans"]]


def test_spans_arrive_with_times_parents_and_links(collector):
    address, got, _ = collector
    exporter = OtlpExporter(address, "w1")
    exporter.export(SPANS, 1000.0)
    exporter.export(SPANS[1:], 1000.0)
    exporter.close()
    assert [path for path, _ in got] == ["/v1/traces"] * 2
    (resource,) = got[0][1]["resourceSpans"]
    assert resource["resource"]["attributes"] == [
        {"key": "service.name", "value": {"stringValue": "freshet"}},
        {"key": "service.instance.id", "value": {"stringValue": "w1"}},
    ]
    server, parse, again = spans_in(got)
    assert server["traceId"] == "0" * 31 + "7"
    assert (server["spanId"], server["parentSpanId"]) == ("0" * 15 + "8", "0" * 15 + "9")
    assert (server["startTimeUnixNano"], server["endTimeUnixNano"]) == ("1001000000000", "1002500000000")
    assert (server["kind"], server["status"]) == (2, {"code": 2})
    assert server["links"] == [{"traceId": "0" * 31 + "5", "spanId": "0" * 15 + "6"}]
    assert parse["parentSpanId"] == server["spanId"]
    assert again == parse


def test_every_field_is_defined_by_opentelemetry(collector):
    service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    json_format = pytest.importorskip("google.protobuf.json_format")
    address, got, _ = collector
    exporter = OtlpExporter(address, "w1")
    exporter.export(SPANS, 1000.0)
    exporter.close()
    document = got[0][1]
    for span in spans_in(got):
        for named in (span, *span.get("links", [])):
            # JSON of protobuf has bytes in base64; OTLP says that its ids are hexadecimal.
            for key in {"traceId", "spanId", "parentSpanId"} & named.keys():
                named[key] = base64.b64encode(bytes.fromhex(named[key])).decode()
    request = json_format.ParseDict(document, service.ExportTraceServiceRequest())
    (server, _) = request.resource_spans[0].scope_spans[0].spans
    assert (server.span_id, server.attributes[1].value.int_value) == ((8).to_bytes(8, "big"), 3)
    assert server.kind == server.SPAN_KIND_SERVER


def test_failing_collector_is_reported_and_retried(collector):
    address, got, answers = collector
    exporter = OtlpExporter(address, "w1")
    answers[0] = 503
    with pytest.raises(ConnectionError, match="the collector replied 503"):
        exporter.export(SPANS, 0.0)
    answers[0] = 200
    exporter.export(SPANS, 0.0)
    exporter.close()
    exporter.export(SPANS, 0.0)
    exporter.close()
    assert len(got) == 3
    gone = OtlpExporter("http://127.0.0.1:1", "w1")
    with pytest.raises(OSError):
        gone.export(SPANS, 0.0)


@pytest.mark.parametrize("endpoint", ["http://", "http://host:x", "http://:4318"])
def test_invalid_address_is_refused(endpoint):
    with pytest.raises(BadInput, match="trace_endpoint: expected an address such as"):
        OtlpExporter(endpoint, "w1")


TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
HEADERS = {"traceparent": TRACEPARENT, "x-request-id": "abc"}
BODY = json.dumps({"inputs": INPUTS}).encode()


def check_stages(got):
    spans = {span["name"]: span for span in spans_in(got)}
    assert spans.keys() == {"predict small", "parse", "queue", "encode", "batch", "sparse", "dense"}
    request = spans["predict small"]
    assert (request["traceId"], request["parentSpanId"]) == (TRACEPARENT[3:35], TRACEPARENT[36:52])
    assert spans["batch"]["links"] == [{"traceId": request["traceId"], "spanId": request["spanId"]}]


@pytest.mark.e2e
def test_server_alone_exports_stages_of_a_request_and_batch(collector, tmp_path):
    address, got, _ = collector
    write_package(tmp_path, users=range(6))
    config = ProcessorConfig(str(tmp_path), sessions=1)
    options = {"trace_endpoint": address, "trace_share": 0.0}
    with running(lambda _: Processor.initialize(config), **options) as (server, _, _):
        until(lambda: fetch(server.http_address, "/v1/models/small:predict", BODY)[0] == 200)
        assert fetch(server.http_address, "/v1/models/small:predict", BODY, HEADERS)[0] == 200
        until(lambda: got)
    check_stages(got)


@needs("admin")
@pytest.mark.e2e
def test_workers_export_stages_of_a_request_and_batch(collector, tmp_path):
    address, got, _ = collector
    write_package(tmp_path / "repository", users=range(6))
    options = ("--workers", "2", "--trace-endpoint", address, "--trace-share", "0", "--log-format", "json")
    options += ("--access-log-share", "1")
    with LiveServer(tmp_path / "repository", *options, log=tmp_path / "serve.log") as server:
        assert server.request("POST", "/v1/models/small:predict", BODY)[0] == 200
        status, found, _ = server.request("POST", "/v1/models/small:predict", BODY, HEADERS)
        assert (status, found["x-request-id"]) == (200, "abc")
        until(lambda: got)
    check_stages(got)
    lines = [line for line in (tmp_path / "serve.log").read_text().splitlines() if line.startswith("{")]
    access = [found for line in lines if (found := json.loads(line))["logger"] == "freshet.access"]
    assert [line["status"] for line in access if line["request_id"] == "abc"] == [200]
