"""EmbeddingVariables: tables that grow by id, and how their rows learn.

variable    a table that never lets two ids share a row
admission   when an id that is met for the first time gets a row
id_rows     columns by id that grow, and what of them has changed
multi_hash  when a table is hashed, and how
optimizer   how many slots a row needs, and one update of the rows that a batch touched
kernels     gradients back to rows, and the optimizers' inner loops
"""

__all__ = ["admission", "id_rows", "kernels", "multi_hash", "optimizer", "variable"]
