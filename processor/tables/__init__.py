"""Embedding tables as they are served: the version's rows, newer rows beside them, any budget of memory.

table     one served table: rows of the version in their mmap, newer rows in an arena
arena     slots of an arena, given out and given back
tier      a table larger than its memory: hot rows in the arena, cold ones on disk
row_log   the log that such a table keeps its changed cold rows in; those of training keep all of theirs in one
budgets   how much memory the rows of a table may take
quantise  float32 rows to the type that a table stores
compaction  a chain of deltas folded into a snapshot
remote    tables whose rows are in a row store
"""

__all__ = ["budgets", "compaction", "quantise", "remote", "row_log", "table", "tier"]
