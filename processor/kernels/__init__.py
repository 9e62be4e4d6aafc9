"""Kernels, compiled by Numba: no GIL, no allocation a row.

`python -m freshet_serving.processor.kernels` fills the cache.

pool             the sparse graph: transform, look up and pool every feature of a batch
list_sums        lists of keys, looked up and added up a block at a time
index            a table's hash index
rows             row versions, stamped with the epoch that wrote them
row_tiering      rows between the tiers of a table with a memory budget
remote           what a batch reads of tables in a row store
row_cache        rows that a row store was asked for
bucket_bytes     the buckets of a row store, as bytes
hashing          strings to ids, ids to their first rows
xxh3             XXH3 over a column of strings
string_hashes    the hashes of strings that TensorFlow's features are made with
texts            strings made of numbers and of other strings
crosses          combinations of a row's values, hashed
json_text        what a JSON text holds, booleans among it, told without parsing it
wire_format      what a protobuf message holds, told without parsing it
length_prefixed  byte strings that each stand behind their length
row_sums         rows added up in registers
conversion       float32 to what a table stores, and back
bucket_plans     the cheapest buckets for every number of rows
counting         what a batch was like, noted in one call
pointers         raw addresses inside kernels, and stores that are ordered before every later load
"""

__all__ = [
    "bucket_bytes",
    "bucket_plans",
    "conversion",
    "counting",
    "crosses",
    "hashing",
    "index",
    "json_text",
    "length_prefixed",
    "pointers",
    "pool",
    "remote",
    "row_cache",
    "row_tiering",
    "rows",
    "string_hashes",
    "texts",
    "wire_format",
]
