"""Validate an architecture's options against the signature of its builder.

Every parameter after the first is an option, except `seed` and `labels`, which Freshet passes. Its type is its
annotation (models.zoo.option_types), or else the type of its default. An option without a default must be in the file.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from freshet_serving.models.config.toml_sections import ITEM_NAMES, as_float, require_between, require_one_of
from freshet_serving.models.zoo.option_types import ClosedInterval
from freshet_serving.processor.errors import BadInput, nearest
from freshet_serving.processor.options import TYPE_NAMES, type_name

GIVEN = ("seed", "labels")
PARAMETERS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
LISTS = (list, tuple, Sequence)


def read_options(
    builder: Callable[..., Any], raw: Mapping[str, Any], where: str, others: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the builder's options, validated, lists as tuples. Raises BadInput.

    `others` are keys of the section that are not options, listed in the message for an unknown key.
    """
    parameters = list(inspect.signature(builder).parameters.values())[1:]
    options = {p.name: p for p in parameters if p.kind in PARAMETERS and p.name not in GIVEN}
    hints = _hints(builder)
    values: dict[str, Any] = {}
    for key, value in raw.items():
        if key in options:
            values[key] = _checked(_kind(options[key], hints), value, f"{where}.{key}")
        elif key not in GIVEN and any(p.kind is p.VAR_KEYWORD for p in parameters):
            values[key] = _checked(Any, value, f"{where}.{key}")
        else:
            keys = [*others, *options]
            raise BadInput(f"{where}.{key}: unknown key; expected one of {', '.join(keys)}{nearest(key, keys)}")
    for name, parameter in options.items():
        if parameter.default is parameter.empty and name not in values:
            raise BadInput(f"{where}.{name}: required by the architecture, got nothing")
    return values


def _hints(builder: Callable[..., Any]) -> dict[str, Any]:
    """Return type annotations; none if they name something that does not exist at run time."""
    try:
        return typing.get_type_hints(builder, include_extras=True)
    except (NameError, TypeError, AttributeError):
        return {}


def _kind(parameter: inspect.Parameter, hints: Mapping[str, Any]) -> Any:
    if parameter.name in hints:
        return hints[parameter.name]
    if parameter.default is parameter.empty or parameter.default is None:
        return Any
    kind = type(parameter.default)
    first = next(iter(parameter.default), 0) if kind in LISTS else None
    return Sequence[type(first)] if kind in LISTS else kind  # type: ignore[misc]


def _checked(kind: Any, value: Any, where: str) -> Any:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        checked = _checked(args[0], value, where)
        for within in (extra for extra in args[1:] if isinstance(extra, ClosedInterval)):
            for at, number in enumerate(checked) if isinstance(checked, tuple) else (("", checked),):
                require_between(number, within.low, within.high, where if at == "" else f"{where}[{at}]")
        return checked
    if origin is typing.Literal:
        if type(value) is not str:
            raise BadInput(f"{where}: expected one of {', '.join(map(str, args))}, got {type_name(value)}")
        require_one_of(value, args, where)
        return value
    if kind in LISTS or origin in LISTS or (origin or kind).__module__ == "collections.abc":
        if not isinstance(value, list | tuple):
            of = f" of {ITEM_NAMES[args[0]]}" if args and args[0] in ITEM_NAMES else ""
            raise BadInput(f"{where}: expected a list{of}, got {type_name(value)}")
        return tuple(_checked(args[0] if args else Any, item, f"{where}[{i}]") for i, item in enumerate(value))
    if kind is float and type(value) is int:
        return as_float(value, where)
    if kind in TYPE_NAMES and type(value) is not kind:
        raise BadInput(f"{where}: expected {TYPE_NAMES[kind]}, got {type_name(value)}")
    return tuple(value) if isinstance(value, list) else value
