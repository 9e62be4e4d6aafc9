"""One line for what the system refuses a command: a full disk, a folder that it may not write to, a file in its place.

A command reads and writes in a hundred places, and so do the libraries that it calls, which have exceptions of their
own. So this is decided once, where the command ends, by the system's own words. An error that has none of them is a
mistake of ours and keeps its traceback.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

HINTS = {
    errno.ENOSPC: "free some space and run the command again",
    errno.EDQUOT: "free some space and run the command again",
    errno.EACCES: "check who may write there",
    errno.EPERM: "check who may write there",
    errno.EROFS: "choose a folder that can be written to",
    errno.ENOTDIR: "a file lies where a folder is expected",
    errno.EISDIR: "a folder lies where a file is expected",
    errno.EEXIST: "a file lies where a folder is expected",
    errno.ENOENT: "check the path",
    errno.EIO: "the disk or the network share fails",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENOMEM: "",
}
"""What to do, by the system's number of an error."""


def system_line(error: BaseException) -> str | None:
    """Return what the system refused, in one line; None if the error is not the system's.

    Args:
        error: What ended the command.
    """
    if isinstance(error, BrokenPipeError):
        return None
    if isinstance(error, OSError) and error.errno is not None:
        number, name = error.errno, error.filename2 or error.filename
        reason = os.strerror(number)
    else:
        text = str(error)
        number = next((number for number in HINTS if os.strerror(number) in text), 0)
        if not number:
            return None
        name, reason = None, os.strerror(number)
        # Of a library's exception the first words say which file: "path; No space left on device".
        before = text.partition(reason)[0].strip(" ;:\n")
        name = before.splitlines()[-1][-200:] if before else None
    hint = HINTS.get(number, "")
    where = _shown(name) if name else "the system refused"
    return f"{where}: {reason}{f'; {hint}' if hint else ''}"


def _shown(name: str | bytes | int) -> str:
    """Return a file's name as the user knows it: relative to the working folder, if it lies there."""
    if isinstance(name, int):
        return "an open file"
    path = Path(os.fsdecode(name))
    try:
        return str(path.relative_to(Path.cwd())) if path.is_absolute() else str(path)
    except (ValueError, OSError):
        return str(path)
