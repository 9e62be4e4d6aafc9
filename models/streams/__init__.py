"""Streams that grow while they are read, and the join of two of them into labelled training rows (`freshet join`).

followed_source  a stream as a source of rows with permanent positions
followed_tables  tables that are joined to a stream and followed as it is
table_state      content of such a table at a moment, and what has changed since
table_copy       copy of such a table, from which a run starts
stream_journal   durable numbering of a stream's segments and rows
stream           interface of every stream: new segments, and their rows on demand
history_writer   histories in online stores, before the deltas that learned them
feature_feed     publication of an entity's features as their rows arrive
growing_folder   a folder that receives Parquet files
redis_stream     a stream of a Redis server
kafka_stream     a Kafka topic
stream_rows      messages and record batches as columns; rejection of invalid rows
open_rows        opening of the configured data as the rows of a run
join_run         a whole join of recorded requests with their outcomes: reads both, writes files, exactly once
join_settings    settings of a join
timed_stream     one of a join's two input streams, and the time up to which it has been read
matching         rows and outcomes that wait for each other
late_share       estimated share of late positives, and the weight of negatives
repeated_ids     detection of several requests that share one request id
emitted_rows     index of emitted rows, for late outcomes
recording_folder  the recordings as a stream
join_state       state of a join as of one of its files
joined_folder    the output files and the state stored in them
join_windows     report of each window
join_metrics     metrics of a join for Prometheus
"""

__all__ = [
    "feature_feed",
    "followed_source",
    "followed_tables",
    "history_writer",
    "join_metrics",
    "join_run",
    "join_settings",
    "join_windows",
    "open_rows",
    "table_state",
]
