"""Every error that a caller can meet, with its status in each protocol.

FreshetError                  500 INTERNAL
├── BadInput                  400 INVALID_ARGUMENT    the request, file or option is wrong
│   └── Corrupt               400 INVALID_ARGUMENT    bytes that fail their checksum or their bounds
├── NotFound                  404 NOT_FOUND           no such model, version, label or file
│   ├── UnknownModel          404 NOT_FOUND           no such model; carries the names of the known ones
│   ├── UnknownVersion        404 NOT_FOUND           no such version or label; carries the known ones
│   └── UserGone              410 FAILED_PRECONDITION nothing is kept of a user any more; send the inputs again
├── Conflict                  409 ABORTED             a delta that does not continue the change log
│   ├── Refused               409 ABORTED             a gate refused a full version; exit code 3 of a command
│   ├── Diverged              409 ABORTED             the files on disk differ from what is served under their name
│   ├── SigningKeyRequired    409 ABORTED             what is to be written must be signed, and there is no key
│   └── ParentRolledBack      409 ABORTED             the generation that the publisher builds on is no longer served
├── TooLarge                  413 RESOURCE_EXHAUSTED  beyond a stated limit
├── Overloaded                429 RESOURCE_EXHAUSTED  load shedding; carries retry_after_s
├── NotReady                  503 UNAVAILABLE         loading, draining or closed
└── Expired                   504 DEADLINE_EXCEEDED   its deadline passed in the queue

Messages name the field, the expected and the actual value. They are sent to clients unchanged, so they never contain a
path, a stack or an internal name.

A shortage in the process (of memory, descriptors, disk space, or a disk that does not answer) passes: shortage() and
unreadable() report it as NotReady, not as a fault of the file, and the operation is retried.
"""

import difflib
import errno
import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, TypeVar

NO_MEMORY = "not enough memory"
ACCEPT = "`freshet keys accept` resets the trusted state"
"""Hint for content that is older than what was trusted before."""

T = TypeVar("T")


class FreshetError(Exception):
    """An error whose message may be shown to any client."""

    http_status = 500
    grpc_code = "INTERNAL"
    exit_code = 2


class BadInput(FreshetError):
    """A request, option or file that does not fit; it fails again until it is changed."""

    http_status = 400
    grpc_code = "INVALID_ARGUMENT"


class Corrupt(BadInput):
    """A file that is damaged or is not what its name says."""


class NotFound(FreshetError):
    """A model, version or generation that does not exist."""

    http_status = 404
    grpc_code = "NOT_FOUND"

    def __init__(self, message: str, known: str = "") -> None:
        """Create the error; `known` are the names that exist, for another message about the same error."""
        super().__init__(message)
        self.known = known


class UnknownModel(NotFound):
    """A model that does not exist; `known` names those that do."""


class UnknownVersion(NotFound):
    """A version or label that does not exist; `known` names those of the model."""


class UserGone(NotFound):
    """A user of whom nothing is kept (processor.features.user_calls)."""

    http_status = 410
    grpc_code = "FAILED_PRECONDITION"


class Conflict(FreshetError):
    """A change that does not fit what is there now, such as a delta that continues another step."""

    http_status = 409
    grpc_code = "ABORTED"


class Refused(Conflict):
    """A full version that a gate has refused."""

    exit_code = 3


class Diverged(Conflict):
    def __init__(self, message: str, file: Path | None = None) -> None:
        """Create the error; `file` shows the difference: while it is unchanged, retrying is useless."""
        super().__init__(message)
        self.file = file


class SigningKeyRequired(Conflict):
    """A change to a signed repository by a process without a key."""


class ParentRolledBack(Conflict):
    """A delta whose parent generation was rolled back."""


class TooLarge(FreshetError):
    """A request beyond a limit of the server."""

    http_status = 413
    grpc_code = "RESOURCE_EXHAUSTED"


class Overloaded(FreshetError):
    """A request that was shed because the server has too much to do; it may be sent again later."""

    http_status = 429
    grpc_code = "RESOURCE_EXHAUSTED"

    def __init__(self, message: str, retry_after_s: float = 1.0, late: bool = False) -> None:
        """Create the error.

        Args:
            message: The message.
            retry_after_s: Seconds after which the client may retry.
            late: True if the request would have been late, False if there was no room for it.
        """
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.late = late


class NotReady(FreshetError):
    """A state that passes by itself: a model that loads, memory or a store that is missing."""

    http_status = 503
    grpc_code = "UNAVAILABLE"


class Expired(FreshetError):
    """A request whose deadline passed before it was answered."""

    http_status = 504
    grpc_code = "DEADLINE_EXCEEDED"


def printable(text: str) -> str:
    """Return text that others wrote on one line; characters that do not print (control, bidirectional) are escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


_KINDS = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}


def json_kind(value: Any) -> str:
    """Return the kind of a JSON value, for messages."""
    return _KINDS.get(type(value), "a number")


MAX_NAMES = 10_000
"""Names beyond these are not compared: a folder may hold millions."""
MAX_NAME_LENGTH = 256
"""Characters of a name that others are near to: a file's name has no more, a client's may have millions."""


_BODIES = "twice max_body_bytes, at least 128 MiB"
ENDED = {
    "demo.admin_port": "the demo takes 8502, or the next free port",
    "admin_token": "set FRESHET_ADMIN_TOKEN in the environment",
    "data.format.libsvm": "python examples/libsvm_to_parquet.py converts it",
    "dtype": "always float32",
    "demo.folder": "the demo's is .demo",
    "guard.first_windows": "always 5",
    "guard.ndcg_drop": "always 0.3",
    "guard.sigmas": "always 6",
    "html": "now --out",
    "demo.http_port": "the demo takes 8501, or the next free port",
    "import_cpu_s": "twice import_timeout_s",
    "import_processor_s": "twice import_timeout_s",
    "key": "set FRESHET_KEY in the environment",
    "keys": "set FRESHET_API_KEYS in the environment",
    "max_bodies_bytes": _BODIES,
    "max_inflight_body_bytes": _BODIES,
    "max_buckets": "always 6; --buckets names others",
    "max_inflation": "always 100; send tensors as bytes",
    "max_json_bytes": "always 16 MiB; send tensors as bytes",
    "max_nodes": "always 4,000,000; send tensors as bytes",
    "max_queue_ids": "64 for each of max_queue_rows",
    "on_server": "send the file itself, or POST its path to the admin port",
    "policy": "always one queue that idle sessions take from",
    "profile": "the run's report has it",
    "publish.delta_movement": "use delta_seconds or delta_rows",
    "publish.gate.sigmas": "always 6",
    "publish.gate.units": "always 5",
    "requests": "always 256",
    "session_cpus": "now cpus of a section [groups.NAME]",
    "tables.admit_error": "always 0.01; a larger admit_ids makes errors fewer",
    "tables.cache": "always lfu",
    "vectors": 'POST {"vectors": true} to explain of the admin port',
}
"""Former options, keys (with their section), flags (some with their command) and values -> what to do now."""


def nearest(name: str, names: Collection[str]) -> str:
    """Return a hint for an unknown name: ' (did you mean ...?)', or ''."""
    if len(name) > MAX_NAME_LENGTH:
        # difflib would take a third of a second and 50 MB for each million of its characters.
        return ""
    close = difflib.get_close_matches(name, list(names)[:MAX_NAMES], n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def option_hint(name: str, names: Collection[str], section: str = "") -> str:
    """Return a hint for an unknown option, key or flag: ' (ended: ...)' for a former one, else that of nearest().

    A key's `section` is that of the training file, or the key whose value it is; a flag's is its command.
    """
    plain = name.lstrip("-").replace("-", "_")
    now = ENDED.get(f"{section}.{plain}") or (ENDED.get(plain) if not section or name.startswith("-") else None)
    return f" (ended: {now})" if now else nearest(name, names)


def nearest_file(path: str | Path) -> str:
    """Return a hint for a missing file or folder, from the names beside it, or ''."""
    path = Path(path)
    try:
        with os.scandir(path.parent) as entries:
            names = [entry.name for entry, _ in zip(entries, range(MAX_NAMES))]
    except OSError:
        return ""
    return nearest(path.name, names)


PASSING = {
    errno.ENOMEM,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EAGAIN,
    errno.EIO,
    errno.ESTALE,
    errno.ETIMEDOUT,
}


def shortage(error: BaseException) -> NotReady | None:
    """Return a NotReady if the error is a transient shortage of the process, or says so already; else None."""
    if isinstance(error, NotReady):
        return error
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "new thread" in str(error)):
        # Without memory for its stack a thread does not start.
        return NotReady(NO_MEMORY)
    if isinstance(error, OSError) and error.errno in PASSING:
        where = f"{Path(os.fsdecode(error.filename)).name}: " if isinstance(error.filename, (str, bytes)) else ""
        return NotReady(f"{where}{os.strerror(error.errno)}")
    return None


def unreadable(what: str, error: OSError) -> FreshetError:
    """Return the error for a file, named `what`, that cannot be read: NotReady if that passes, else Corrupt."""
    kind = Corrupt if shortage(error) is None else NotReady
    return kind(f"{what}: cannot be read: {error.strerror or 'it cannot be mapped'}")


def first_of(items: Iterable[T]) -> T:
    """Return the first item; raise LookupError if there is none.

    next() would raise StopIteration, which ends the generators it passes through and which no future can hold: its
    waiter waits for ever. tests/test_stop_iteration.py keeps next() out of the engine and the servers.
    """
    for item in items:
        return item
    raise LookupError("expected at least one item, got none")
