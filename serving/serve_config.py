"""Options of `freshet serve`: command line, then FRESHET_... variables, then the TOML file, then defaults.

The fields of ServeConfig are the only list of options, and their metadata (processor.options) the only description: the
command line, the environment, the file and docs/reference/options.md are derived from them. Options of the data ports
and of the sessions are defined where they are passed on from: serving.front_options,
processor.sessions.session_options, processor.features.limits.
"""

from __future__ import annotations

import sys
import tempfile
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

from freshet_serving.processor.errors import BadInput, nearest_file, option_hint
from freshet_serving.processor.features.input_lookup import named_addresses, parse_stores
from freshet_serving.processor.features.limits import REQUESTS
from freshet_serving.processor.generation import GUARD_MODES, OFF, ON, UNDO_DEPTH
from freshet_serving.processor.options import (
    TYPE_NAMES,
    Values,
    between,
    check,
    one_of,
    option,
    options_of,
    required,
    type_name,
)
from freshet_serving.processor.ports import ENGINE, missing
from freshet_serving.processor.repository import NO_KEYS, Keyring
from freshet_serving.processor.sessions.session_options import COMPUTES, COMPUTING, GroupConfig, ProcessOptions
from freshet_serving.processor.tables.budgets import Budgets
from freshet_serving.serving.front_options import (
    ACCESS,
    LIFE,
    PORTS,
    WATCHING,
    FrontendOptions,
    life_option,
    port_option,
)
from freshet_serving.serving.http.origin_checks import is_loopback
from freshet_serving.serving.ports import SERVER

if TYPE_CHECKING:
    from freshet_serving.processor.tables.remote_rows import RemoteConfig
    from freshet_serving.processor.versions.policy import ModelPolicy

ENV_PREFIX = "FRESHET_"
MAX_CONFIG_NBYTES = 1 << 20
SAMPLE_REPOSITORY = "the sample"
"""Stands for the repository of the sample until it is laid out."""
SECTIONS = ("groups", "model", "online_stores")
REPOSITORY, TABLES, STORES = "Repository", "Tables", "Online features"
HEADINGS = (REPOSITORY, PORTS, ACCESS, COMPUTING, REQUESTS, TABLES, STORES, LIFE, WATCHING)
repository_option, table_option = partial(option, heading=REPOSITORY), partial(option, heading=TABLES)
FOLDER, ADDRESS = Values("a folder", bool), Values("an address", bool)
PORT = Values("a port from 0 to 65535", lambda port: 0 <= port <= 65535)
EXTENSIONS = {
    "admin_host": "admin",
    "admin_port": "admin",
    "admin_token": "admin",
    "delta_guard": "guard",
    "device_rows_mb": "device_rows",
    "import_timeout_s": "auto_import",
    "import_memory_bytes": "auto_import",
    "record": "recorder",
    "user_state_mb": "user_state",
}
"""Extensions by the options that they alone read. The engine refuses those that it has too: mirror, online_stores."""


@dataclass(frozen=True)
class ServeConfig(FrontendOptions, ProcessOptions):
    """Validated options; names include the units. `groups`, `model` and `online_stores` are sections of the file."""

    repository: str = field(
        metadata=required(
            "Folder or bucket with models; as NAME/VERSION",
            Values("a folder or an s3://, gs://, az:// address", bool),
            heading=REPOSITORY,
        )
    )
    sample: bool = repository_option(
        False, "Serve a sample; in place of a repository, with a new delta every second, for a first look"
    )
    mirror: str = repository_option(
        "", "Local folder for a mirror of a repository in an object store", folded=True, empty="the user's cache"
    )
    mirror_bytes: int = repository_option(
        0, "Maximum disk use of the mirror", between(0, 1 << 50, "half of its disk"), folded=True
    )
    models: list[str] = repository_option([], "Serve only these models; separated by commas", empty="all")
    poll_interval_s: float = repository_option(
        0.05, "Interval between polls of the repository", between(0.001, 3600), unit="seconds", folded=True
    )
    max_staleness_s: float = repository_option(
        0.0,
        "Report not-ready when the served version lags the repository by more than this",
        between(0, 604_800, "no bound"),
        unit="seconds",
        folded=True,
    )
    ready_when_empty: bool = repository_option(
        False, "Report ready while there is no model, as Triton does", folded=True
    )
    strict: bool = repository_option(False, "Do not start if a model cannot be served", folded=True)
    import_timeout_s: float = repository_option(
        1800.0,
        "Maximum duration of one import; its processor time, over all cores, may be twice that",
        between(1, 604_800),
        unit="seconds",
        folded=True,
    )
    import_memory_bytes: int = repository_option(
        0,
        "Maximum memory of one import, without mapped files",
        between(0, 1 << 50, "half of the machine's memory, at least 4 GiB"),
        folded=True,
    )
    trust: list[str] = repository_option(
        [],
        "Serve only versions signed by one of these public keys; files, separated by commas",
        folded=True,
        empty="no signature required",
    )
    key: str = repository_option(
        "",
        "Private key that signs what this server writes: uploads, rollbacks, holds, snapshots",
        folded=True,
        empty="nothing is signed",
    )
    trust_memory: str = repository_option(
        "",
        "Folder with the newest trusted state of each model, so that no older one is served; must survive restarts",
        folded=True,
        empty="$XDG_STATE_HOME/freshet/trust",
    )
    undo_depth: int = repository_option(
        UNDO_DEPTH, "Number of deltas that can be rolled back in memory", between(0, 65536), folded=True
    )
    delta_guard: str = repository_option(
        ON, "Hold suspicious deltas; strict scores more rows; a model's section takes precedence", one_of(*GUARD_MODES)
    )
    host: str = port_option("127.0.0.1", "Address of the data ports", ADDRESS)
    http_port: int = port_option(8501, "Data port for HTTP; 0 uses a free one", PORT)
    grpc_port: int = port_option(8500, "Data port for gRPC; 0 uses a free one", PORT)
    admin_host: str = port_option("127.0.0.1", "Address of the admin port; loopback without a token", ADDRESS)
    admin_port: int = port_option(8502, "Admin port, for changes; 0 uses a free one", PORT)
    workers: int = option(0, "Number of worker processes", between(0, 256, "what is best here"), heading=COMPUTING)
    compute: str = option(
        "auto",
        "Compute inline or in threads; inline is in the event loop",
        one_of("auto", *sorted(COMPUTES)),
        heading=COMPUTING,
    )
    table_memory: list[str] = table_option(
        [],
        "Memory limits of tables: model/table=SIZE or model/*=SIZE, separated by commas",
        folded=True,
        empty="all of them",
    )
    scratch: str = table_option(
        "",
        "Folder for rows that deltas change in tables with a memory limit, and, if named, for kept requests",
        folded=True,
        empty="the system's",
    )
    remote_url: str = table_option(
        "", "Address of the row store; prefer the environment variable FRESHET_REMOTE_URL", repr=False, folded=True
    )
    remote_tables: list[str] = table_option(
        [], "Tables in the row store, model/table or model/*, separated by commas", folded=True
    )
    remote_timeout_s: float = table_option(0.05, "Timeout of row store queries", unit="seconds", folded=True)
    remote_on_error: str = table_option(
        "default", "If a row is unavailable: default (use the default row) or fail (503)", folded=True
    )
    remote_cache_rows: int = table_option(
        1_000_000, "Rows of each remote table kept in memory, in each process", folded=True
    )
    online_store: list[str] = option(
        [],
        "Stores that features are looked up in: NAME=redis://HOST:PORT, separated by commas; a section "
        "[online_stores.NAME] has more options",
        heading=STORES,
        folded=True,
    )
    drain_s: float = life_option(
        0.0, "Keep serving this long after SIGTERM; not ready meanwhile", between(0, 3600), unit="seconds"
    )
    groups: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    online_stores: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check(self)
        _want(self.workers <= 1 or sys.platform == "linux", f"workers: expected 1 on this system, got {self.workers}")
        _want(
            self.shared_memory == "off" or self.workers <= 1,
            f"shared_memory: expected off, or on with one worker, got {self.shared_memory!r}",
        )
        if self.shared_memory == "on":
            from freshet_serving.serving.front.shared_memory import region_opener

            # Refuse the option before the server starts.
            region_opener()
        _want(
            bool(self.admin_token or self.api_keys) or is_loopback(self.admin_host),
            f"admin_host: expected a loopback address without admin_token or api_keys, got {self.admin_host[:64]!r}",
        )
        _want(
            bool(self.tls_cert) == bool(self.tls_key) and bool(self.tls_cert) >= bool(self.tls_client_ca),
            "tls_cert, tls_key: expected both, or neither and no tls_client_ca",
        )
        threaded = {"device_stages": self.device_stages, "groups": self.groups, "remote tables": self.remote()}
        for setting, value in threaded.items():
            _want(
                self.compute != "inline" or not value, f"compute: expected auto or threads with {setting}, got 'inline'"
            )
        _want(
            not self.max_staleness_s or self.max_staleness_s > self.poll_interval_s,
            f"max_staleness_s: expected 0 or more than poll_interval_s ({self.poll_interval_s:g}), got "
            f"{self.max_staleness_s:g}",
        )
        self.budgets()
        self.policies()
        self.stores()

    def front_options(self, version: str, processes: int) -> FrontendOptions:
        """Return the options of the data ports of one of `processes` processes, which share the disk for recordings."""
        shared = {f.name: getattr(self, f.name) for f in fields(FrontendOptions)}
        return FrontendOptions(**{**shared, "version": version, "record_max_bytes": self.record_max_bytes // processes})

    def policies(self) -> dict[str, ModelPolicy]:
        if not self.model:
            return {}
        from freshet_serving.processor.versions.policy import ModelPolicy

        for name in self.model:
            _want(not self.models or name in self.models, f"model.{name[:64]}: not among models")
        policies = {name: ModelPolicy.parse(raw, f"model.{name[:64]}") for name, raw in self.model.items()}
        for name, policy in policies.items():
            policy.check_extensions(f"model.{name[:64]}")
        return policies

    @property
    def signed(self) -> bool:
        """Signatures are required."""
        return bool(self.trust or self.key)

    def keyring(self) -> Keyring:
        if not self.signed:
            return NO_KEYS
        from freshet_serving.processor.repository import default_memory

        return Keyring.of(self.key, self.trust, self.trust_memory or default_memory(self.repository))

    def budgets(self) -> Budgets:
        scratch = self.scratch
        if self.table_memory and not scratch:
            try:
                scratch = tempfile.gettempdir()
            except OSError:
                raise BadInput("scratch: no temporary folder can be written to; name one") from None
        return Budgets.parse(self.table_memory, scratch)

    def remote(self) -> RemoteConfig | None:
        """Return the configuration of tables in a row store; None if there are none. Raises BadInput."""
        if not self.remote_url and not self.remote_tables:
            return None
        # Loaded where there are remote tables.
        from freshet_serving.processor.tables.remote_rows import RemoteConfig

        return RemoteConfig(
            self.remote_url, self.remote_tables, self.remote_timeout_s, self.remote_on_error, self.remote_cache_rows
        )

    def stores(self) -> list[Any]:
        addresses = named_addresses(self.online_store, "online_store")
        for name in addresses:
            _want(name not in self.online_stores, f"online_store: {name[:64]!r} has a section [online_stores] too")
        return parse_stores(addresses | self.online_stores)

    @property
    def waiting(self) -> bool:
        """Sessions wait for something other than the queue."""
        return self.remote() is not None or self.device_stages > 0


def load_config(options: Mapping[str, Any], environ: Mapping[str, str], file: str | None = None) -> ServeConfig:
    """Return the configuration from all four sources. Raises BadInput, which names the source and the key.

    Args:
        options: Values by field name; None for options that the command line does not give.
        file: A TOML file; None for $FRESHET_CONFIG.
    """
    values = {key: value for key, value in options.items() if value is not None}
    for key, parse in PARSERS.items():
        text = environ.get(ENV_PREFIX + key.upper())
        if key not in values and text is not None:
            values[key] = parsed(parse, text, ENV_PREFIX + key.upper())
    for name in environ:
        hint = option_hint(name[len(ENV_PREFIX) :].lower(), ()) if name.startswith(ENV_PREFIX) else ""
        # Some former options are variables now, and their hints name these.
        if hint and name not in hint:
            raise BadInput(f"{name}: unknown option{hint}; unset it")
    path = file or environ.get(ENV_PREFIX + "CONFIG")
    if path:
        for key, value in _read_toml(path).items():
            values.setdefault(key, value)
    if values.get("sample"):
        if options.get("repository") is not None:
            raise BadInput("sample: expected no repository beside it: the sample has its own")
        values["repository"] = SAMPLE_REPOSITORY
    if "repository" not in values:
        raise BadInput(
            "repository: expected --repository, FRESHET_REPOSITORY or a key of the configuration file; "
            "--sample serves a sample"
        )
    return ServeConfig(**values)


def split_names(text: str) -> list[str]:
    """Split comma-separated names and drop empty ones.

    Raises BadInput for a non-empty text without names: an empty list means all, which its author did not intend.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    if text and not names:
        raise BadInput(f"expected names separated by commas, got {text[:64]!r}")
    return names


def true_or_false(text: str) -> bool:
    """Parse a boolean. Raises KeyError for any other text."""
    return {"true": True, "1": True, "false": False, "0": False}[text.lower()]


def _read_toml(path: str) -> dict[str, Any]:
    try:
        data = Path(path).read_bytes()
        if len(data) > MAX_CONFIG_NBYTES:
            raise BadInput(f"config: expected at most {MAX_CONFIG_NBYTES} bytes, got {len(data)}")
        document = tomllib.loads(data.decode())
    except OSError as error:
        raise BadInput(f"config: {path}: {error.strerror or 'cannot be read'}{nearest_file(path)}") from None
    except ValueError as error:
        raise BadInput(f"config: {path}: not valid TOML: {error}") from None
    for key, value in document.items():
        if key not in (*KINDS, *SECTIONS):
            hint = option_hint(key, (*KINDS, *SECTIONS)) or "; see docs/reference/options.md"
            raise BadInput(f"config: unknown key {key[:64]!r}{hint}")
        if key not in SECTIONS:
            document[key] = _typed(value, KINDS[key], f"config: {key}")
        elif type(value) is not dict or any(type(section) is not dict for section in value.values()):
            raise BadInput(f"config: {key}: expected sections such as [{key}.name]")
    for name, group in document.get("groups", {}).items():
        for key, value in group.items():
            where = f"config: groups.{name[:64]}.{key[:64]}"
            if key not in GROUP_KINDS:
                raise BadInput(f"{where}: unknown key; known: {', '.join(GROUP_KINDS)}{option_hint(key, GROUP_KINDS)}")
            group[key] = _typed(value, GROUP_KINDS[key], where)
    return document


def _typed(value: Any, kind: type, where: str) -> Any:
    """Return a value from the file in the type of its option. Raises BadInput."""
    if kind is float and type(value) is int:
        _want(abs(value) < 1 << 63, f"{where}: expected a number of 64 bits, got a larger one")
        return float(value)
    if type(value) is not kind or (isinstance(value, list) and any(type(v) is not str for v in value)):
        expected = "a list of strings" if kind is list else TYPE_NAMES[kind]
        raise BadInput(f"{where}: expected {expected}, got {type_name(value)}")
    return value


def parsed(parse: Any, text: str, name: str) -> Any:
    """Parse the text of the option `name`. Raises BadInput."""
    try:
        return parse(text)
    except BadInput as error:
        raise BadInput(f"{name}: {error}") from None
    except (ValueError, KeyError):
        expected = TYPE_NAMES[bool if parse is true_or_false else parse]
        raise BadInput(f"{name}: expected {expected}, got {text[:64]!r}") from None


def _want(condition: bool, message: str) -> None:
    if not condition:
        raise BadInput(message)


def _kind(hint: Any) -> type:
    if get_origin(hint) in (Union, UnionType):
        (hint,) = (each for each in get_args(hint) if each is not NoneType)
    origin = get_origin(hint) or hint
    kind: type = str if origin is Literal else origin
    return kind


_HINTS = get_type_hints(ServeConfig)
# In the order for readers: by heading, the server's own options before those of its ports and sessions.
OPTIONS = sorted(
    options_of(ServeConfig),
    key=lambda each: (HEADINGS.index(each[1].heading), each[0].name not in ServeConfig.__annotations__),
)
KINDS = {field.name: _kind(_HINTS[field.name]) for field, _ in OPTIONS}
GROUP_KINDS = {name: _kind(hint) for name, hint in get_type_hints(GroupConfig).items()}
_PARSER_OF: dict[type, Callable[[str], Any]] = {list: split_names, bool: true_or_false}
PARSERS: dict[str, Callable[[str], Any]] = {key: _PARSER_OF.get(kind, kind) for key, kind in KINDS.items()}


def check_extensions(config: ServeConfig) -> None:
    """Raise BadInput if an option that is not at its default needs an extension that is not there."""
    extensions = SERVER.all().keys() | ENGINE.all().keys()
    for spec in fields(config):
        extension = EXTENSIONS.get(spec.name, "")
        is_set = bool(extension) and getattr(config, spec.name) != spec.default
        if is_set and extension not in extensions and not _used_by_core(config, spec.name):
            raise missing(spec.name, extension)


def _used_by_core(config: ServeConfig, name: str) -> bool:
    """Return whether the core has a use for an option too, such as a token, which changes over the data ports know."""
    if name == "delta_guard":
        return config.delta_guard == OFF
    return name == "admin_token" and (config.model_control != "none" or bool(config.api_keys))
