"""Remote tables, larger than a machine: their rows are in a row store (Redis); a server keeps hot and new rows.

settings      which tables of which models are remote, and the policy for a store that does not answer
store         the interface RowStore: a store of small values by key
redis         a RowStore on a Redis server or cluster
layout        how a table is stored as buckets
push          copies a version's tables into a store, removes them from it
remote_table  a served table whose base rows are in a store
reader        collects the rows that one batch reads, from deltas, cache and store
cache         cache of fetched rows
"""

__all__ = ["push", "reader", "remote_table", "settings"]
