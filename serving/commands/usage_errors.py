"""Format a command-line error as one line, like every other error of a command.

Depending on its release, typer has its errors in a package of its own or uses click's, so they are recognised by their
attributes.
"""

from __future__ import annotations

import re
from typing import Any

from freshet_serving.processor.errors import nearest

COMMAND = re.compile(r"No such command '(.*?)'")


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
    if found := COMMAND.match(message):
        there = list(getattr(context.command, "commands", ())) if context is not None else []
        return f"{found[1]!r}: no command of {command}{nearest(found[1], there) or f'; {command} --help lists them'}"
    return f"{message[:1].lower()}{message[1:].rstrip('.')}; see {command} --help"


def _option(error: Any, option: str, context: Any, command: str) -> str:
    there = [name for each in context.command.params for name in each.opts] if context is not None else []
    if not hasattr(error, "possibilities"):
        return f"{option}: {_line(error.message)}"
    return f"{option}: no option of {command}{nearest(option, there) or f'; {command} --help lists them'}"


def _name(parameter: Any) -> str:
    names = [name for name in parameter.opts if name.startswith("-")]
    return str(max(names, key=len)) if names else str(parameter.name)


def _line(text: str) -> str:
    return " ".join(text.split())
