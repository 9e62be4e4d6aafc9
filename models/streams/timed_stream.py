"""Read one of a join's two streams, and track the time up to which it has been read.

That time is the newest one in the data. If the stream has nothing more for a moment, it is that moment, provided the
source has been polled since (a folder of many files is listed only now and then). While a stream cannot be read, its
time does not advance. Times ahead of the clock count as now.
"""

from __future__ import annotations

from collections.abc import Callable

from freshet_serving.models.data.source import Batch
from freshet_serving.models.streams.followed_source import FollowedSource

CHUNK_ROWS = 4096


class TimedStream:
    """A stream from row `start` on; the source must not hold rows back (linger_s 0)."""

    def __init__(self, source: FollowedSource, start: int, unix_s: Callable[[], float]) -> None:
        self.source, self._unix_s = source, unix_s
        self._batches = source.arriving(CHUNK_ROWS, start)
        self.position, self.read_s, self.ended = start, float("-inf"), False

    def next(self) -> Batch | None:
        """Return the next batch; None if there is nothing for a moment."""
        began_s, looks = self._unix_s(), self.source.ingest_status().backlog.looks
        batch = next(self._batches, None)
        if batch is None:
            self.ended = not self.source.endless
            backlog = self.source.ingest_status().backlog
            looked = backlog.looks is None or backlog.looks != looks or self.ended
            if looked and not backlog.trouble:
                self.read_s = max(self.read_s, began_s)
            return None
        self.position = batch.end
        if batch.time is not None and len(batch):
            self.read_s = max(self.read_s, min(float(batch.time.max()), self._unix_s()))
        return batch
