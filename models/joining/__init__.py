"""`freshet join`: what was served, joined with what came of it, as rows to learn.

join_run          a whole join: both streams in, files out, exactly once
join_settings     what it is told
timed_stream      one of its two streams, and up to which time it has been read
matching          rows and outcomes that wait for each other
late_share        how many positives come late, and what negatives weigh for it
repeated_ids      whether rows of one request id are one request
emitted_rows      which rows have been emitted, for outcomes that come late
recording_folder  the recordings as a stream
join_state        where a join is, as of one of its files
joined_folder     what is written, and the state in it
join_windows      what became of each window
join_metrics      where a join stands, for Prometheus
"""

__all__ = ["join_metrics", "join_run", "join_settings", "join_windows"]
