"""Tables larger than a machine: their rows live in a row store (Redis), a server keeps what is hot and what is new.

config    which tables of which models are remote, and how to treat a store that does not answer
base      the seam: RowStore, a store of small values by key
layout    how a table becomes buckets in such a store
push      copies a version's tables into a store, removes them from it
redis     a RowStore on a Redis server or cluster
breaker   when to leave a store alone
cache     rows fetched before
table     a served table whose base rows are elsewhere
remote    the rows that one batch reads, from deltas, cache and store
"""
