"""The chain of a version: numbered, immutable records that say what it serves, and the one module that writes them.

chain_record  one record, its bytes and digests
history       the records folded: the line of generations, what was undone, what is held
bare_delta    delta files that somebody dropped without a record
ledger        one version's chain on disk: followed, written, adopted into
trusted_records  which records are taken where signatures are asked for
patrol        whether what is served is still what lies on disk
snapshots     a generation whole in one place: opened
damage        what ends a chain, found, and set aside
repair        a record that no reader takes, set aside by one that they do
resigning     a version signed anew, all of it checked against keys
pruning       what of it nothing needs any more
contents      what a version holds as of a generation, read from its files
"""

__all__ = [
    "bare_delta",
    "chain_record",
    "contents",
    "damage",
    "history",
    "ledger",
    "patrol",
    "pruning",
    "repair",
    "resigning",
    "snapshots",
    "trusted_records",
]
