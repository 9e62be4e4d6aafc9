"""EmbeddingVariables: tables that grow by id, and how their rows learn.

variable      a table that never lets two ids share a row
trained_table  a whole table as those see it who save and publish it
id_shards     which process has an id, where several share a table
admission     when an id that is met for the first time gets a row
id_rows       columns by id that grow, and what of them has changed
tiered_rows   the same within a budget of memory, the other rows on disk
cold_rows     the rows that are on disk
row_budget    how much memory, and which rows stay there
distinct_ids  a set of ids
multi_hash    when a table is hashed, and how
optimizer     how many slots a row needs, and one update of the rows that a batch touched
kernels       gradients back to rows, and the optimizers' inner loops
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
