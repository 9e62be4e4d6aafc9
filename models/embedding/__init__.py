"""EmbeddingVariables: tables that grow by id, and how their rows learn.

variable   a table that never lets two ids share a row
optimizer  how many slots a row needs, and one update of the rows that a batch touched
kernels    gradients back to rows, and the optimizers' inner loops
"""

__all__ = ["kernels", "optimizer", "variable"]
