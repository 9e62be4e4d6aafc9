"""Generate the tables of docs/reference/python.md from signatures and docstrings of `freshet_serving`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import freshet_serving

GROUPS = {
    "Call a server": ("Client", "AsyncClient", "Prediction", "Recommendation", "Retry", "Ragged", "Strings"),
    "Publish": ("Publisher",),
    "Serve in your own process": ("Processor", "ProcessorConfig", "PredictRequest", "PredictReply"),
    "Read data": ("Dataset",),
    "Extend Freshet": ("Arch", "Backend", "Program", "Executable", "Artefact", "Stage", "StageRuntime"),
    "Errors": (),
}
"""Names grouped by purpose; errors are recognised by their type."""
LONGEST = 90
SECTIONS = ("Args:", "Attributes:", "Returns:", "Raises:", "Yields:")
NAMED = re.compile(r"\*{0,2}\w+(, \*{0,2}\w+)*")
"""What an entry of a section is called: arguments, attributes or an exception."""
OF_PROCESSOR = ("initialize", "process", "batch_process", "poll", "apply_delta", "rollback", "close")
"""The public methods of Processor, which has others that only the server uses."""


def page() -> str:
    """Return the tables as Markdown; raise KeyError for a name that is in no group."""
    errors = {name for name in freshet_serving.__all__ if issubclass(getattr(freshet_serving, name), Exception)}
    if missing := set(freshet_serving.__all__) - errors - {name for names in GROUPS.values() for name in names}:
        raise KeyError(f"names without a group: {', '.join(sorted(missing))}")
    parts = []
    for title, names in GROUPS.items():
        parts.append(f"## {title}\n")
        parts.extend(_class(getattr(freshet_serving, name)) for name in names)
    parts.append(_errors([getattr(freshet_serving, name) for name in sorted(errors)]))
    return "\n".join(parts)


def _class(kind: type[Any]) -> str:
    # A protocol is implemented, not constructed.
    head = (
        f"class {kind.__name__}(Protocol)" if vars(kind).get("_is_protocol") else f"{kind.__name__}{_signature(kind)}"
    )
    text = f"### {kind.__name__}\n\n```python\n{head}\n```\n\n{_told(kind)}"
    text += _told(vars(kind).get("__init__"))
    for name, member in _methods(kind):
        prefix = "await " if inspect.iscoroutinefunction(member) else ""
        returned = f" -> {_type(inspect.signature(member).return_annotation)}"
        text += f"```python\n{prefix}{kind.__name__}.{name}{_signature(member)}{returned}\n```\n\n{_told(member)}"
    return text


def _methods(kind: type[Any]) -> Iterator[tuple[str, Any]]:
    names = OF_PROCESSOR if kind.__name__ == "Processor" else [name for name in vars(kind) if not name.startswith("_")]
    for name in names:
        member = inspect.unwrap(getattr(kind, name)) if callable(getattr(kind, name)) else None
        if inspect.isroutine(member) and member.__doc__:
            yield name, member


def _signature(member: Any) -> str:
    """Return a signature without self, with one parameter per line if it is long."""
    parts, keyword_only = [], False
    for parameter in inspect.signature(member).parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            parts.append("*")
        stars = "**" if parameter.kind is parameter.VAR_KEYWORD else ""
        default = "" if parameter.default is parameter.empty else f" = {_default(parameter.default)}"
        parts.append(f"{stars}{parameter.name}: {_type(parameter.annotation)}{default}")
    line = f"({', '.join(parts)})"
    return line if len(line) <= LONGEST else "(\n" + "".join(f"    {part},\n" for part in parts) + ")"


def _type(annotation: Any) -> str:
    return str(getattr(annotation, "__forward_arg__", annotation))


def _default(value: Any) -> str:
    """Return a default as written in the source; "..." if it has no short form."""
    return repr(value) if value is None or isinstance(value, int | float | str | tuple) else "..."


def _told(member: Any) -> str:
    """Return a docstring as Markdown, its Google sections as lists; "" if the member has none of its own."""
    text = inspect.cleandoc(getattr(member, "__doc__", None) or "")
    return f"{_sections(text)}\n\n" if text else ""


def _sections(text: str) -> str:
    lines: list[str] = []
    inside = False
    for line in text.split("\n"):
        if line in SECTIONS:
            lines += [f"{line}", ""]
            inside = True
        elif inside and line.startswith("    ") and not line.startswith("     "):
            name, colon, rest = line.strip().partition(": ")
            lines.append(f"- `{name}`: {rest}" if colon and NAMED.fullmatch(name) else f"- {line.strip()}")
        elif inside and line.startswith("     "):
            lines.append(f"  {line.strip()}")
        else:
            inside = inside and not line
            lines.append(line)
    return "\n".join(lines)


def _errors(errors: list[type[Any]]) -> str:
    rows = (
        f"| `{kind.__name__}` | `{kind.__bases__[0].__name__}` | {kind.http_status} | {kind.grpc_code} |\n"
        for kind in sorted(errors, key=lambda kind: (kind.http_status, kind.__name__))
    )
    return "| error | is a | HTTP | gRPC |\n|---|---|---|---|\n" + "".join(rows)
