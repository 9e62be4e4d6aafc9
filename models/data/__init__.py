"""Readers that turn stored or synthetic events into batches of columns; `source` defines the interface.

source     interface of every reader: a schema, and batches in stream order
entity_table  tables of entities, joined to a stream by key and time
keyed_rows    rows in memory, found by key and time
joined_rows  rows with the columns of entities and the histories of sequences
open_data  opening of the configured data
dataset    public reader for other programs: numpy arrays, or tf.data
shuffled   rows in random order, resumable at any position
shards     division of a stream among several readers
formats    the data formats, and their detection from a path
tabular    a user's own table in Parquet, CSV or TFRecord
parquet_copy  conversion of any source to one Parquet file
ordered_prefetch  tasks on threads with results in order
prefetch   stages of a step that run ahead: threads with bounded queues between them
tfrecord   TFRecord files of Examples, one row a record
criteo     Criteo's display advertising logs
movielens  MovieLens as a click stream
next_item_rows    one history a user, whose events are targets
sequence_columns  histories of users: list columns, or made of an event log
user_events  events of all users as any of the newest rows sees them, saved with checkpoints
event_heap  words of users' events, in memory and in a file
saved_events  parts of users' events as checkpoints save them
event_kernels  kernels of users' events
numbered_texts  texts by number, as they come
synthetic  a synthetic click stream with known probabilities
files      Parquet and CSV as streams of Arrow batches
file_order  order of files, with the numbers in their names counted
value_hashes  hashes of values, to tell rows apart
folder_columns  columns that are only in the names of folders
decoding   untrusted Parquet files, decoded in a process with a memory limit
decoding_child  main program of that process
broadcast_columns  expansion of recorded inputs that a request sent once
object_files  data files in an object store: listed, read by ranges
canonical  a schema's columns as Arrow arrays of one type each
arrow      Arrow arrays to columns
"""

__all__ = [
    "arrow",
    "broadcast_columns",
    "canonical",
    "dataset",
    "decoding",
    "entity_table",
    "file_order",
    "files",
    "formats",
    "joined_rows",
    "keyed_rows",
    "next_item_rows",
    "open_data",
    "parquet_copy",
    "prefetch",
    "saved_events",
    "sequence_columns",
    "shuffled",
    "source",
    "synthetic",
    "tabular",
    "user_events",
    "value_hashes",
]
