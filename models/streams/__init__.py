"""Streams that grow while they are read: folders of Parquet files, Redis streams, Kafka topics.

followed_source  a stream as a source of rows with permanent positions
stream_journal   durable numbering of a stream's segments and rows
stream           interface of every stream: new segments, and their rows on demand
feature_feed     publication of an entity's features as their rows arrive
growing_folder   a folder that receives Parquet files
redis_stream     a stream of a Redis server
kafka_stream     a Kafka topic
stream_rows      messages and record batches as columns; rejection of invalid rows
open_rows        opening of the configured data as the rows of a run
"""

__all__ = ["feature_feed", "followed_source", "growing_folder", "open_rows", "stream", "stream_journal", "stream_rows"]
