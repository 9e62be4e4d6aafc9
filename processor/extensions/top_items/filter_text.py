"""Read the text of a filter: JSON that says which items may be among the best.

    {"price": [null, 20], "category": ["a", "b"], "brand": {"not": ["x"]}, "stock": {"not": 0}, "in_stock": true}

Each key is a column, and all of its clauses must hold:

    [low, high]      a number in this range, both ends included; null is open
    ["a", "b"]       one of these texts
    {"in": [...]}    one of these numbers or texts
    {"not": X}       not X
    7, "a", true     equal to it; true and false are 1 and 0

Invariants
- A text costs what its bounds allow: MAX_NBYTES, MAX_CLAUSES, MAX_VALUES, MAX_DEPTH, before anything is evaluated.
- What is accepted has one meaning: a key that occurs twice, NaN, infinities and numbers beyond 64 bits are refused.
- A clause fits its column: it is read with the column's type, so evaluation cannot fail.

Numbers are compared as the column holds them. A column of floats has float32, and so has the clause: 9.99 equals the
9.99 of a table. A column of whole numbers is compared exactly.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.errors import BadInput, json_kind
from freshet_serving.processor.package import Input

MAX_NBYTES, MAX_CLAUSES, MAX_VALUES, MAX_DEPTH = 65_536, 64, 10_000, 8
LEAST, MOST = -(2**63), 2**64 - 1
SHOWN = 64


@dataclass(frozen=True, slots=True, eq=False)
class Clause:
    """A condition on one column of an item, or its exact complement.

    It is a range, with None for an open end, as the column holds numbers; or a set of numbers, ascending, or of texts.
    """

    column: Input
    negated: bool
    low: Any = None
    high: Any = None
    numbers: NDArray[Any] | None = None
    texts: tuple[bytes, ...] | None = None


def read_filter(text: bytes, columns: Mapping[str, Input]) -> list[Clause]:
    """Return the clauses of a filter, UTF-8; raise BadInput if it is none, or names a column that is not there."""
    if len(text) > MAX_NBYTES:
        raise BadInput(f"filter: expected at most {MAX_NBYTES} bytes, got {len(text)}")
    try:
        document = json.loads(text.decode(), object_pairs_hook=_distinct, parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise BadInput(f"filter: expected a JSON object, got {text[:SHOWN].decode(errors='replace')!r}") from None
    if not isinstance(document, dict):
        raise BadInput(f"filter: expected a JSON object, got {json_kind(document)}")
    if len(document) > MAX_CLAUSES:
        raise BadInput(f"filter: expected at most {MAX_CLAUSES} columns, got {len(document)}")
    clauses, values = [], 0
    for name, condition in document.items():
        if name not in columns:
            names = ", ".join(columns)[:400]
            raise BadInput(f"filter: {name[:SHOWN]!r} is no column to filter on; expected one of {names}")
        clause = _clause(columns[name], condition, f"filter.{name}")
        values += len(clause.texts or ()) + (0 if clause.numbers is None else len(clause.numbers))
        clauses.append(clause)
    if values > MAX_VALUES:
        raise BadInput(f"filter: expected at most {MAX_VALUES} values, got {values}")
    return clauses


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for name, value in pairs:
        if name in members:
            raise BadInput(f"filter: expected each key once, got {name[:SHOWN]!r} again")
        members[name] = value
    return members


def _no_number(word: str) -> None:
    raise BadInput(f"filter: expected finite numbers, got {word}")


def _clause(column: Input, condition: Any, where: str) -> Clause:
    negated = False
    for _ in range(MAX_DEPTH):
        if not isinstance(condition, dict) or condition.keys() != {"not"}:
            break
        negated, condition = not negated, condition["not"]
    else:
        raise BadInput(f"{where}: expected at most {MAX_DEPTH} 'not' in one another, got more")
    if isinstance(condition, dict):
        values = condition.get("in")
        if condition.keys() != {"in"} or not isinstance(values, list):
            got = ", ".join(sorted(condition))[:SHOWN] or "nothing"
            raise BadInput(f"{where}: expected {{'in': [...]}} or {{'not': ...}}, got an object with {got}")
        return _set(column, negated, values, where)
    if not isinstance(condition, list):
        return _set(column, negated, [condition], where, "a text" if column.dtype == "string" else "a number")
    if column.dtype == "string":
        return _set(column, negated, condition, where)
    if len(condition) != 2:
        raise BadInput(
            f"{where}: expected a range [low, high] or {{'in': [...]}} for a column of numbers, got a list of"
            f" {len(condition)}"
        )
    low, high = (None if end is None else _number(end, where, "a number or null") for end in condition)
    return _range(column, negated, low, high)


def _range(column: Input, negated: bool, low: Any, high: Any) -> Clause:
    if column.dtype == "float32":
        with np.errstate(over="ignore"):
            low, high = (None if end is None else np.float32(end) for end in (low, high))
        return Clause(column, negated, low, high)
    # Beyond the type's ends everything or nothing is in the range.
    least, most = _ends(column)
    low = None if low is None or low <= least else math.ceil(low)
    high = None if high is None or high >= most else math.floor(high)
    if (low is not None and low > most) or (high is not None and high < least):
        return Clause(column, negated, numbers=_array(column, []))
    kind = np.uint64 if column.declared == "uint64" else np.int64
    low, high = (None if end is None else kind(end) for end in (low, high))
    return Clause(column, negated, low, high)


def _set(column: Input, negated: bool, values: list[Any], where: str, one_text: str = "") -> Clause:
    if column.dtype == "string":
        for value in values:
            if not isinstance(value, str):
                expected = one_text or "a list of texts"
                raise BadInput(f"{where}: expected {expected} for a column of texts, got {_shown(value)}")
        return Clause(column, negated, texts=tuple(sorted({_encoded(value, where) for value in values})))
    expected = one_text or "a list of numbers"
    for value in values:
        if isinstance(value, bool) and not one_text:
            raise BadInput(f"{where}: expected {expected}, got {_shown(value)}")
    numbers = [int(value) if isinstance(value, bool) else _number(value, where, expected) for value in values]
    return Clause(column, negated, numbers=_array(column, numbers))


def _array(column: Input, numbers: list[Any]) -> NDArray[Any]:
    """Return the numbers that a column can have, ascending, each once."""
    if column.dtype == "float32":
        with np.errstate(over="ignore"):
            floats = np.array(numbers, np.float64).astype(np.float32)
        return np.unique(floats[np.isfinite(floats)])
    least, most = _ends(column)
    whole = sorted({int(n) for n in numbers if n == math.floor(n) and least <= n <= most})
    return np.array(whole, np.uint64 if column.declared == "uint64" else np.int64)


def _ends(column: Input) -> tuple[int, int]:
    return (0, MOST) if column.declared == "uint64" else (LEAST, 2**63 - 1)


def _number(value: Any, where: str, expected: str) -> Any:
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if not good or (isinstance(value, float) and not math.isfinite(value)):
        raise BadInput(f"{where}: expected {expected}, got {_shown(value)}")
    if isinstance(value, int) and not LEAST <= value <= MOST:
        raise BadInput(f"{where}: expected whole numbers of 64 bits, got {_shown(value)}")
    return value


def _encoded(value: str, where: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise BadInput(f"{where}: expected Unicode texts, got a lone surrogate") from None


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return repr(value[:SHOWN])
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value) if -(2**66) < value < 2**66 else "a number beyond 64 bits"
    return json.dumps(value) if isinstance(value, bool | float | None) else json_kind(value)
