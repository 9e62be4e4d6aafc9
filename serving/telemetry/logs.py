"""The log of a process, on standard error: lines for people, or JSON for machines; and the access log.

What a caller gives under `extra={"fields": {...}}` stands beside the message: in JSON as keys, in text not at all, so a
message says by itself what there is to say.
"""

from __future__ import annotations

import faulthandler
import logging
import sys
from datetime import UTC, datetime
from typing import Any

import orjson

STANDARD_ERROR = 2


class JsonFormatter(logging.Formatter):
    """Formats records as JSON, one object a line: time, level, logger, message; process, exception, fields if any."""

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
        line |= getattr(record, "fields", {})
        return orjson.dumps(line, default=str).decode()


def log_to_stderr(level: str, form: str, process: str = "") -> None:
    """Sends this process's log there. process: "" where there is one only."""
    handler = logging.StreamHandler(sys.stderr)
    if form == "json":
        handler.setFormatter(JsonFormatter(process))
    else:
        name = f" {process}" if process else ""
        handler.setFormatter(logging.Formatter(f"%(asctime)s %(levelname)s %(name)s{name} %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for noisy in ("uvicorn", "urllib3", "opentelemetry"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def last_words() -> None:
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
            "%s %s %d %.3f ms %d bytes %s", protocol, path, status, seconds * 1e3, nbytes, request_id or "-",
            extra={"fields": fields},
        )  # fmt: skip
