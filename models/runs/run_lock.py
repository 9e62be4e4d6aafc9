"""Allow one trainer of a model at a time, by a lock on a file beside its checkpoints.

Two trainers of one model would overwrite each other's checkpoints, and the second would learn everything before it is
refused. The lock (flock) is released when the process that holds it ends, so a kill leaves nothing behind. On a file
system without locks no trainer is refused.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from freshet_serving.processor.errors import Conflict

LOCK = "trainer.lock"


@contextmanager
def trainer_lock(folder: Path, model: str) -> Iterator[None]:
    """Hold the lock of a model's trainer, in the folder of its checkpoints, for the block. Raises Conflict."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise Conflict(
                    f"another trainer of {model!r} is running on this repository: wait for it, or stop it first"
                ) from None
        yield
    finally:
        os.close(lock)
