"""Read a stream of a Redis server: `XADD clicks * user 17 item 42 label 1`.

An entry is a row: its fields are the columns, as cells of a CSV file, or one field, `json` or `arrow`, is a message
(models.streams.stream_rows). A segment is the result of one XREAD: from an id to an id, with the number of entries that
the stream had ever had up to there. The server's count of entries ever added shows how many were trimmed unread.

An unreachable server is polled again with growing pauses. A run that starts, or rolls back, and needs rows read before
retries for PATIENCE_S. A server that returns without the stream, or with ids below those already read, has another
stream; it is refused, because it is unknown which of its rows were trained on. Rows can be read again, after a crash or
a rollback, as long as the stream has them.

The URL may contain a password: it, and redis-py's messages about it, are never shown.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import redis
from redis import exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from freshet_serving.models.data.source import Schema
from freshet_serving.models.streams.stream import TRAINING, ErrorContext, Segment, StreamBacklog, check_places
from freshet_serving.models.streams.stream_rows import MessageRows, RejectedRows, Rows
from freshet_serving.processor.errors import BadInput, Corrupt

FETCH_NBYTES = 16 << 20
LEAST_ENTRIES, FIRST_ENTRIES, MOST_ENTRIES = 1, 64, 8192
TIMEOUT_S = 5.0
FIRST_PAUSE_S, LAST_PAUSE_S = 0.1, 5.0
ASK_S = 1.0
PATIENCE_S = 120.0
PASSING = (exceptions.ConnectionError, exceptions.TimeoutError)
LASTING = (exceptions.AuthenticationError, exceptions.NoPermissionError)
BEGINNING = "0-0"

_ID = re.compile(r"[0-9]{1,20}(-[0-9]{1,20})?")

Entries = list[tuple[bytes, dict[bytes, bytes]]]
Answer = TypeVar("Answer")


class RedisStream:
    def __init__(
        self,
        url: str,
        schema: Schema,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        context: ErrorContext = TRAINING,
    ) -> None:
        """Create a client of redis[s]://[user:password@]host[:port][/db]/stream; it connects on first use."""
        self._context = context
        self._key, self._client = _opened(url, context.field)
        self._messages = MessageRows(schema)
        self._now_s, self._sleep = now_s, sleep
        self._last, self._index, self._lost = BEGINNING, 0, 0
        self._added = 0
        self._asked_s = float("-inf")
        self._entries = FIRST_ENTRIES
        self._pause_s, self._again_s, self._trouble = 0.0, 0.0, ""
        self._newest: tuple[Segment, list[Rows | RejectedRows]] | None = None

    @property
    def identity(self) -> str:
        return f"stream {self._key} of Redis"

    def begin(self, known: Sequence[Segment]) -> None:
        try:
            info = self._patiently(self._info) if known else self._info()
        except exceptions.RedisError as error:
            raise BadInput(f"{self._context.field}: expected a Redis server, got {_reason(error)}") from None
        check_places(known, first=str, last=str, entries=int, index=int)
        if any(not _ID.fullmatch(segment.where[name]) for segment in known for name in ("first", "last")):
            raise Corrupt("stream's journal: expected Redis ids")
        if known:
            self._last, self._index = known[-1].where["last"], known[-1].where["index"]
            self._check(info)
        elif info is not None:
            # Entries deleted before reading began do not count as lost.
            self._index = info[0] - info[1]

    def poll(self, wait_s: float) -> list[Segment]:
        if self._now_s() < self._again_s:
            self._sleep(min(wait_s, self._again_s - self._now_s()))
            return []
        try:
            self._count()
            entries = self._read_on(wait_s)
        except exceptions.RedisError as error:
            self._pause_s = min(LAST_PAUSE_S, max(FIRST_PAUSE_S, 2 * self._pause_s))
            self._again_s, self._trouble = self._now_s() + self._pause_s, f"Redis: {_reason(error)}"
            self._asked_s = float("-inf")
            return []
        self._pause_s, self._trouble = 0.0, ""
        if not entries:
            return []
        nbytes = sum(len(key) + len(value) for _, fields in entries for key, value in fields.items())
        fitting = FETCH_NBYTES * len(entries) // max(1, nbytes)
        self._entries = min(MOST_ENTRIES, max(LEAST_ENTRIES, fitting), 2 * self._entries)
        parts = self._parts(entries)
        self._index += len(entries)
        first, self._last = entries[0][0].decode(), entries[-1][0].decode()
        where = {"first": first, "last": self._last, "entries": len(entries), "index": self._index}
        segment = Segment(where, sum(map(len, parts)))
        self._newest = segment, parts
        return [segment]

    def read(self, segment: Segment) -> Iterator[Rows | RejectedRows]:
        if self._newest is not None and self._newest[0] == segment:
            yield from self._newest[1]
            return
        where = segment.where
        try:
            entries: Entries = self._patiently(
                lambda: self._client.xrange(self._key, where["first"], where["last"])  # type: ignore[arg-type,return-value]
            )
        except exceptions.RedisError as error:
            expected = "earlier rows"
            raise BadInput(f"{self._context.field}: expected {expected} from Redis, got {_reason(error)}") from None
        if len(entries) != where["entries"]:
            raise BadInput(
                f"stream {self._key}: the {where['entries']} entries {where['first']} to {where['last']} are needed"
                f" again, but {len(entries)} exist: keep more of the stream (XTRIM, MAXLEN)"
            )
        yield from self._parts(entries)

    def can_forget(self, segment: Segment) -> bool:
        return True

    def backlog(self) -> StreamBacklog:
        return StreamBacklog(max(0, self._added - self._index), self._lost, self._trouble)

    def close(self) -> None:
        self._client.close()

    def _patiently(self, ask: Callable[[], Answer]) -> Answer:
        """Return the server's answer, retrying for PATIENCE_S while it is unreachable."""
        give_up_s, pause_s = self._now_s() + PATIENCE_S, FIRST_PAUSE_S
        while True:
            try:
                return ask()
            except PASSING as error:
                if isinstance(error, LASTING) or self._now_s() >= give_up_s:
                    raise
            self._sleep(pause_s)
            pause_s = min(LAST_PAUSE_S, 2 * pause_s)

    def _parts(self, entries: Entries) -> list[Rows | RejectedRows]:
        return [*self._messages.of_cells((f"entry {id_.decode()} of {self._key}", fields) for id_, fields in entries)]

    def _read_on(self, wait_s: float) -> Entries:
        block = max(1, round(1000 * wait_s))
        streams: Any = self._client.xread({self._key: self._last}, count=self._entries, block=block)
        return streams[0][1] if streams else []

    def _count(self) -> None:
        """Update, at intervals, the number of added entries and of those lost unread."""
        if self._now_s() - self._asked_s < ASK_S:
            return
        info = self._info()
        self._asked_s = self._now_s()
        if info is None and self._last == BEGINNING:
            return
        self._check(info)

    def _check(self, info: tuple[int, int, str] | None) -> None:
        if info is None or _number(info[2]) < _number(self._last):
            raise BadInput(
                f"stream {self._key}: expected the stream that was read up to {self._last}, got"
                f" {'none' if info is None else f'another one, which ends at {info[2]}'};"
                f" {self._context.anew} with this one"
            )
        self._added, length, _ = info
        # Entries older than the oldest existing one, except those that were read.
        gone = self._added - length - self._index
        if gone > 0:
            self._lost += gone
            self._index += gone

    def _info(self) -> tuple[int, int, str] | None:
        """Return the number of entries ever added, the current number, and the last id; None without such a stream."""
        try:
            info: Any = self._client.xinfo_stream(self._key)
        except exceptions.ResponseError as error:
            if "no such key" in str(error).lower():
                return None
            raise
        length, last = info["length"], info["last-generated-id"].decode()
        return info.get("entries-added", length), length, last


def _opened(url: str, field: str) -> tuple[str, redis.Redis]:
    parts = urlsplit(url)
    folders, _, key = parts.path.rpartition("/")
    if parts.scheme not in ("redis", "rediss") or not parts.hostname or not key:
        raise BadInput(f"{field}: expected redis[s]://[user:password@]host[:port][/db]/stream")
    try:
        client = redis.Redis.from_url(
            parts._replace(path=folders).geturl(),
            socket_timeout=TIMEOUT_S,
            socket_connect_timeout=TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
            decode_responses=False,
        )
    except ValueError:
        raise BadInput(f"{field}: expected redis[s]://[user:password@]host[:port][/db]/stream") from None
    return unquote(key), client


def _reason(error: exceptions.RedisError) -> str:
    """Describe an error without the client's own message, which may contain the URL."""
    if isinstance(error, exceptions.TimeoutError):
        return "no answer in time"
    if isinstance(error, exceptions.AuthenticationError | exceptions.NoPermissionError):
        return "no access: user or password are wrong, or may not read the stream"
    if isinstance(error, exceptions.BusyLoadingError):
        return "one that is still loading its data"
    if isinstance(error, exceptions.ConnectionError):
        return "none: it cannot be reached"
    return f"an error: {str(error).partition(' ')[0][:40]}"


def _number(entry_id: str) -> tuple[int, int]:
    milliseconds, _, sequence = entry_id.partition("-")
    return int(milliseconds), int(sequence or 0)
