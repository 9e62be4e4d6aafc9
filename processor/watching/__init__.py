"""Counts of batches and scores, and what is concluded from them. Values; nothing here acts.

sketch     what a version's batches were like, in counts that add up
histogram  counts by bounds of what happens now and then
canary_judge  whether a canary may stay
trend      how far a version's scores have moved
delta_figures  what a delta is like, beside what was there
delta_guard    whether a delta may be served
drift          how far scores have come within an hour and a day
row_lengths    how long the longest rows of tables usually are
delta_log      what became of the newest deltas on this server
post_deploy_monitor  whether a delta may stay once it is served
stats      snapshots of sessions, groups, models, versions
periodic_thread  a thread that does a slice of work now and then
"""

__all__ = [
    "canary_judge",
    "delta_figures",
    "delta_guard",
    "delta_log",
    "drift",
    "histogram",
    "periodic_thread",
    "post_deploy_monitor",
    "row_lengths",
    "sketch",
    "stats",
    "trend",
]
