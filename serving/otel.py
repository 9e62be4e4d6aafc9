"""Spans to an OpenTelemetry collector, by OTLP over HTTP. Needs the extra "otel"; imported only where traces are on."""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from serving.trail import Span

SAMPLED = TraceFlags(TraceFlags.SAMPLED)
TIMEOUT_S = 5
SCOPE = InstrumentationScope("freshet")


class OtlpExporter:
    """serving.trail.Exporter."""

    def __init__(self, endpoint: str, instance: str) -> None:
        """endpoint: of the collector, such as http://127.0.0.1:4318. instance: which process this is."""
        self._exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces", timeout=TIMEOUT_S)
        self._resource = Resource.create({"service.name": "freshet", "service.instance.id": instance})

    def export(self, spans: Sequence[Span], unix_offset_s: float) -> None:
        """See Exporter."""
        made = [self._span(span, unix_offset_s) for span in spans]
        if self._exporter.export(made) is not SpanExportResult.SUCCESS:
            raise ConnectionError("the collector did not take the spans")

    def close(self) -> None:
        self._exporter.shutdown()

    def _span(self, span: Span, unix_offset_s: float) -> ReadableSpan:
        parent = SpanContext(span.trace_id, span.parent_id, span.remote, SAMPLED) if span.parent_id else None
        return ReadableSpan(
            name=span.name,
            context=SpanContext(span.trace_id, span.span_id, False, SAMPLED),
            parent=parent,
            resource=self._resource,
            attributes=span.attributes,
            links=[Link(SpanContext(trace_id, span_id, False, SAMPLED)) for trace_id, span_id in span.links],
            kind=SpanKind.SERVER if span.server else SpanKind.INTERNAL,
            status=Status(StatusCode.ERROR if span.failed else StatusCode.UNSET),
            start_time=int((span.began_s + unix_offset_s) * 1e9),
            end_time=int((span.ended_s + unix_offset_s) * 1e9),
            instrumentation_scope=SCOPE,
        )
