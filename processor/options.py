"""Options: what a field of a dataclass declares about itself, in one place.

    url: str = field(metadata=required("Address of the store"))
    sessions: int = option(0, "Sessions a process", between(0, 1024, "one per core"))

Checks of one value, the command line and the documentation are derived from it; a check across options stays with
their dataclass. An option that repr() hides is shown by no message either.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass
from typing import Any, TypeVar

from freshet_serving.processor.errors import BadInput, nearest

T = TypeVar("T")

SHOWN_CHARS = 64
TYPE_NAMES: dict[Any, str] = {
    str: "a string",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "a section",
}
"""Names of the types of a TOML file's values in messages."""


@dataclass(frozen=True, slots=True)
class Values:
    """The values that an option may have, described by `words`; `names` are all of them, if they are names."""

    words: str
    holds: Callable[[Any], bool]
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Option:
    """An option, without its name, type and default.

    Attributes:
        help: Its purpose, without a full stop.
        values: The values that it may have; None for any.
        unit: The unit of a number; "" if the help names what is counted.
        empty: Meaning of an empty default: "", 0 or nothing.
        folded: True if few users need it: --help omits it, --help-all and the documentation have it.
    """

    help: str
    values: Values | None = None
    unit: str = ""
    heading: str = ""
    empty: str = ""
    folded: bool = False

    @property
    def facts(self) -> str:
        """Unit and values as a sentence; "" if there are none."""
        facts = ", ".join(filter(None, (self.unit, self.values.words if self.values is not None else "")))
        return f"{facts[0].upper()}{facts[1:]}." if facts else ""


def type_name(value: Any) -> str:
    """Return the name of the type of a TOML file's value, for messages."""
    return TYPE_NAMES.get(type(value), "a date or time")


def option(
    default: T,
    help: str,
    values: Values | None = None,
    *,
    unit: str = "",
    heading: str = "",
    empty: str = "",
    folded: bool = False,
    repr: bool = True,
) -> T:
    """Return a field that is an option; see Option. repr() hides it if `repr` is False."""
    return field_of(default, {"option": Option(help, values, unit, heading, empty, folded)}, repr)


def required(help: str, values: Values | None = None, *, heading: str = "") -> Mapping[str, Option]:
    """Return the metadata of a field that is an option without a default: field() has it, so that mypy knows."""
    return {"option": Option(help, values, heading=heading)}


def field_of(default: T, metadata: Mapping[str, Any], repr: bool = True) -> T:
    """Return a dataclass's field with a default; each instance gets its own copy of a list or dict."""
    kept: dict[str, Any] = {"default": default}
    if isinstance(default, list | dict):
        kept = {"default_factory": default.copy}
    made: T = dataclasses.field(**kept, repr=repr, metadata=metadata)
    return made


def between(least: float, most: float, zero: str = "") -> Values:
    """Return the values from `least` to `most`, both included; `zero` is the meaning of 0."""
    meaning = f" ({zero})" if zero else ""
    return Values(f"{least}{meaning} to {most}", lambda value: least <= value <= most)


def above(bound: float, most: float) -> Values:
    """Return the values above `bound`, up to `most`."""
    return Values(f"more than {bound}, at most {most}", lambda value: bound < value <= most)


def one_of(*names: str) -> Values:
    """Return the values that are one of these names."""
    return Values(f"one of {', '.join(names)}", lambda value: value in names, names)


def options_of(config: Any) -> Iterator[tuple[dataclasses.Field[Any], Option]]:
    """Yield the options among the fields of a dataclass, or of an instance of one."""
    for field in dataclasses.fields(config):
        if "option" in field.metadata:
            yield field, field.metadata["option"]


def default_of(field: dataclasses.Field[Any]) -> str:
    """Return the default of an option as text; "" for a required option."""
    if field.default is MISSING and field.default_factory is MISSING:
        return ""
    default = field.default if field.default_factory is MISSING else field.default_factory()
    empty: str = field.metadata["option"].empty
    if empty or default in ("", []):
        return empty or "none"
    if isinstance(default, bool):
        return str(default).lower()
    return f"{default:g}" if isinstance(default, float) else str(default)


def check(config: Any, where: str = "") -> None:
    """Raise BadInput for the first option of a dataclass's instance whose value is not allowed; `where` is a prefix."""
    for field, option in options_of(config):
        value, values = getattr(config, field.name), option.values
        if values is not None and not values.holds(value):
            got = f", got {_shown(value)}" if field.repr else ""
            hint = nearest(value, values.names) if values.names and isinstance(value, str) else ""
            raise BadInput(f"{where}{field.name}: expected {values.words}{got}{hint}")


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return repr(value[:SHOWN_CHARS]) if value else "nothing"
    return f"{value:g}" if isinstance(value, float) else str(value)[:SHOWN_CHARS]
