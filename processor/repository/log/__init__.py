"""The chain of a version: numbered, immutable records that say what it serves, and the one module that writes them.

chain_record  one record, its bytes and digests
history       the records folded: the line of generations, what was undone, what is held
unrecorded_delta  delta files that somebody dropped without a record
change_log    one version's chain on disk: followed, written, adopted into
trusted_records  which records are taken where signatures are asked for
scrub         whether what is served is still what lies on disk
snapshots     a generation whole in one place: opened
damage        what ends a chain, found, and set aside
repair        a record that no reader takes, set aside by one that they do
re_signing    a version signed anew, all of it checked against keys
pruning       what of it nothing needs any more
contents      what a version holds as of a generation, read from its files
"""

__all__ = [
    "unrecorded_delta",
    "chain_record",
    "contents",
    "damage",
    "history",
    "change_log",
    "scrub",
    "pruning",
    "repair",
    "re_signing",
    "snapshots",
    "trusted_records",
]
