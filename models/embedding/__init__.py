"""EmbeddingVariables: embedding tables that grow by id, and the optimizers that train their rows.

variable      a table in which two ids never share a row
trained_table  interface of a whole table for checkpoints and publishing
id_shards     assignment of ids to processes that share a table
admission     filters that decide when a new id gets a row
id_rows       growing columns by id, with change tracking
tiered_rows   the same within a memory budget, with the other rows on disk
cold_rows     the rows on disk
row_budget    memory budget of a table, and its cache policy
distinct_ids  a growing set of ids
multi_hash    rules for hashed tables
optimizer     row optimizers: state per row, and the update of the rows of a batch
kernels       gradients of rows, and the optimizers' inner loops
"""

__all__ = [
    "admission",
    "distinct_ids",
    "id_rows",
    "id_shards",
    "kernels",
    "multi_hash",
    "optimizer",
    "row_budget",
    "tiered_rows",
    "trained_table",
    "variable",
]
