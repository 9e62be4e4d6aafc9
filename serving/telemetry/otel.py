"""Export spans to an OpenTelemetry collector: OTLP over HTTP in JSON, which every collector accepts on port 4318.

orjson encodes plain dictionaries. The SDK's own spans and encoder made a traced request cost four times as much, and
tracing one in a hundred cost up to 8 % of the throughput of small requests; they also required four packages.
"""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import orjson

from freshet_serving.processor.errors import BadInput
from freshet_serving.serving.telemetry.tracing import TraceSpan, Value

PATH = "/v1/traces"
TIMEOUT_S = 5.0
INTERNAL, SERVER = 1, 2
ERROR = {"code": 2}
TAKEN = (200, 202)


class OtlpExporter:
    """An Exporter (serving.telemetry.tracing) with one persistent connection. Used by one thread."""

    def __init__(self, endpoint: str, instance: str) -> None:
        """Prepare the connection to an address such as http://127.0.0.1:4318. Raises BadInput if it is invalid."""
        address = urlsplit(endpoint)
        try:
            host, port = address.hostname, address.port
        except ValueError:
            host = port = None
        if not host:
            raise BadInput(f"trace_endpoint: expected an address such as http://host:4318, got {endpoint[:64]!r}")
        self._connection = (
            http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=ssl.create_default_context())
            if address.scheme == "https"
            else http.client.HTTPConnection(host, port or 4318, timeout=TIMEOUT_S)
        )
        self._path = address.path.rstrip("/") + PATH
        facts = {"service.name": "freshet", "service.instance.id": instance}
        self._resource = {"attributes": _attributes(facts)}

    def export(self, spans: Sequence[TraceSpan], unix_offset_s: float) -> None:
        """Send spans in one request; the offset is Unix time minus monotonic time.

        Raises OSError if the collector cannot be reached or refuses, http.client.HTTPException for a malformed reply.
        """
        body = orjson.dumps(
            {
                "resourceSpans": [
                    {
                        "resource": self._resource,
                        "scopeSpans": [
                            {"scope": {"name": "freshet"}, "spans": [_span(s, unix_offset_s) for s in spans]}
                        ],
                    }
                ]
            }
        )
        try:
            self._connection.request("POST", self._path, body, {"content-type": "application/json"})
            reply = self._connection.getresponse()
            reply.read()
        except (OSError, http.client.HTTPException):
            # The next call connects again.
            self._connection.close()
            raise
        if reply.status not in TAKEN:
            raise ConnectionError(f"the collector replied {reply.status}")

    def close(self) -> None:
        self._connection.close()


def _span(span: TraceSpan, unix_offset_s: float) -> dict[str, Any]:
    """Return a span in OTLP's JSON form, in which ids are hexadecimal and 64-bit numbers are strings."""
    fields: dict[str, Any] = {
        "traceId": f"{span.trace_id:032x}",
        "spanId": f"{span.span_id:016x}",
        "name": span.name,
        "kind": SERVER if span.server else INTERNAL,
        "startTimeUnixNano": str(int((span.began_s + unix_offset_s) * 1e9)),
        "endTimeUnixNano": str(int((span.ended_s + unix_offset_s) * 1e9)),
    }
    if span.parent_id:
        fields["parentSpanId"] = f"{span.parent_id:016x}"
    if span.attributes:
        fields["attributes"] = _attributes(span.attributes)
    if span.links:
        fields["links"] = [{"traceId": f"{trace:032x}", "spanId": f"{of:016x}"} for trace, of in span.links]
    if span.failed:
        fields["status"] = ERROR
    return fields


def _attributes(facts: Mapping[str, Value]) -> list[dict[str, Any]]:
    return [
        {"key": key, "value": {"stringValue": value} if type(value) is str else {"intValue": str(value)}}
        for key, value in facts.items()
    ]
