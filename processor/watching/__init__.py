"""Counts of batches and scores, and what is concluded from them. Values; nothing here acts.

sketch     what a version's batches were like, in counts that add up
histogram  counts by bounds of what happens now and then
judge      whether a canary may stay
trend      how far a version's scores have moved
stats      snapshots of sessions, groups, models, versions
keeper     a thread that does a slice of work now and then
"""

__all__ = ["histogram", "judge", "keeper", "sketch", "stats", "trend"]
