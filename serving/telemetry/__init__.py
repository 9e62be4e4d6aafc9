"""Telemetry of a server: logs, metrics and traces.

observers          the access log, the tracer and the extensions' observers of one process
logs               the log and the access log
metrics            Prometheus metrics
trainer_metrics    metric families of trainers
judgement_metrics  metric families of judgements: deltas and versions that are held, released, rolled back
version_metrics    metric families of loaded versions
triton_statistics  per-model statistics in the form of Triton's statistics extension
tracing            traces of a sample of the requests
otel               span export to an OpenTelemetry collector
"""

__all__ = ["logs", "metrics", "observers", "tracing", "triton_statistics", "version_metrics"]
