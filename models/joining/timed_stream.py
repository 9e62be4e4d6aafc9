"""One of a join's two streams: its batches as they come, and up to which time it has been read.

A stream has been read up to the newest time that it has given; where it has nothing more for a moment, up to that
moment, if it has looked since: a folder of many files is listed now and then only. One that cannot be read stands where
it is: what it would say is not known. A time that lies ahead of the clock counts as now.
"""

from __future__ import annotations

from collections.abc import Callable

from freshet_serving.models.data.source import Batch
from freshet_serving.models.streams.followed_source import FollowedSource

CHUNK_ROWS = 4096


class TimedStream:
    """A stream from row `start` on; its source keeps no rows back (linger_s 0)."""

    def __init__(self, source: FollowedSource, start: int, unix_s: Callable[[], float]) -> None:
        self.source, self._unix_s = source, unix_s
        self._batches = source.arriving(CHUNK_ROWS, start)
        self.position, self.read_s, self.ended = start, float("-inf"), False

    def next(self) -> Batch | None:
        """What has come; None where nothing has for a moment."""
        began_s, looks = self._unix_s(), self.source.ingest_status().looks
        batch = next(self._batches, None)
        if batch is None:
            self.ended = not self.source.endless
            ingest_status = self.source.ingest_status()
            looked = ingest_status.looks is None or ingest_status.looks != looks or self.ended
            if looked and not ingest_status.trouble:
                self.read_s = max(self.read_s, began_s)
            return None
        self.position = batch.end
        if batch.time is not None and len(batch):
            self.read_s = max(self.read_s, min(float(batch.time.max()), self._unix_s()))
        return batch
