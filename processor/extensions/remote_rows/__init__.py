"""Remote tables, larger than a machine: their rows are in a row store (Redis); a server keeps hot and new rows.

redis         a RowStore (processor.tables.row_store) on a Redis server or cluster
layout        how a table is stored as buckets
push          copies a version's tables into a store, removes them from it
remote_table  a served table whose base rows are in a store
reader        collects the rows that one batch reads, from deltas, cache and store
cache         cache of fetched rows
batch_ids     collects the ids that a batch reads of tables in a row store
cached_rows   finds and keeps rows in a cache
bucket_bytes  parses the buckets of a row store
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from freshet_serving.processor.extras import needed
from freshet_serving.processor.ports import Extension

if TYPE_CHECKING:
    from freshet_serving.processor.clock import Clock
    from freshet_serving.processor.extensions.remote_rows.reader import StoredTables
    from freshet_serving.processor.tables.remote_rows import RemoteConfig
    from freshet_serving.processor.tables.row_store import RowStore

__all__ = ["push"]

SCHEMES = ("redis", "rediss", "redis+cluster", "rediss+cluster", "unix")


def _open_redis(url: str, timeout_s: float, clock: Clock) -> RowStore:
    with needed("a remote table"):
        from freshet_serving.processor.extensions.remote_rows.redis import RedisStore
    return RedisStore(url, timeout_s, clock)


def _open_tables(config: RemoteConfig, clock: Clock) -> StoredTables:
    from freshet_serving.processor.extensions.remote_rows.reader import StoredTables

    return StoredTables.of(config, clock)


REQUIRES = ("redis",)
EXTENSION = Extension(row_stores=dict.fromkeys(SCHEMES, _open_redis), row_source=_open_tables)
