"""Tables whose rows lie outside of the process: the settings, and what the core asks of the extension that reads them.

Which tables are remote is a matter of deployment, not of the model. Without remote tables, RemoteTables and RowReader
are None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.clock import Clock
from freshet_serving.processor.counter_block import Snapshot
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package import NAME, Manifest
from freshet_serving.processor.ports import ENGINE, missing
from freshet_serving.processor.tables.row_store import row_store_scheme

if TYPE_CHECKING:
    from freshet_serving.processor.features.bound_request import BoundRequest
    from freshet_serving.processor.features.plan import SparsePlan
    from freshet_serving.processor.tables.table import ServedTable

REMOTE_ROWS = "remote_rows"
POLICIES = ("default", "fail")


@dataclass(frozen=True, slots=True)
class RemoteConfig:
    """Settings of remote tables.

    Attributes:
        url: redis[s][+cluster]://[user:password@]host:port[/db], or unix://; never shown: it may contain a password.
        tables: "model/table", or "model/*" for all tables of a model.
        timeout_s: Time limit of a new connection, and of all replies of a batch.
        on_error: For an id with an unavailable row: "default" uses the default row, "fail" fails with NotReady.
        cache_rows: Rows kept in memory for each remote table of each served version.
    """

    url: str = field(repr=False)
    tables: list[str]
    timeout_s: float = 0.05
    on_error: str = "default"
    cache_rows: int = 1_000_000

    def __post_init__(self) -> None:
        row_store_scheme(self.url)
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


@dataclass(frozen=True, slots=True, eq=False)
class BatchTables:
    """Table descriptors for one batch, those of remote tables for its rows; must outlive their use."""

    tables: NDArray[np.int64]
    keep: tuple[Any, ...]


class RowReader(Protocol):
    """Provides the rows of one version's remote tables, batch by batch, for any number of sessions."""

    def holds(self, table: int) -> bool:
        """Return whether the rows of a table, by its number in the manifest, are outside of the process."""

    def counted(self) -> Snapshot:
        """Return the counters since the version was loaded, of the block REMOTE_ROWS."""

    def batch_tables(
        self, tables: NDArray[np.int64], epoch: int, bound: Sequence[BoundRequest], spans: NDArray[np.int64]
    ) -> BatchTables:
        """Return descriptors of all that a batch reads, as of a pinned state; spans as BatchView.spans.

        Raises NotReady if rows were unavailable and the policy is to fail.
        """


class RemoteTables(Protocol):
    """The remote tables of a process. One for all models."""

    def tables(self, manifest: Manifest) -> Mapping[str, ServedTable]:
        """Return a version's remote tables by name, without rows; raise NotReady unless all of them can be read."""

    def open_reader(self, manifest: Manifest, plan: SparsePlan) -> RowReader | None:
        """Return a reader of the version's remote tables, None if it has none; raise NotReady if one cannot be read."""

    def close(self) -> None:
        """Close the connections."""


def open_remote_tables(config: RemoteConfig | None, clock: Clock) -> RemoteTables | None:
    """Open the remote tables of this process, None for none; raise BadInput for a bad URL or without the extension."""
    if config is None:
        return None
    source = ENGINE.only("row_source")
    if source is None:
        raise missing("remote", REMOTE_ROWS)
    tables: RemoteTables = source(config, clock)
    return tables
