"""Options of the data ports of a process: limits of requests, access, shutdown, logs, traces and recordings."""

from __future__ import annotations

from dataclasses import dataclass, field

from freshet_serving.processor.features.limits import REQUESTS, RequestLimits
from freshet_serving.processor.options import Values, above, between, one_of, option

PORTS, ACCESS, LIFE, WATCHING = "Ports", "Access", "Start and end", "Watching"
LOG_LEVELS = ("debug", "info", "warning", "error")
SHARE = between(0, 1)


@dataclass(frozen=True, kw_only=True)
class FrontendOptions(RequestLimits):
    """Options that every part of the data ports receives whole; workers receive them as JSON.

    Attributes:
        version: Freshet's own version.
    """

    version: str = ""
    max_inflight_body_bytes: int = field(
        default=128 << 20,
        metadata=option(
            "Largest total of request bodies in memory, in each process; max_body_bytes where that is larger",
            between(1 << 20, 1 << 40),
            unit="bytes",
            heading=REQUESTS,
            folded=True,
        ),
    )
    default_timeout_ms: float = field(
        default=0.0,
        metadata=option(
            "Deadline of requests that bring none",
            between(0, 3_600_000, "none"),
            unit="milliseconds",
            heading=REQUESTS,
        ),
    )
    shutdown_timeout_s: float = field(
        default=30.0,
        metadata=option("How long requests in flight get to finish", above(0, 3600), unit="seconds", heading=LIFE),
    )
    model_control: str = field(
        default="none",
        metadata=option("Whether data ports may load and unload models", one_of("none", "explicit"), heading=REQUESTS),
    )
    shared_memory: str = field(
        default="off",
        metadata=option(
            "Whether clients may send tensors in system shared memory; with one worker only",
            one_of("off", "on"),
            heading=REQUESTS,
            folded=True,
        ),
    )
    admin_token: str = field(
        default="",
        repr=False,
        metadata=option(
            "Bearer token of the admin port; better set as FRESHET_ADMIN_TOKEN",
            Values("printable ASCII without spaces", lambda t: t.isascii() and t.isprintable() and " " not in t),
            heading=ACCESS,
        ),
    )
    api_keys: str = field(
        default="",
        metadata=option(
            "File of API keys, made by freshet key; reloaded when it changes",
            heading=ACCESS,
            empty="no key is asked for",
        ),
    )
    tls_cert: str = field(
        default="",
        metadata=option(
            "Certificate chain, PEM: every port speaks TLS; reloaded when it changes",
            heading=ACCESS,
            empty="no TLS",
        ),
    )
    tls_key: str = field(
        default="", metadata=option("Its private key, PEM without a password, for nobody else to read", heading=ACCESS)
    )
    tls_client_ca: str = field(
        default="",
        metadata=option(
            "Certificates, PEM: a client has to bring one that one of these has signed",
            heading=ACCESS,
            folded=True,
            empty="none is asked for",
        ),
    )
    log_level: str = field(
        default="info", metadata=option("What is logged, on standard error", one_of(*LOG_LEVELS), heading=WATCHING)
    )
    log_format: str = field(
        default="text",
        metadata=option("How it is logged: json is one object a line", one_of("text", "json"), heading=WATCHING),
    )
    access_log_share: float = field(
        default=0.0, metadata=option("Share of the requests to log, one line each", SHARE, heading=WATCHING)
    )
    trace_endpoint: str = field(
        default="",
        metadata=option(
            "OpenTelemetry collector, OTLP over HTTP",
            Values("an http:// or https:// address", lambda url: not url or url.startswith(("http://", "https://"))),
            heading=WATCHING,
        ),
    )
    trace_share: float = field(
        default=0.01,
        metadata=option(
            "Share of the requests to trace that bring no traceparent", SHARE, heading=WATCHING, folded=True
        ),
    )
    record: str = field(
        default="", metadata=option("Folder for a sample of the requests, as Parquet", heading=WATCHING)
    )
    record_share: float = field(
        default=0.01, metadata=option("Share of the requests to record", above(0, 1), heading=WATCHING, folded=True)
    )
    record_max_bytes: int = field(
        default=1 << 30,
        metadata=option(
            "Disk for recorded requests; the oldest go first",
            between(1 << 20, 1 << 50),
            unit="bytes",
            heading=WATCHING,
            folded=True,
        ),
    )

    @property
    def credentials(self) -> dict[str, str]:
        """The files with keys and certificates, by option; "" for those that are not given."""
        return {name: getattr(self, name) for name in ("api_keys", "tls_cert", "tls_key", "tls_client_ca")}

    @property
    def default_timeout_s(self) -> float | None:
        """Time limit of a request that has none of its own; None for no limit."""
        return self.default_timeout_ms / 1e3 or None
