"""Parse a section of a training file into its dataclass, with the checks that all sections share.

Every error is one line that names section.key, the expected and the actual value, and for a misspelling the nearest
valid key.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from freshet_serving.processor.errors import BadInput, option_hint
from freshet_serving.processor.options import TYPE_NAMES, field_of, type_name

T = TypeVar("T")

CHOSEN = "[chosen](../how-to/train.md#defaults)"
"""Help text for a default that models.training.defaults chooses."""
ITEM_NAMES = {str: "strings", int: "integers", float: "numbers"}
_type_hints: Callable[[Any], dict[str, Any]] = functools.cache(typing.get_type_hints)


@dataclass(frozen=True, slots=True)
class FileSection:
    """Documentation of a section of the file: its purpose, in Markdown, and the placeholder of its user-chosen name."""

    text: str
    named: str = ""


def about(text: str, named: str = "") -> Mapping[str, FileSection]:
    """Return the metadata of a field that is a section. Its keys are the options of its class."""
    return {"section": FileSection(text, named)}


def section_field(default: T, text: str, named: str = "") -> T:
    """Return a field that is a section with a default; see about()."""
    return field_of(default, about(text, named))


def parse_section(kind: type[T], raw: dict[str, Any], where: str, **made: Any) -> T:
    """Build a dataclass from a section's keys, by its annotations; `made` are fields without a key. Raises BadInput.

    A field named after a Python keyword ends in '_', its key does not.
    """
    annotated = _type_hints(kind)
    hints = {name.rstrip("_"): (name, hint) for name, hint in annotated.items() if name not in made}
    values = dict(made)
    for key, value in raw.items():
        if key not in hints:
            raise BadInput(
                f"{where}.{key}: unknown key; expected one of {', '.join(hints)}{option_hint(key, list(hints), where)}"
            )
        name, hint = hints[key]
        values[name] = _value(hint, value, f"{where}.{key}")
    for f in dataclasses.fields(kind):  # type: ignore[arg-type]
        required = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        if required and f.name not in values:
            expected = TYPE_NAMES.get(hints[f.name][1], "a table of strings")
            raise BadInput(f"{where}.{f.name}: expected {expected}, got nothing")
    return kind(**values)


def named_sections(raw: Mapping[str, Any], title: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the name, the title and the content of each section [title.<name>]; raise BadInput if one is none."""
    for name, section in raw.items():
        where = f"{title}.{name}"
        if not isinstance(section, dict):
            raise BadInput(f"{where}: expected a section [{where}], got {type_name(section)}")
        yield name, where, section


def as_float(value: int, where: str) -> float:
    """Return an integer of any size as a float; raise BadInput if it is too large."""
    try:
        return float(value)
    except OverflowError:
        raise BadInput(f"{where}: expected a number of 64 bits, got a larger one") from None


def _value(hint: Any, value: Any, where: str) -> Any:
    if isinstance(hint, types.UnionType):
        first, *others = (option for option in typing.get_args(hint) if option is not types.NoneType)
        if not others or type(value) is first:
            return _value(first, value, where)
        if isinstance(others[0], types.GenericAlias):
            return _value(others[0] if isinstance(value, list) else first, value, where)
        if type(value) is not others[0]:
            raise BadInput(f"{where}: expected {TYPE_NAMES[first]} or {TYPE_NAMES[others[0]]}, got {type_name(value)}")
        return value
    if typing.get_origin(hint) is Mapping:
        if not isinstance(value, dict):
            raise BadInput(f"{where}: expected a table of strings, got {type_name(value)}")
        return {key: _value(typing.get_args(hint)[1], v, f"{where}.{key}") for key, v in value.items()}
    if isinstance(hint, types.GenericAlias):
        item = typing.get_args(hint)[0]
        if not isinstance(value, list):
            raise BadInput(f"{where}: expected a list of {ITEM_NAMES[item]}, got {type_name(value)}")
        return tuple(_value(item, v, f"{where}[{i}]") for i, v in enumerate(value))
    if hint is float and type(value) is int:
        return as_float(value, where)
    if type(value) is not hint:
        raise BadInput(f"{where}: expected {TYPE_NAMES[hint]}, got {type_name(value)}")
    return value


def require(condition: bool, where: str, expected: str, got: Any) -> None:
    if not condition:
        raise BadInput(f"{where}: expected {expected}, got {str(got)[:80]!r}")


def require_one_of(value: str, choices: Collection[str], where: str, more: str = "") -> None:
    if value not in choices:
        hint = option_hint(value, list(choices), where)
        raise BadInput(f"{where}: expected one of {', '.join(choices)}{more}, got {value[:80]!r}{hint}")


def require_between(value: float, low: float, high: float, where: str) -> None:
    if not low <= value <= high:
        raise BadInput(f"{where}: expected {low} to {high}, got {value}")


def require_positive(value: float, where: str) -> None:
    if not (value > 0 and math.isfinite(value)):
        raise BadInput(f"{where}: expected a number above 0, got {value}")
