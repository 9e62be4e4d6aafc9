"""Tables larger than a machine: their rows live in a row store (Redis), a server keeps what is hot and what is new.

settings      which tables of which models are remote, and how to treat a store that does not answer
store         the seam: RowStore, a store of small values by key
redis         a RowStore on a Redis server or cluster
replies       reads what it answers, within a deadline and a number of bytes
layout        how a table becomes buckets in such a store
push          copies a version's tables into a store, removes them from it
remote_table  a served table whose base rows are elsewhere
reader        the rows that one batch reads, from deltas, cache and store
cache         rows fetched before
circuit_breaker  when to leave a store alone
"""

__all__ = ["push", "reader", "remote_table", "settings"]
