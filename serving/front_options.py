"""Options of the data ports of a process: limits of requests, access, shutdown, logs, traces and recordings."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from freshet_serving.processor.features.limits import RequestLimits, request_option
from freshet_serving.processor.options import Values, above, between, one_of, option

PORTS, ACCESS, LIFE, WATCHING = "Ports", "Access", "Start and end", "Watching"
LOG_LEVELS = ("debug", "info", "warning", "error")
SHARE = between(0, 1)
port_option, access_option = partial(option, heading=PORTS), partial(option, heading=ACCESS)
life_option, watching_option = partial(option, heading=LIFE), partial(option, heading=WATCHING)


@dataclass(frozen=True, kw_only=True)
class FrontendOptions(RequestLimits):
    """Options that every part of the data ports receives whole; workers receive them as JSON."""

    # Freshet's own.
    version: str = ""
    default_timeout_ms: float = request_option(
        0.0, "Deadline of requests that set none", between(0, 3_600_000, "none"), unit="milliseconds"
    )
    shutdown_timeout_s: float = life_option(
        30.0, "Time limit of shutdown; of requests in flight", above(0, 3600), unit="seconds"
    )
    idle_timeout_s: float = port_option(
        620.0,
        "Close connections of the data ports that are idle for so long; let no proxy keep one for longer",
        above(0, 86_400),
        unit="seconds",
        folded=True,
    )
    model_control: str = request_option(
        "none", "Let clients load and unload models; on the data ports", one_of("none", "explicit")
    )
    shared_memory: str = request_option(
        "off",
        "Allow clients to send tensors in system shared memory; requires one worker",
        one_of("off", "on"),
        folded=True,
    )
    admin_token: str = access_option(
        "",
        "Bearer token of the admin port; prefer FRESHET_ADMIN_TOKEN",
        Values("printable ASCII without spaces", lambda t: t.isascii() and t.isprintable() and " " not in t),
        repr=False,
    )
    api_keys: str = access_option(
        "", "File of API keys; created by freshet key, reloaded when it changes", empty="no key required"
    )
    tls_cert: str = access_option(
        "", "Certificate chain (PEM); enables TLS on every port; reloaded when it changes", empty="no TLS"
    )
    tls_key: str = access_option("", "Private key of the certificate; PEM, no password, readable by its owner only")
    tls_client_ca: str = access_option(
        "",
        "CA certificates (PEM) that must have signed the client certificates",
        folded=True,
        empty="no client certificate required",
    )
    log_level: str = watching_option("info", "Minimum level of the log; on stderr", one_of(*LOG_LEVELS))
    log_format: str = watching_option(
        "text", "Format of the log; json writes one object per line", one_of("text", "json")
    )
    access_log_share: float = watching_option(0.0, "Share of requests in the access log", SHARE)
    trace_endpoint: str = watching_option(
        "",
        "OpenTelemetry collector; OTLP over HTTP",
        Values("an http:// or https:// address", lambda url: not url or url.startswith(("http://", "https://"))),
    )
    trace_share: float = watching_option(0.01, "Share of requests without a traceparent to trace", SHARE, folded=True)
    record: str = watching_option("", "Folder for a sample of the requests; as Parquet")
    record_share: float = watching_option(0.01, "Share of requests to record", above(0, 1), folded=True)
    record_max_bytes: int = watching_option(
        1 << 30,
        "Maximum disk use of recorded requests; the oldest are removed first",
        between(1 << 20, 1 << 50),
        unit="bytes",
        folded=True,
    )

    @property
    def credentials(self) -> dict[str, str]:
        """The files with keys and certificates, by option; "" if not set."""
        return {name: getattr(self, name) for name in ("api_keys", "tls_cert", "tls_key", "tls_client_ca")}

    @property
    def default_timeout_s(self) -> float | None:
        """Time limit of a request that has none of its own; None for no limit."""
        return self.default_timeout_ms / 1e3 or None
