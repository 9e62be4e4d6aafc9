"""Options of `freshet serve`: command line, then FRESHET_... variables, then the TOML file, then defaults.

The dataclass is the only list of options: the command line, the environment and the file are read against its
fields.
"""

from __future__ import annotations

import sys
import tempfile
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from processor.errors import BadInput
from processor.tables.budgets import Budgets
from processor.tables.remote.settings import RemoteConfig
from processor.versions.policy import ModelPolicy
from serving.admin.authorization import is_loopback
from serving.front.model_control import MODES
from serving.telemetry.logs import FORMATS

ENV_PREFIX = "FRESHET_"
MAX_CONFIG_NBYTES = 1 << 20
COMPUTES = ("auto", "inline", "threads")
POLICIES = ("shared", "round-robin", "mod", "least-loaded")
SECTIONS = ("groups", "model")
LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True)
class ServeConfig:
    """Checked options. `given` names those that the user set anywhere. Units are in the names."""

    repository: str
    host: str = "127.0.0.1"
    http_port: int = 8501
    grpc_port: int = 8500
    admin_host: str = "127.0.0.1"
    admin_port: int = 8502
    admin_token: str = field(default="", repr=False)
    sessions: int = 0
    workers: int = 1
    compute: str = "auto"
    threads_per_session: int = 1
    device_stages: int = 0
    session_cpus: str = ""
    policy: str = "shared"
    batch_window_us: float = 0.0
    default_timeout_ms: float = 0.0
    groups: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    models: list[str] = field(default_factory=list)
    max_body_bytes: int = 64 << 20
    drain_s: float = 0.0
    shutdown_timeout_s: float = 30.0
    poll_interval_s: float = 0.05
    log_level: str = "info"
    log_format: str = "text"
    access_log_share: float = 0.0
    trace_endpoint: str = ""
    trace_share: float = 0.01
    undo_depth: int = 16
    max_queue_rows: int = 65536
    table_memory: list[str] = field(default_factory=list)
    scratch: str = ""
    remote_url: str = field(default="", repr=False)
    remote_tables: list[str] = field(default_factory=list)
    remote_timeout_s: float = 0.05
    remote_on_error: str = "default"
    remote_cache_rows: int = 1_000_000
    record: str = ""
    record_share: float = 0.01
    record_max_bytes: int = 1 << 30
    model_control: str = "none"
    shared_memory: str = "off"
    given: frozenset[str] = field(default=frozenset(), repr=False)

    def __post_init__(self) -> None:
        for name in ("http_port", "grpc_port", "admin_port"):
            _want(
                0 <= getattr(self, name) <= 65535,
                f"{name}: a port from 0 to 65535 wanted, got {getattr(self, name)}",
            )
        _want(bool(self.repository), "repository: a folder wanted, got nothing")
        _want(bool(self.host) and bool(self.admin_host), "host, admin_host: an address wanted, got nothing")
        _want(0 <= self.sessions <= 1024, f"sessions: 0 (one per core) to 1024 wanted, got {self.sessions}")
        _want(0 <= self.workers <= 256, f"workers: 0 (one per core) to 256 wanted, got {self.workers}")
        _want(self.workers == 1 or sys.platform == "linux", f"workers: 1 wanted on this system, got {self.workers}")
        _want(
            self.compute in COMPUTES,
            f"compute: one of {', '.join(COMPUTES)} wanted, got {self.compute[:40]!r}",
        )
        _want(
            1 <= self.threads_per_session <= 256,
            f"threads_per_session: 1 to 256 wanted, got {self.threads_per_session}",
        )
        _want(0 <= self.device_stages <= 64, f"device_stages: 0 (none) to 64 wanted, got {self.device_stages}")
        _want(
            self.compute != "inline" or not self.device_stages,
            "compute: auto or threads wanted with device_stages, got 'inline'",
        )
        _want(self.policy in POLICIES, f"policy: one of {', '.join(POLICIES)} wanted, got {self.policy[:40]!r}")
        _want(0 <= self.batch_window_us <= 1e7, f"batch_window_us: 0 to 10000000 wanted, got {self.batch_window_us:g}")
        _want(
            0 <= self.default_timeout_ms <= 3.6e6,
            f"default_timeout_ms: 0 (none) to 3600000 wanted, got {self.default_timeout_ms:g}",
        )
        _want(
            self.compute != "inline" or not self.groups,
            "compute: auto or threads wanted with groups, got 'inline'",
        )
        _want(
            1 <= self.max_body_bytes <= 1 << 32,
            f"max_body_bytes: 1 to {1 << 32} wanted, got {self.max_body_bytes}",
        )
        _want(0 <= self.drain_s <= 3600, f"drain_s: 0 to 3600 wanted, got {self.drain_s}")
        _want(
            0 < self.shutdown_timeout_s <= 3600,
            f"shutdown_timeout_s: above 0, to 3600, wanted, got {self.shutdown_timeout_s}",
        )
        _want(
            0.001 <= self.poll_interval_s <= 3600,
            f"poll_interval_s: 0.001 to 3600 wanted, got {self.poll_interval_s}",
        )
        _want(
            self.log_level in LOG_LEVELS,
            f"log_level: one of {', '.join(LOG_LEVELS)} wanted, got {self.log_level[:40]!r}",
        )
        _want(0 <= self.undo_depth <= 65536, f"undo_depth: 0 to 65536 wanted, got {self.undo_depth}")
        _want(
            1 <= self.max_queue_rows <= 1 << 31,
            f"max_queue_rows: 1 to {1 << 31} wanted, got {self.max_queue_rows}",
        )
        _want(
            self.admin_token.isascii() and self.admin_token.isprintable() and " " not in self.admin_token,
            "admin_token: printable ASCII without spaces wanted",
        )
        _want(
            bool(self.admin_token) or is_loopback(self.admin_host),
            f"admin_host: without an admin_token a loopback address is wanted, got {self.admin_host[:64]!r}",
        )
        _want(
            self.remote() is None or self.compute != "inline",
            "compute: threads or auto wanted with remote tables, got inline",
        )

        _want(
            self.model_control in MODES,
            f"model_control: one of {', '.join(MODES)} wanted, got {self.model_control[:40]!r}",
        )
        _want(
            self.shared_memory == "off" or (self.shared_memory == "on" and self.workers == 1),
            f"shared_memory: off, or with one worker on, wanted, got {self.shared_memory[:40]!r}",
        )
        _want(
            self.log_format in FORMATS,
            f"log_format: one of {', '.join(FORMATS)} wanted, got {self.log_format[:40]!r}",
        )
        for name in ("access_log_share", "trace_share"):
            _want(0 <= getattr(self, name) <= 1, f"{name}: 0 to 1 wanted, got {getattr(self, name):g}")
        _want(
            not self.trace_endpoint or self.trace_endpoint.startswith(("http://", "https://")),
            f"trace_endpoint: an http:// or https:// address wanted, got {self.trace_endpoint[:64]!r}",
        )
        _want(0 < self.record_share <= 1, f"record_share: above 0, to 1, wanted, got {self.record_share:g}")
        _want(
            1 << 20 <= self.record_max_bytes <= 1 << 50,
            f"record_max_bytes: {1 << 20} to {1 << 50} wanted, got {self.record_max_bytes}",
        )
        self.budgets()
        self.policies()

    def watching(self) -> dict[str, Any]:
        """What serving.telemetry.observers makes access log and traces of, JSON-able."""
        names = ("access_log_share", "trace_endpoint", "trace_share")
        return {name: getattr(self, name) for name in names}

    def recording(self, processes: int) -> dict[str, Any] | None:
        """What a Recorder of one of so many processes is made of, but for its name; None where nothing is recorded."""
        if not self.record:
            return None
        return {"folder": self.record, "share": self.record_share, "max_nbytes": self.record_max_bytes // processes}

    def policies(self) -> dict[str, ModelPolicy]:
        """[model.NAME] sections; raises BadInput."""
        for name in self.model:
            _want(not self.models or name in self.models, f"model.{name[:64]}: not among models")
        return {name: ModelPolicy.parse(raw, f"model.{name[:64]}") for name, raw in self.model.items()}

    def budgets(self) -> Budgets:
        """Memory for the rows of tables; raises BadInput."""
        return Budgets.parse(self.table_memory, self.scratch or tempfile.gettempdir())

    def remote(self) -> RemoteConfig | None:
        """Which tables are in a row store, None if none are; raises BadInput."""
        if not self.remote_url and not self.remote_tables:
            return None
        return RemoteConfig(
            self.remote_url, self.remote_tables, self.remote_timeout_s, self.remote_on_error, self.remote_cache_rows
        )

    @property
    def default_timeout_s(self) -> float | None:
        """How long a request may take that does not say so itself."""
        return self.default_timeout_ms / 1e3 or None

    @property
    def _waits(self) -> bool:
        """Whether sessions wait for something else than the queue."""
        return self.remote() is not None or self.device_stages > 0

    def session_options(self, workers: int, cores: int) -> dict[str, Any]:
        """processor.sessions.placement.SessionConfig's fields, JSON-able. workers: processes that answer; cores: of the
        machine.

        compute = "auto" is inline where a session's thread would only share a core with the event loop, unless several
        sessions a process or device stages were asked for, or a session waits for a row store: that must not stop the
        loop.
        """
        alone = (workers > 1 or cores == 1) and self.sessions <= 1
        inline = self.compute == "inline" or (self.compute == "auto" and alone and not self._waits)
        return {
            "sessions": self.sessions or (1 if workers > 1 and not self.groups else 0),
            "threads_per_session": self.threads_per_session,
            "cpus": self.session_cpus,
            "policy": self.policy,
            "batch_window_us": self.batch_window_us,
            "max_queue_rows": self.max_queue_rows,
            "compute": "inline" if inline and not self.groups else "threads",
            "device_stages": self.device_stages,
            "groups": self.groups,
        }


def load_config(options: Mapping[str, Any], environ: Mapping[str, str], file: str | None = None) -> ServeConfig:
    """The configuration from all four sources; raises BadInput with one line that names the source and the
    key.

    options: by field name, None where the command line is silent. file: a TOML file, or None for
    $FRESHET_CONFIG.
    """
    values = {key: value for key, value in options.items() if value is not None}
    for key, parse in _PARSERS.items():
        text = environ.get(ENV_PREFIX + key.upper())
        if key not in values and text is not None:
            values[key] = _parsed(parse, text, ENV_PREFIX + key.upper())
    path = file or environ.get(ENV_PREFIX + "CONFIG")
    if path:
        for key, value in _read_toml(path).items():
            values.setdefault(key, value)
    if "repository" not in values:
        raise BadInput("repository: wanted (--repository, FRESHET_REPOSITORY or the configuration file)")
    return ServeConfig(**values, given=frozenset(values))


def split_names(text: str) -> list[str]:
    """Comma-separated names; empty ones are dropped."""
    return [name.strip() for name in text.split(",") if name.strip()]


def _read_toml(path: str) -> dict[str, Any]:
    try:
        data = Path(path).read_bytes()
        if len(data) > MAX_CONFIG_NBYTES:
            raise BadInput(f"config: at most {MAX_CONFIG_NBYTES} bytes wanted, got {len(data)}")
        document = tomllib.loads(data.decode())
    except OSError as error:
        raise BadInput(f"config: {path}: {error.strerror or 'cannot be read'}") from None
    except ValueError as error:
        raise BadInput(f"config: {path}: not valid TOML: {error}") from None
    for key, value in document.items():
        if key not in (*_PARSERS, *SECTIONS):
            raise BadInput(f"config: unknown key {key[:64]!r}; known: {', '.join((*_PARSERS, *SECTIONS))}")
        if key in SECTIONS:
            if type(value) is not dict or any(type(section) is not dict for section in value.values()):
                raise BadInput(f"config: {key}: sections such as [{key}.name] wanted")
            if key == "groups":
                _check_groups(value)
            continue
        wanted = _KINDS[key]
        if wanted is float and type(value) is int:
            document[key] = value = float(value)
        if type(value) is not wanted or (wanted is list and any(type(v) is not str for v in value)):
            wanted_name = "list of strings" if wanted is list else wanted.__name__
            raise BadInput(f"config: {key}: {wanted_name} wanted, got {type(value).__name__}")
    return document


def _check_groups(groups: Any) -> None:
    """[groups.NAME] sections: their keys and types; what they say together is checked when the groups are made."""
    known: dict[str, tuple[type, ...]] = {
        "models": (list,), "sessions": (int,), "threads_per_session": (int,), "cpus": (str,), "policy": (str,),
        "batch_window_us": (int, float), "max_queue_rows": (int,), "device_stages": (int,),
    }  # fmt: skip
    for name, group in groups.items():
        for key, value in group.items():
            where = f"config: groups.{name[:64]}.{key[:64]}"
            if key not in known:
                raise BadInput(f"{where}: unknown key; known: {', '.join(known)}")
            if type(value) not in known[key] or (key == "models" and any(type(v) is not str for v in value)):
                wanted = "list of strings" if key == "models" else known[key][0].__name__
                raise BadInput(f"{where}: {wanted} wanted, got {type(value).__name__}")


def _parsed(parse: Callable[[str], Any], text: str, name: str) -> Any:
    try:
        return parse(text)
    except ValueError:
        raise BadInput(f"{name}: {parse.__name__} wanted, got {text[:64]!r}") from None


def _want(condition: bool, message: str) -> None:
    if not condition:
        raise BadInput(message)


_KINDS: dict[str, type] = {
    f.name: {"str": str, "int": int, "float": float, "list[str]": list}[str(f.type)]
    for f in fields(ServeConfig)
    if f.name not in ("given", *SECTIONS)
}
_PARSERS: dict[str, Callable[[str], Any]] = {key: split_names if kind is list else kind for key, kind in _KINDS.items()}
