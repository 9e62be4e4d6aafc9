"""Say in one line why a command failed: a mistake on its command line, or what the system refuses it.

Depending on its release, typer has its errors in a package of its own or uses click's, so they are recognised by their
attributes.

The system refuses for a full disk, a folder that may not be written to, a file in its place. A command and its
libraries, which have exceptions of their own, read and write in a hundred places. So this is decided once, where the
command ends, by the system's own words. An error without them is a mistake of ours and keeps its traceback.
"""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import Any

from freshet_serving.processor.errors import nearest, option_hint

COMMAND = re.compile(r"No such command '(.*?)'")
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


def usage_line(error: Any) -> str:
    """Return one line about a usage error: the option or argument, what was expected, and what was given."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "freshet"
    if option := getattr(error, "option_name", ""):
        return _option(error, str(option), context, command)
    parameter = getattr(error, "param", None)
    if parameter is not None:
        name = _name(parameter)
        problems = getattr(error.__cause__, "errors", None)
        if problems is not None:
            from freshet_serving.serving.codecs.validation import expected

            return f"{name}: {expected(problems()[0])}"
        if not error.message:
            return f"{name}: expected by {command}, got nothing; see {command} --help"
        return f"{name}: {_line(error.message)}"
    message = _line(error.format_message())
    if unknown := COMMAND.match(message):
        names = list(getattr(context.command, "commands", ())) if context is not None else []
        hint = nearest(unknown[1], names) or f"; {command} --help lists them"
        return f"{unknown[1]!r}: no command of {command}{hint}"
    return f"{message[:1].lower()}{message[1:].rstrip('.')}; see {command} --help"


def _option(error: Any, option: str, context: Any, command: str) -> str:
    names = [name for each in context.command.params for name in each.opts] if context is not None else []
    if not hasattr(error, "possibilities"):
        return f"{option}: {_line(error.message)}"
    hint = option_hint(option, names, command.rpartition(" ")[2]) or f"; {command} --help lists them"
    return f"{option}: no option of {command}{hint}"


def _name(parameter: Any) -> str:
    names = [name for name in parameter.opts if name.startswith("-")]
    return str(max(names, key=len)) if names else str(parameter.name)


def _line(text: str) -> str:
    return " ".join(text.split())


def system_line(error: BaseException) -> str | None:
    """Return what the system refused, in one line; None if the error is not the system's."""
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
