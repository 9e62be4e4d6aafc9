"""Streams that grow while they are read: folders of Parquet files, Redis streams, Kafka topics.

followed_source  a stream as a source of rows with positions, whoever runs again
stream_journal   which piece of a stream has which rows, for good
stream           what every stream gives: pieces that have come, and their rows, again and again
growing_folder   a folder into which Parquet files come
redis_stream     a stream of a Redis server
kafka_stream     a topic of Kafka
stream_rows      messages and record batches as columns; rows that are not sound
open_rows        the configured data, opened as the rows of a run
"""

__all__ = ["followed_source", "growing_folder", "open_rows", "stream", "stream_journal", "stream_rows"]
