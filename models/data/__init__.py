"""Readers that turn stored or made-up events into batches of columns; source is the contract.

source     what every reader gives: a schema, and batches in the order of the stream
open_data  the configured data, opened
dataset    data for a program of one's own: numpy arrays, or tf.data
shuffled   rows in a random order, from any position on
shards     which rows are whose where several readers share a stream
formats    the formats, and how a path tells its own
tabular    a user's own table in Parquet, CSV or TFRecord
parquet_copy  any source as one Parquet file
ordered_prefetch  tasks on threads, as if one ran after another
tfrecord   TFRecord files of Examples, a row a record
libsvm     lines of a label and indices
criteo     Criteo's display advertising logs
movielens  MovieLens as a click stream
synthetic  a made-up click stream whose truth is known
files      Parquet and CSV as streams of Arrow batches
decoding   Parquet files of strangers, decoded in a process with a limit of memory
decoding_child  that process
broadcast_columns  recordings' inputs that a request sent once, in each of its rows
object_files  data files in an object store: found, read by ranges
canonical  a schema's columns as Arrow arrays of one type each
arrow      Arrow arrays to columns
"""

__all__ = [
    "arrow",
    "broadcast_columns",
    "canonical",
    "dataset",
    "decoding",
    "files",
    "formats",
    "open_data",
    "parquet_copy",
    "shuffled",
    "source",
    "synthetic",
    "tabular",
]
