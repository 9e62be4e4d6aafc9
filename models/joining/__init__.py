"""Join recorded requests with their outcomes to produce labelled training rows (`freshet join`).

join_run          a whole join: reads both streams, writes files, exactly once
join_settings     settings of a join
timed_stream      one of the two input streams, and the time up to which it has been read
matching          rows and outcomes that wait for each other
late_share        estimated share of late positives, and the weight of negatives
repeated_ids      detection of several requests that share one request id
emitted_rows      index of emitted rows, for late outcomes
recording_folder  the recordings as a stream
join_state        state of a join as of one of its files
joined_folder     the output files and the state stored in them
join_windows      report of each window
join_metrics      metrics of a join for Prometheus
"""

__all__ = ["join_metrics", "join_run", "join_settings", "join_windows"]
