"""Validate JSON documents strictly; errors name the field and the expected value."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from freshet_serving.processor.errors import BadInput, json_kind, nearest


class StrictModel(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


Validated = TypeVar("Validated", bound=BaseModel)


def validated(document: Any, model: type[Validated]) -> Validated:
    """Return a JSON document as an instance of a model; raise BadInput if it does not fit."""
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise BadInput(first_problem(error.errors(), "body", model.model_fields)) from None


TYPES = {
    "int": "an integer",
    "float": "a number",
    "string": "a string",
    "bool": "true or false",
    "dict": "an object",
    "model": "an object",
    "list": "a list",
}
BOUNDS = {
    "greater_than": "a number above {gt}",
    "greater_than_equal": "{ge} or more",
    "less_than": "a number below {lt}",
    "less_than_equal": "{le} at most",
    "string_too_long": "at most {max_length} characters",
    "string_too_short": "at least {min_length} characters",
    "too_long": "at most {max_length} entries",
    "literal_error": "{expected}",
}
MAX_SHOWN = 64


def first_problem(errors: Any, root: str = "", names: Collection[str] = ()) -> str:
    """Return a one-line message from the result of pydantic's errors(): the field, the expected and the actual value.

    `root` is the name of the document; of its fields, `names`, the nearest is suggested.
    """
    first = errors[0]
    path = first["loc"]
    # A value of several types has one error for each type, one level below the field.
    same = [problem for problem in errors if len(path) > 1 and problem["loc"][:-1] == path[:-1] and _type(problem)]
    several = len(same) > 1
    where = ".".join(str(part) for part in (root, *(path[:-1] if several else path)) if part != "")[:80]
    if several:
        expected_types = " or ".join(dict.fromkeys(_type(problem) for problem in same))
        return f"{where}: expected {expected_types}, got {_shown(first['input'])}"
    if first["type"] == "extra_forbidden":
        name = str(path[-1])
        fields = names if len(path) == 1 else ()
        listed = f"; known: {', '.join(fields)}" if fields else ""
        return f"{where}: unknown field{nearest(name, fields) or listed}"
    return f"{where}: {expected(first)}"


def expected(problem: Any) -> str:
    """Return expected and actual value of one of pydantic's errors, in the format of all other messages."""
    kind = problem["type"]
    if kind == "missing":
        return "expected a value, got nothing"
    type_text = _type(problem)
    if not type_text and kind in BOUNDS:
        type_text = BOUNDS[kind].format(**problem["ctx"])
    if not type_text:
        message = str(problem["msg"])
        return f"{message[:1].lower()}{message[1:]}"
    return f"expected {type_text}, got {_shown(problem['input'])}"


def _type(problem: Any) -> str:
    name, _, suffix = problem["type"].partition("_")
    return TYPES.get(name, "") if suffix in ("type", "parsing", "from_float", "attributes_type") else ""


def _shown(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str | int | float):
        return repr(value)[:MAX_SHOWN]
    return json_kind(value)
