"""Numba kernels of the sparse graph and its tables: they run without the GIL and allocate nothing per row.

`python -m freshet_serving.processor.kernels` compiles them ahead of time.

Arguments that mean the same in every kernel:

    table      a table's descriptor (rows): its address, or int64 [TABLE_FIELDS]
    tables     the descriptors of all tables: their address, or int64 [T, TABLE_FIELDS]
    epoch      the epoch to read rows at
    key, keys  int64, int64 [n]
    counts     lookups and misses by table, int64 [T, 2] or their address, added to; `tally` has those of one table
    width      elements of a row
    target, source, scale, block   addresses

kernel           the decorator that makes a function a kernel
code_store       where machine code is kept: bundles in the package, and a cache folder
bundling         compiles all kernels into a bundle
file_trust       decides whether a file of code may be read
pool             the sparse graph: transforms, looks up and pools every feature of a batch
known_sums       looks up and adds up lists of keys that mostly have no row
list_sums        looks up and adds up lists of keys, a block at a time
index            the hash index of a table
key_filter       tells most keys that an index does not have without a probe
rows             row versions (MVCC), stamped with the epoch that wrote them
row_stamps       numbers that change with the row that a key reads, found without reading it
records          copies the records of entities, and points the inputs that a request leaves out at them
lookup_notes     counts how often rows of a table with a memory budget are looked up
row_tiering      moves rows between the tiers of a table with a memory budget
hashing          hashes strings to ids (XXH3), and ids to their initial rows
string_hashes    the string hashes that TensorFlow's features use
texts            builds strings from numbers and from other strings
crosses          feature crosses: combinations of a row's values, hashed
json_text        counts the values of a JSON text and detects booleans without parsing it
wire_format      counts the values of a protobuf message without parsing it
length_prefixed  splits a sequence of length-prefixed byte strings
row_sums         adds up rows in registers
conversion       converts float32 to a table's row type, and back
bucket_plans     the cheapest buckets for every number of rows
counting         records the figures of a batch in one call
pointers         raw addresses inside kernels, and stores that are ordered before every later load
"""

__all__ = [
    "bucket_plans",
    "code_store",
    "conversion",
    "counting",
    "crosses",
    "file_trust",
    "hashing",
    "index",
    "json_text",
    "kernel",
    "key_filter",
    "length_prefixed",
    "lookup_notes",
    "pointers",
    "pool",
    "records",
    "row_stamps",
    "row_tiering",
    "rows",
    "string_hashes",
    "texts",
    "wire_format",
]
