"""Log to standard error, as text or JSON lines, with rate limiting; and write the access log.

`extra={"fields": {...}}` of a log call adds keys to a JSON line, but not to a text line: a message must be complete by
itself.

Invariants
- A record is one line of printable characters, whatever a client's path, a file name or an exception contains: line
  ends, terminal escapes, Unicode separators and direction marks are escaped as in a Python string. So log lines cannot
  be forged, and no text can control a terminal.
- Warnings and errors from one place in the code are written BURST at once and then one every INTERVAL_S, so a flood
  costs little. The first suppressed one is written when its turn comes or when the log is closed, with the number of
  the others. Lower levels are never suppressed: outside input causes them only through the access log, which is opt-in,
  and through changes, which are all logged.
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
"""Schedules a call after so many seconds, on any thread; raises RuntimeError if that is impossible."""


class TextFormatter(logging.Formatter):
    """Formats records as text, one line each; an exception is included in the line."""

    def __init__(self, process: str) -> None:
        super().__init__(f"%(asctime)s %(levelname)s %(name)s{f' {process}' if process else ''} %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        more = getattr(record, "more", 0)
        return super().formatMessage(record) + (f" ({more} more like it)" if more else "")

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


class JsonFormatter(logging.Formatter):
    """Formats records as JSON, one object per line.

    The keys are time, level, logger and message; process, exception, more (the number of suppressed similar records)
    and fields are added if present.
    """

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
        # orjson would leave non-ASCII characters unescaped, and refuses a lone surrogate.
        return json.dumps(line, default=str, separators=(",", ":"))


@dataclass(slots=True)
class LogSite:
    """Rate limiter of one place in the code that logs.

    Attributes:
        free_s: Time from which the next line may be written, not counting the burst.
        held: The first suppressed record; None for none.
        more: Number of records suppressed after it.
    """

    free_s: float = -math.inf
    held: logging.LogRecord | None = None
    more: int = 0

    def take(self, now_s: float) -> bool:
        """Return whether a line may be written now; if so, count it as written."""
        free_s = max(self.free_s, now_s - (BURST - 1) * INTERVAL_S)
        if free_s > now_s:
            return False
        self.free_s = free_s + INTERVAL_S
        return True


class RateLimitedHandler(logging.StreamHandler[TextIO]):
    """Writes records to a stream and rate-limits floods."""

    def __init__(self, stream: TextIO, clock: Clock | None = None, later: Later | None = None) -> None:
        super().__init__(stream)
        self._clock, self._later = clock or SystemClock(), later or _in_a_thread
        self._sites: dict[tuple[str, int], LogSite] = {}
        # Time when flush_suppressed() is due; a call later than this by COME_S is considered lost.
        self._due_s = -math.inf

    def emit(self, record: logging.LogRecord) -> None:
        """Write or suppress a record; logging.Handler calls this under its lock."""
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
        """Write suppressed records whose turn has come; with `everything`, all of them."""
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
        self.flush_suppressed(everything=True)
        super().close()

    def _ask(self) -> None:
        """Schedule one call of flush_suppressed() for the next suppressed record."""
        now_s = self._clock.now_s()
        if now_s < self._due_s + COME_S:
            return
        turns_s = [outlet.free_s for outlet in self._sites.values() if outlet.held is not None]
        if turns_s:
            # If no thread can be started, the next record of the flood or the end of the log tries again.
            with contextlib.suppress(RuntimeError, MemoryError, FreshetError):
                delay_s = max(0.0, min(turns_s) - now_s)
                self._later(delay_s, self.flush_suppressed)
                self._due_s = now_s + delay_s


def _in_a_thread(delay_s: float, act: Callable[[], None]) -> None:
    """Call `act` after a delay, on a new thread.

    Not threading.Timer: its start() waits for the thread to begin, but a caller that logs holds locks and must not wait
    for a thread that may never begin.
    """

    def wait() -> None:
        time.sleep(delay_s)
        act()

    spawn(wait)


def log_to_stderr(level: str, form: str, process: str = "") -> None:
    """Log to standard error, including exceptions that end a thread; `process` is "" if it is the only one."""
    handler = RateLimitedHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(process) if form == "json" else TextFormatter(process))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for noisy in ("uvicorn", "urllib3", "opentelemetry"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    threading.excepthook = _thread_ended
    # gRPC's core writes to the file descriptor itself, a line for each broken header of each client. It reads this
    # variable on import, in this process or in child processes.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def _thread_ended(ended: threading.ExceptHookArgs) -> None:
    if ended.exc_type is not SystemExit:
        name = ended.thread.name if ended.thread else "?"
        logging.getLogger("freshet").error("thread %s ended with an error", name, exc_info=ended.exc_value)


def enable_faulthandler() -> None:
    """Make a process that dies of a signal first report the signal and its stack on standard error.

    Such a signal is raised for a page of a mapped file that is gone, or an invalid address. The report has the
    interpreter's own format.
    """
    faulthandler.enable(STANDARD_ERROR, all_threads=False)


class AccessLog:
    """The access log: one line for a share of the requests. Used by one event loop."""

    def __init__(self, share: float) -> None:
        self._share, self._credit = share, 0.0
        self._log = logging.getLogger("freshet.access")

    def __call__(self, protocol: str, path: str, status: int, seconds: float, request_id: str, nbytes: int) -> None:
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
    """Return a client's text as one word of a line, quoted if it has spaces."""
    return repr(text) if " " in text or text[:1] in ("'", '"') else text
