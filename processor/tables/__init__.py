"""Serve embedding tables: a version's rows and newer rows beside them, within any memory budget.

table     one served table: the version's rows in their mmap, newer rows in an arena
arena     slot allocator of an arena, with deferred reuse of freed slots
tier      tiered storage for a table larger than its memory: hot rows in the arena, cold ones on disk
row_log   on-disk log of changed cold rows for serving, and of all cold rows for training
scratch_file  a file without a name, for more bytes than memory has room for
budgets   memory budgets of tables
quantise  conversion of float32 rows to the type that a table stores, and back
compaction  compacts a version's change log into a snapshot
row_store  the interface of a row store: small values by key
remote_rows  settings of tables whose rows lie outside of the process, and what reads them
"""

__all__ = ["budgets", "compaction", "quantise", "remote_rows", "row_log", "row_store", "scratch_file", "table", "tier"]
