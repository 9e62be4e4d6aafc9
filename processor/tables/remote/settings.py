"""Define the settings of remote tables: which tables are remote is a matter of deployment, not of the model."""

from __future__ import annotations

from dataclasses import dataclass, field

from freshet_serving.processor.clock import Clock
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.extras import needed
from freshet_serving.processor.package import NAME
from freshet_serving.processor.tables.remote.store import RowStore

SCHEMES = ("redis", "rediss", "redis+cluster", "rediss+cluster", "unix")
POLICIES = ("default", "fail")


@dataclass(frozen=True, slots=True)
class RemoteConfig:
    """Settings of remote tables.

    Attributes:
        url: redis[s][+cluster]://[user:password@]host:port[/db], or unix://; never shown, because it may contain a
            password.
        tables: "model/table", or "model/*" for all tables of a model.
        timeout_s: Time limit of a new connection, and of all replies of a batch.
        on_error: For an id with an unavailable row: "default" uses the default row, "fail" fails its request with
            NotReady.
        cache_rows: Rows kept in memory for each remote table of each served version.
    """

    url: str = field(repr=False)
    tables: list[str]
    timeout_s: float = 0.05
    on_error: str = "default"
    cache_rows: int = 1_000_000

    def __post_init__(self) -> None:
        if self.url.partition("://")[0] not in SCHEMES:
            raise BadInput(f"remote.url: expected one of {', '.join(s + '://' for s in SCHEMES)}")
        for name in self.tables:
            model, _, table = name.partition("/")
            if not NAME.fullmatch(model) or not (table == "*" or NAME.fullmatch(table)):
                raise BadInput(f"remote.tables: expected 'model/table' or 'model/*', got {name[:64]!r}")
        if not self.tables:
            raise BadInput("remote.tables: expected at least one 'model/table'")
        if not 0.001 <= self.timeout_s <= 60:
            raise BadInput(f"remote.timeout_s: expected 0.001 to 60, got {self.timeout_s}")
        if self.on_error not in POLICIES:
            raise BadInput(f"remote.on_error: expected one of {', '.join(POLICIES)}, got {self.on_error[:40]!r}")
        if not 0 <= self.cache_rows < 1 << 31:
            raise BadInput(f"remote.cache_rows: expected 0 to {(1 << 31) - 1}, got {self.cache_rows}")

    def is_remote(self, model: str, table: str) -> bool:
        return f"{model}/{table}" in self.tables or f"{model}/*" in self.tables


def open_store(url: str, timeout_s: float, clock: Clock) -> RowStore:
    """Return the store at a URL; it connects at first use.

    Args:
        url: See RemoteConfig.
        timeout_s: See RemoteConfig.
        clock: The clock.

    Raises:
        BadInput: The URL is not valid.
    """
    with needed("a remote table"):
        from freshet_serving.processor.tables.remote.redis import RedisStore
    return RedisStore(url, timeout_s, clock)
