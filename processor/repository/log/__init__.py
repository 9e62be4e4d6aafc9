"""The change log of a version: numbered, immutable records that say what it serves, and their only writer.

chain_record  one record, its bytes and digests
history       replay of the records: the line of generations, what was undone, what is held
log_reader    one version's change log on disk, read; whether what was read is still there
change_log    the same, written: publish, roll back, hold, adopt files
dropped_deltas  delta files without a record: find them, and which are worth a try
trusted_records  which records are accepted where signatures are required
damage        find the records that end a log, and set them aside
repair        a record that sets aside records that no reader accepts
re_signing    sign a version again, and check all of it against keys
pruning       find files that are no longer needed
contents      rows and weights of a version as of a generation, read from its files; open snapshots
difference    the delta that makes what is served equal to something else
"""

__all__ = [
    "chain_record",
    "change_log",
    "contents",
    "damage",
    "difference",
    "dropped_deltas",
    "history",
    "pruning",
    "re_signing",
    "repair",
    "trusted_records",
]
