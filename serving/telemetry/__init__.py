"""Telemetry, what a server tells of itself: logs, metrics, traces, and a sample of its requests.

observers          what one process is watched by, as its options say
logs               the log and the access log
metrics            Prometheus text
live_samples       what the server does now, and did in the last five minutes
mirror_metrics     the metric families of a repository in an object store
version_metrics    the metric families of loaded versions
triton_statistics  what Triton's statistics extension says of each model
tracing            traces of a sample of the requests
otel               spans to an OpenTelemetry collector
request_recorder   a sample of the requests, as Parquet
recorded_columns   requests as its columns, and back
recorded_request   one of them, found by its id
"""

__all__ = [
    "live_samples",
    "logs",
    "metrics",
    "observers",
    "recorded_request",
    "request_recorder",
    "tracing",
    "triton_statistics",
]
