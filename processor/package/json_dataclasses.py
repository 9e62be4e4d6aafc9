"""Build dataclasses from parsed JSON, checked against their annotations; every error names the field."""

from __future__ import annotations

import dataclasses
import sys
import types
import typing
from functools import cache
from typing import Any

from freshet_serving.processor.errors import BadInput, json_kind

WORDS: dict[type, str] = {str: "a string", int: "a whole number", float: "a number", bool: "true or false"}


def build(kind: Any, raw: Any, where: str) -> Any:
    """Build a value of the annotated type from JSON; raise BadInput for another type, or a missing or unknown key.

    Args:
        kind: A dataclass, str, int, float, bool, Any, one of these or None, one of several of them, or a list, a
            tuple[T, ...] or a dict of these.
        where: What it is, for messages: "manifest" makes "manifest.tables[0].dim: expected a whole number, got ...".
    """
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return raw
    if origin is types.UnionType:
        return None if raw is None else build(type(raw) if type(raw) in args else args[0], raw, where)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        if not isinstance(raw, dict):
            raise BadInput(f"{where}: expected an object, got {json_kind(raw)}")
        hints, required = _fields(kind)
        for key in raw:
            if key not in hints:
                raise BadInput(f"{where}: unknown key {str(key)[:64]!r}")
        for name in required:
            if name not in raw:
                raise BadInput(f"{where}: {name!r} is missing")
        return kind(**{k: build(hints[k], v, f"{where}.{k}") for k, v in raw.items()})
    if origin in (list, tuple):
        if not isinstance(raw, list):
            raise BadInput(f"{where}: expected a list, got {json_kind(raw)}")
        return origin(build(args[0], v, f"{where}[{i}]") for i, v in enumerate(raw))
    if origin is dict:
        if not isinstance(raw, dict):
            raise BadInput(f"{where}: expected an object, got {json_kind(raw)}")
        return {str(k): build(args[1], v, f"{where}[{k!r}]") for k, v in raw.items()}
    if kind is float and type(raw) in (int, float):
        # JSON's numbers are unbounded, and Python's parser accepts NaN and Infinity as numbers too.
        if not -sys.float_info.max <= raw <= sys.float_info.max:
            raise BadInput(f"{where}: expected a finite number, got {str(raw)[:40]}")
        raw = float(raw)
    if isinstance(kind, types.GenericAlias) or type(raw) is not kind:
        got = str(raw)[:40] if type(raw) is float else json_kind(raw)
        raise BadInput(f"{where}: expected {WORDS[kind]}, got {got}")
    return raw


@cache
def _fields(kind: type) -> tuple[dict[str, Any], list[str]]:
    """Return the types of the fields that JSON may set, and the names of those that it must set.

    Types are evaluated from text, which takes most of the time that a manifest's parsing does.
    """
    hints = typing.get_type_hints(kind)
    fields = [f for f in dataclasses.fields(kind) if f.init]
    required = [f.name for f in fields if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING]
    return {f.name: hints[f.name] for f in fields}, required
