"""The chain of a version: numbered, immutable records that say what it serves, and the one module that writes them.

chain_record  one record, its bytes and digests
history       the records folded: the line of generations, what was undone, what is held
change_log    one version's chain on disk: followed, written, adopted into
scrub         what of a version's folder may be believed, and what is new in it
damage        what ends a chain, found, and set aside
repair        a record that no reader takes, set aside by one that they do
re_signing    a version signed anew, all of it checked against keys
pruning       what of it nothing needs any more
contents      what a version holds as of a generation, read from its files; snapshots, opened
"""

__all__ = [
    "chain_record",
    "contents",
    "damage",
    "history",
    "change_log",
    "scrub",
    "pruning",
    "repair",
    "re_signing",
]
