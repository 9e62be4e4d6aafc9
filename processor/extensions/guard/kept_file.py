"""Kept requests, and what the gate has learned, over a restart: one bounded file a model, in the scratch folder.

They are requests of people, so they lie only where the operator has named a folder (`scratch`), never in a repository:
as columns that the model reads (kept_requests), readable by this user alone, for at most OLDEST_S.

    kept-<model>-<hash of the repository>    a line of JSON (format, signature of the model, CRC-32 of the requests,
                                             what was learned, what was served), then the requests

A file appears whole under its name, or not at all. A file of a model with other inputs, a damaged, an overlong and an
old one count as none: a version is served, and begins without requests.

Costs: at most MOST_NBYTES for each model, written when they have changed, at most once a minute
(processor.versions.host), by a thread that no request waits for.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import stat
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from freshet_serving.processor.clock import Clock
from freshet_serving.processor.extensions.guard.kept_requests import MOST_NBYTES, without_user
from freshet_serving.processor.package import Input
from freshet_serving.processor.versions.erasure import ErasedUser

log = logging.getLogger("freshet.gate")

NOTHING = b"", None

FORMAT = "freshet-kept-file/1"
OLDEST_S = 7 * 86400.0
MAX_LINE_NBYTES = 1 << 20


class ServedBefore(NamedTuple):
    """The version of a model that a server had served by default, and root hashes of those that it had let in."""

    version: int
    roots: Mapping[int, str]


class KeptFiles:
    def __init__(self, folder: str | Path, repository: str | Path, clock: Clock) -> None:
        """Read nothing yet; `folder` is the scratch folder, `repository` has the models."""
        self._folder, self._clock = Path(folder), clock
        self._repository = xxhash.xxh3_64_hexdigest(str(repository).encode())
        # Checksum of what each model's file holds.
        self._written: dict[str, int] = {}

    def read(self, model: str, inputs: Sequence[Input]) -> tuple[bytes, Any]:
        """Return the kept requests of a model and what was learned; (b"", None) if there are none for these inputs."""
        try:
            if (content := self._content(model)) is None:
                return NOTHING
            line, requests = content
            header = json.loads(line)
            header.pop("served", None)
            learned = header.pop("learned")
            if header == _header(inputs, requests):
                return requests, learned
            if header["format"] == FORMAT and header["signature"] != _signature(inputs):
                log.info("kept requests of %s are discarded: its inputs are others now", model)
                return NOTHING
        except FileNotFoundError:
            return NOTHING
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            pass
        log.warning("kept requests of %s are discarded: the file in the scratch folder cannot be read", model)
        return NOTHING

    def served(self, model: str) -> ServedBefore | None:
        """Return what was served when the file of a model was written; None if that is not known."""
        try:
            if (content := self._content(model)) is None:
                return None
            header = json.loads(content[0])
            version, roots = header["served"]
            before = ServedBefore(int(version), {int(number): root for number, root in roots.items()})
            sound = header["format"] == FORMAT and all(type(root) is str for root in before.roots.values())
            return before if sound else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
            return None

    def write(
        self, model: str, inputs: Sequence[Input], requests: bytes, learned: Any, served: ServedBefore | None = None
    ) -> None:
        """Replace the kept requests of a model, if they have changed; a full disk is a line in the log."""
        line = json.dumps({**_header(inputs, requests), "learned": learned, "served": served}).encode()
        checksum = zlib.crc32(requests, zlib.crc32(line))
        if self._written.get(model) == checksum:
            return
        try:
            self._replace(model, line + b"\n" + requests)
        except OSError as error:
            log.warning("cannot keep the requests of %s in the scratch folder: %s", model, error.strerror)
            return
        self._written[model] = checksum

    def erase(self, user: ErasedUser) -> int:
        """Take the requests of a user out of a model's file; return how many there were.

        Raises OSError if the file is there, and can be neither replaced nor removed.
        """
        model, path = user.model, self._path(user.model)
        self._written.pop(model, None)
        try:
            content = self._content(model)
        except FileNotFoundError:
            return 0
        if content is None:
            # Too old to be used, or another's.
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
            return 0
        line, requests = content
        others, erased = without_user(requests, user)
        if not erased:
            return 0
        try:
            header = json.loads(line)
            header["crc32"] = zlib.crc32(others)
            self._replace(model, json.dumps(header).encode() + b"\n" + others)
        except (OSError, ValueError, TypeError, RecursionError):
            path.unlink()
        return erased

    def _replace(self, model: str, content: bytes) -> None:
        path, temporary = self._path(model), ""
        try:
            fd, temporary = tempfile.mkstemp(dir=self._folder, prefix=f".{path.name}-")
            with open(fd, "wb") as file:
                file.write(content)
            os.replace(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise

    def _content(self, model: str) -> tuple[bytes, bytes] | None:
        """Return the first line and the rest of a model's file; None for another user's, or one that is too old."""
        with open(os.open(self._path(model), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            is_own = stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid()
            if not is_own or self._clock.unix_s() - status.st_mtime > OLDEST_S:
                return None
            return file.readline(MAX_LINE_NBYTES), file.read(2 * MOST_NBYTES + 1)

    def _path(self, model: str) -> Path:
        return self._folder / f"kept-{model}-{self._repository}"


def _header(inputs: Sequence[Input], requests: bytes) -> dict[str, str | int]:
    return {"format": FORMAT, "signature": _signature(inputs), "crc32": zlib.crc32(requests)}


def _signature(inputs: Sequence[Input]) -> str:
    spelled = sorted([i.name, i.dtype, i.columns or 0, i.ragged] for i in inputs)
    return xxhash.xxh3_128_hexdigest(json.dumps(spelled).encode())
