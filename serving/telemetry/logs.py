"""The log of a process, on standard error: lines for people, or JSON for machines; and the access log.

What a caller gives under `extra={"fields": {...}}` stands beside the message: in JSON as keys, in text not at all, so a
message says by itself what there is to say.

Invariants
- A record is one line of printable characters, whatever a client's path, a file's name or an exception brings: the end
  of a line, a terminal's escape, Unicode's separators and directions are written as in a Python string. So nobody
  forges a line, and no terminal is told what to do.
- Warnings and errors of one place in the code are written BURST at once and then one every INTERVAL_S, so a flood costs
  little. Of those held back the first follows when its turn comes, or when the log is closed, and says how many more
  there were. Information is never held back: nobody outside brings any about but by the access log, which was asked
  for, and by changes, which are told of one by one.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TextIO

from freshet_serving.processor.clock import Clock, SystemClock
from freshet_serving.processor.errors import FreshetError, printable
from freshet_serving.processor.standby_thread import COME_S, spawn

BURST, INTERVAL_S = 20, 10.0
STANDARD_ERROR = 2

Later = Callable[[float, Callable[[], None]], None]
"""Has a function called after so many seconds, in any thread; raises RuntimeError where that cannot be."""


class TextFormatter(logging.Formatter):
    """Formats records as text, one line each; an exception stands in its line, line by line."""

    def __init__(self, process: str) -> None:
        super().__init__(f"%(asctime)s %(levelname)s %(name)s{f' {process}' if process else ''} %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        more = getattr(record, "more", 0)
        return super().formatMessage(record) + (f" ({more} more like it)" if more else "")

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


class JsonFormatter(logging.Formatter):
    """Formats records as JSON, one object a line: time, level, logger, message; process, exception, more (how many like
    it were held back), fields if any."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if self._process:
            line["process"] = self._process
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if more := getattr(record, "more", 0):
            line["more"] = more
        line |= getattr(record, "fields", {})
        # orjson leaves what is not ASCII as it is, and refuses half a surrogate.
        return json.dumps(line, default=str, separators=(",", ":"))


@dataclass(slots=True)
class LogSite:
    """A place of the code that logs. free_s: from when on its next line may be written, but for the burst. held: the
    first line that could not be; more: how many came after it."""

    free_s: float = -math.inf
    held: logging.LogRecord | None = None
    more: int = 0

    def take(self, now_s: float) -> bool:
        """Whether a line may be written now; then it counts as written."""
        free_s = max(self.free_s, now_s - (BURST - 1) * INTERVAL_S)
        if free_s > now_s:
            return False
        self.free_s = free_s + INTERVAL_S
        return True


class RateLimitedHandler(logging.StreamHandler[TextIO]):
    """Writes records to a stream, floods thinned out."""

    def __init__(self, stream: TextIO, clock: Clock | None = None, later: Later | None = None) -> None:
        super().__init__(stream)
        self._clock, self._later = clock or SystemClock(), later or _in_a_thread
        self._sites: dict[tuple[str, int], LogSite] = {}
        # When flush_suppressed() is to be called; one that is late by COME_S never will be.
        self._due_s = -math.inf

    def emit(self, record: logging.LogRecord) -> None:
        """See logging.Handler: called under its lock."""
        if record.levelno < logging.WARNING:
            super().emit(record)
            return
        outlet = self._sites.setdefault((record.pathname, record.lineno), LogSite())
        if outlet.held is not None:
            outlet.more += 1
        elif outlet.take(self._clock.now_s()):
            super().emit(record)
        else:
            outlet.held = record
        self._ask()

    def flush_suppressed(self, everything: bool = False) -> None:
        """Writes what was held back and has its turn; everything: whether it has or not."""
        self.acquire()
        try:
            self._due_s = -math.inf
            for outlet in list(self._sites.values()):
                held = outlet.held
                if held is not None and (outlet.take(self._clock.now_s()) or everything):
                    held.__dict__["more"] = outlet.more
                    outlet.held, outlet.more = None, 0
                    super().emit(held)
            self._ask()
        finally:
            self.release()

    def close(self) -> None:
        """See logging.Handler: nothing that was held back is lost."""
        self.flush_suppressed(everything=True)
        super().close()

    def _ask(self) -> None:
        """Has flush_suppressed() called when the next line has its turn, once for all of them."""
        now_s = self._clock.now_s()
        if now_s < self._due_s + COME_S:
            return
        turns_s = [outlet.free_s for outlet in self._sites.values() if outlet.held is not None]
        if turns_s:
            # Where no thread can be started, the next line of the flood asks again, or the end of the log does.
            with contextlib.suppress(RuntimeError, MemoryError, FreshetError):
                delay_s = max(0.0, min(turns_s) - now_s)
                self._later(delay_s, self.flush_suppressed)
                self._due_s = now_s + delay_s


def _in_a_thread(delay_s: float, act: Callable[[], None]) -> None:
    """Not by a Timer: who logs holds locks, and is not to wait for a thread that may never begin."""

    def wait() -> None:
        time.sleep(delay_s)
        act()

    spawn(wait)


def log_to_stderr(level: str, form: str, process: str = "") -> None:
    """Sends this process's log there, and what ends a thread. process: "" where there is one only."""
    handler = RateLimitedHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(process) if form == "json" else TextFormatter(process))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for noisy in ("uvicorn", "urllib3", "opentelemetry"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    threading.excepthook = _thread_ended
    # gRPC's core writes to the descriptor itself, a line for each broken header of each client. It reads this when it
    # is imported, here or in processes that come of this one.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def _thread_ended(ended: threading.ExceptHookArgs) -> None:
    if ended.exc_type is not SystemExit:
        name = ended.thread.name if ended.thread else "?"
        logging.getLogger("freshet").error("thread %s has ended by an error", name, exc_info=ended.exc_value)


def enable_faulthandler() -> None:
    """Has a process that a signal ends (a page of a mapped file that is gone, an invalid address) say on standard error
    which signal, and where it was, before it dies of it. In lines of the interpreter's own, whatever the log's form."""
    faulthandler.enable(STANDARD_ERROR, all_threads=False)


class AccessLog:
    """The access log: one line for each of a share of the requests. One event loop uses it."""

    def __init__(self, share: float) -> None:
        self._share, self._credit = share, 0.0
        self._log = logging.getLogger("freshet.access")

    def __call__(self, protocol: str, path: str, status: int, seconds: float, request_id: str, nbytes: int) -> None:
        """nbytes: of the reply."""
        self._credit += self._share
        if self._credit < 1.0:
            return
        self._credit -= 1.0
        fields = {
            "request_id": request_id, "protocol": protocol, "path": path, "status": status,
            "ms": round(seconds * 1e3, 3), "bytes": nbytes,
        }  # fmt: skip
        self._log.info(
            "%s %s %d %.3f ms %d bytes %s", protocol, _word(path), status, seconds * 1e3, nbytes,
            _word(request_id or "-"), extra={"fields": fields},
        )  # fmt: skip


def _word(text: str) -> str:
    """A client's text as one word of a line, quoted where it would be several."""
    return repr(text) if " " in text or text[:1] in ("'", '"') else text
