"""Sections and keys of a training file, for `freshet train --help-keys` and the documentation's reference.

Names, types, defaults and help texts come from the dataclasses that the file is parsed into.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from freshet_serving.models.config.train_config import TrainConfig
from freshet_serving.processor.options import Option, options_of

NAMES = {str: "string", int: "integer", float: "number", bool: "true or false"}
SEVERAL = {str: "strings", int: "integers", float: "numbers"}
LINK = re.compile(r"\[([^\[\]]*)\]\([^()]*\)")


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a section. Default and help are Markdown; the default is "required" where there is none."""

    name: str
    type: str
    default: str
    help: str


@dataclass(frozen=True, slots=True)
class FileSection:
    """A section with its keys; none where they are the user's own, or described elsewhere."""

    title: str
    help: str
    keys: tuple[Key, ...]


def file_sections() -> Iterator[FileSection]:
    """Yield every section of a training file, in the order of the file, each before the sections inside it."""
    hints = typing.get_type_hints(TrainConfig)
    for field in dataclasses.fields(TrainConfig):
        yield from _sections(field, hints[field.name])


def keys_as_text() -> str:
    lines = []
    for section in file_sections():
        lines += [f"[{section.title}]", f"  {plain(section.help)}", ""]
        for key in section.keys:
            default = f"; default {plain(key.default)}" if key.default not in ("", "required") else ""
            required = "; required" if key.default == "required" else ""
            lines.append(f"  {key.name} ({key.type}{default}{required})\n      {plain(key.help)}")
        lines += [""] if section.keys else []
    return "\n".join(lines).rstrip()


def plain(markdown: str) -> str:
    """Return Markdown of one line without the marks of links and code."""
    return LINK.sub(r"\1", markdown).replace("`", "")


def _sections(field: dataclasses.Field[Any], hint: Any, outer: str = "") -> Iterator[FileSection]:
    section = field.metadata["section"]
    title = f"{outer}{field.name}.{section.named}" if section.named else f"{outer}{field.name}"
    kind: type[Any] = typing.get_args(hint)[-1] if typing.get_args(hint) else hint
    if not dataclasses.is_dataclass(kind) or not list(options_of(kind)):
        yield FileSection(title, section.text, ())
        return
    hints = typing.get_type_hints(kind)
    # A section's own options come before those that it inherits.
    inherited = {name for base in kind.__bases__ for name in getattr(base, "__dataclass_fields__", ())}
    options = sorted(options_of(kind), key=lambda each: each[0].name in inherited)
    keys = (
        Key(each.name.rstrip("_"), _type(hints[each.name]), _default(each, option), option.help)
        for each, option in options
    )
    yield FileSection(title, section.text, tuple(keys))
    for inner in dataclasses.fields(kind):
        if "section" in inner.metadata:
            yield from _sections(inner, hints[inner.name], f"{title}.")


def _type(hint: Any) -> str:
    if isinstance(hint, types.UnionType):
        return " or ".join(_type(option) for option in typing.get_args(hint) if option is not types.NoneType)
    if typing.get_origin(hint) is Mapping:
        return "table of strings" if typing.get_args(hint)[1] is str else "table of values"
    if isinstance(hint, types.GenericAlias):
        return f"list of {SEVERAL[typing.get_args(hint)[0]]}"
    return NAMES[hint]


def _default(field: dataclasses.Field[Any], option: Option) -> str:
    if option.empty:
        return option.empty
    if field.default is dataclasses.MISSING:
        return "required"
    default = field.default
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, str | Collection):
        return f'`"{default}"`' if default else ""
    return f"`{default}`"
