"""The table of transforms' operations: which inputs and numbers each accepts, and the shape of its result.

Numbers are bounded here, because a manifest may come from an untrusted source. Loaded with the first manifest that has
a transform.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package.transforms import (
    FORMAT,
    HASHES,
    MAX_CODES,
    MAX_CROSSED,
    MAX_HASHED_ROWS,
    ColumnShape,
    Transform,
)

MAX_INPUTS = 256
MAX_COLUMNS = 65536
MAX_TEXT = 4096
CASES = ("lower", "upper", "strip")
MAX_NEWEST = 1 << 16
"""Most values of a row that `newest` skips or takes."""
ARITHMETIC = ("add", "multiply", "floor_divide", "floor_modulo")


def shape_of(transform: Transform, shapes: Sequence[ColumnShape]) -> ColumnShape:
    """Return the shape of a transform's column, from those of its inputs; BadInput if it cannot process them."""
    where = f"manifest.transforms[{transform.name}]"
    if transform.op not in OPS:
        raise BadInput(f"{where}.op: expected one of {', '.join(OPS)}, got {transform.op[:40]!r}")
    if not 1 <= len(shapes) <= MAX_INPUTS:
        raise BadInput(f"{where}.inputs: expected 1 to {MAX_INPUTS}, got {len(shapes)}")
    if not all(-(2**63) <= n < 2**64 for n in transform.integers) or len(transform.integers) > MAX_COLUMNS:
        raise BadInput(f"{where}.integers: expected up to {MAX_COLUMNS} numbers of 64 bits")
    if sum(map(len, transform.texts)) > MAX_TEXT or len(transform.floats) > MAX_COLUMNS:
        raise BadInput(f"{where}: expected at most {MAX_TEXT} letters of text and {MAX_COLUMNS} floats")
    result = OPS[transform.op](transform, shapes)
    if result is None or not 0 <= result.columns <= MAX_COLUMNS:
        taken = ", ".join(f"{s.dtype}{' rows' if s.ragged else ''}" for s in shapes)
        raise BadInput(f"{where}: {transform.op} does not accept {taken[:80]} with these parameters")
    return result


Rule = Callable[[Transform, Sequence[ColumnShape]], ColumnShape | None]
"""Returns the shape of an op's result for these inputs; None if it cannot process them, or its numbers are wrong."""


def _hash(keys: int) -> Rule:
    def rule(t: Transform, shapes: Sequence[ColumnShape]) -> ColumnShape | None:
        fits = len(shapes) == 1 and shapes[0].dtype == "string" and len(t.integers) == 1 + keys
        fits = fits and 0 < t.integers[0] < 2**63 and all(n >= 0 for n in t.integers)
        return shapes[0].of("int64") if fits else None

    return rule


def _text(t: Transform, shapes: Sequence[ColumnShape]) -> ColumnShape | None:
    kinds = {"int64": "d", "float32": "feg"}.get(shapes[0].dtype, "")
    fits = len(shapes) == 1 and len(t.texts) == 1 and FORMAT.fullmatch(t.texts[0]) and t.texts[0][-1] in kinds
    return shapes[0].of("string") if fits else None


def _join(t: Transform, shapes: Sequence[ColumnShape]) -> ColumnShape | None:
    fits = len(t.texts) == len(shapes) + 1 and all(s.dtype == "string" for s in shapes)
    return _alike(shapes) if fits else None


def _case(t: Transform, shapes: Sequence[ColumnShape]) -> ColumnShape | None:
    return shapes[0] if len(shapes) == 1 and shapes[0].dtype == "string" else None


def _bucketize(t: Transform, shapes: Sequence[ColumnShape]) -> ColumnShape | None:
    ascending = all(a <= b for a, b in zip(t.floats, t.floats[1:])) and all(map(math.isfinite, t.floats))
    return shapes[0].of("int64") if len(shapes) == 1 and shapes[0].dtype == "float32" and ascending else None


def _arithmetic(t: Transform, shapes: Sequence[ColumnShape]) -> ColumnShape | None:
    if any(s.dtype != "int64" for s in shapes) or any(not -(2**63) <= n < 2**63 for n in t.integers):
        return None
    if t.op.startswith("floor_") and (len(shapes) != 1 or 0 in t.integers or -1 in t.integers):
        return None
    if len(shapes) == 2:
        return _alike(shapes) if not t.integers else None
    wide = 1 if shapes[0].ragged else shapes[0].width
    return shapes[0] if len(shapes) == 1 and len(t.integers) in (1, wide) else None


def _whole(t: Transform, shapes: Sequence[ColumnShape]) -> ColumnShape | None:
    return shapes[0] if len(shapes) == 1 and shapes[0].dtype == "int64" else None


def _pick(t: Transform, shapes: Sequence[ColumnShape]) -> ColumnShape | None:
    fits = len(shapes) == 1 and not shapes[0].ragged and bool(t.integers)
    fits = fits and all(0 <= i < shapes[0].width for i in t.integers)
    return ColumnShape(shapes[0].dtype, 0 if len(t.integers) == 1 else len(t.integers)) if fits else None


def _side_by_side(t: Transform, shapes: Sequence[ColumnShape]) -> ColumnShape | None:
    if any(s.ragged for s in shapes) or len({s.dtype for s in shapes}) > 1:
        return None
    return ColumnShape(shapes[0].dtype, sum(s.width for s in shapes))


def _drop(t: Transform, shapes: Sequence[ColumnShape]) -> ColumnShape | None:
    values = {"int64": len(t.integers), "string": len(t.texts)}.get(shapes[0].dtype, 0)
    return ColumnShape(shapes[0].dtype, 0, True) if len(shapes) == 1 and values == 1 else None


def _to_rows(t: Transform, shapes: Sequence[ColumnShape]) -> ColumnShape | None:
    fits = len(shapes) == 1 and not shapes[0].ragged and shapes[0].dtype != "float32"
    return ColumnShape(shapes[0].dtype, 0, True) if fits else None


def _within(t: Transform, shapes: Sequence[ColumnShape]) -> ColumnShape | None:
    return _whole(t, shapes) if len(t.integers) == 3 and all(-(2**63) <= n < 2**63 for n in t.integers) else None


def _rows(t: Transform, shapes: Sequence[ColumnShape]) -> ColumnShape | None:
    fits = len(shapes) == 1 and shapes[0].ragged and shapes[0].dtype == "int64"
    return shapes[0] if fits and len(t.integers) == 1 and -(2**63) <= t.integers[0] < 2**63 else None


def _newest(t: Transform, shapes: Sequence[ColumnShape]) -> ColumnShape | None:
    fits = len(shapes) == 1 and shapes[0].ragged and len(t.integers) == 2
    return shapes[0] if fits and 0 <= t.integers[0] <= MAX_NEWEST and 0 < t.integers[1] <= MAX_NEWEST else None


def _aged(t: Transform, shapes: Sequence[ColumnShape]) -> ColumnShape | None:
    fits = len(shapes) == 2 and all(s.ragged for s in shapes) and shapes[1].dtype == "int64" and len(t.integers) == 2
    return shapes[0] if fits and 0 <= t.integers[0] < t.integers[1] < 2**63 else None


def _where(t: Transform, shapes: Sequence[ColumnShape]) -> ColumnShape | None:
    tested = [s.dtype for s in shapes[1:]]
    if not tested or not all(s.ragged for s in shapes) or "float32" in tested:
        return None
    fits = (len(t.texts), len(t.integers)) == (tested.count("string"), tested.count("int64"))
    return shapes[0] if fits and all(-(2**63) <= n < 2**63 for n in t.integers) else None


def _empty(t: Transform, shapes: Sequence[ColumnShape]) -> ColumnShape | None:
    return ColumnShape("float32") if len(shapes) == 1 and shapes[0].ragged else None


def _float32(t: Transform, shapes: Sequence[ColumnShape]) -> ColumnShape | None:
    return shapes[0].of("float32") if _whole(t, shapes) and not shapes[0].ragged else None


def _to_whole(t: Transform, shapes: Sequence[ColumnShape]) -> ColumnShape | None:
    fits = len(shapes) == 1 and shapes[0].dtype == "float32" and t.integers in ([32], [64])
    return shapes[0].of("int64") if fits else None


def _one_hot(t: Transform, shapes: Sequence[ColumnShape]) -> ColumnShape | None:
    fits = _float32(t, shapes) and len(t.integers) == 1 and 0 < t.integers[0] * shapes[0].width <= MAX_COLUMNS
    return ColumnShape("float32", t.integers[0] * shapes[0].width) if fits else None


def _tally(t: Transform, shapes: Sequence[ColumnShape]) -> ColumnShape | None:
    fits = _float32(t, shapes) and len(t.integers) == 2 and 0 < t.integers[0] <= MAX_COLUMNS and t.integers[1] in (0, 1)
    return ColumnShape("float32", t.integers[0]) if fits else None


def _mask(t: Transform, shapes: Sequence[ColumnShape]) -> ColumnShape | None:
    fits = len(shapes) == 2 and shapes[1].dtype == "int64" and shapes[0] == shapes[1].of(shapes[0].dtype)
    texts, integers = {"int64": (0, 2), "string": (1, 1)}.get(shapes[0].dtype, (-1, -1))
    fits = fits and (len(t.texts), len(t.integers)) == (texts, integers)
    return shapes[1] if fits and all(-(2**63) <= n < 2**63 for n in t.integers) and not shapes[1].ragged else None


def _cross(t: Transform, shapes: Sequence[ColumnShape]) -> ColumnShape | None:
    if any(s.dtype == "float32" for s in shapes) or len(t.integers) != 2:
        return None
    if not 0 < t.integers[0] < 2**63 or t.integers[1] < 0:
        return None
    if any(s.ragged for s in shapes):
        return ColumnShape("int64", 0, True)
    combinations = math.prod(s.width for s in shapes)
    return ColumnShape("int64", 0 if combinations == 1 else combinations) if combinations <= MAX_CROSSED else None


def _equal(t: Transform, shapes: Sequence[ColumnShape]) -> ColumnShape | None:
    fits = len(shapes) == 2 and shapes[0].ragged and not shapes[1].ragged and shapes[1].width == 1
    fits = fits and shapes[0].dtype == shapes[1].dtype != "float32"
    return ColumnShape("int64") if fits else None


def _codes(t: Transform, shapes: Sequence[ColumnShape]) -> ColumnShape | None:
    if len(shapes) != 1 or shapes[0].dtype == "float32" or len(t.integers) != 3:
        return None
    seed, first, second = t.integers
    if t.op == "quotient_remainder":
        fits = first > 0 and second > 0 and first + second <= MAX_HASHED_ROWS
    elif t.op == "k_way":
        fits = first > 0 and 0 < second <= MAX_CODES and first * second <= MAX_HASHED_ROWS
    else:
        fits = (
            0 < first <= 31 and 0 < second <= MAX_CODES and first * second <= 64 and second << first <= MAX_HASHED_ROWS
        )
    return ColumnShape("int64", 0, True) if fits and 0 <= seed < 2**63 else None


def _alike(shapes: Sequence[ColumnShape]) -> ColumnShape | None:
    """Return the shape of columns that are joined value by value, None if they do not match.

    Plain columns must have one width, or a single column beside it; ragged rows must be alone.
    """
    if any(s.ragged for s in shapes):
        return shapes[0] if len(shapes) == 1 else None
    widths = {s.width for s in shapes} - {1}
    return ColumnShape(shapes[0].dtype, max(s.columns for s in shapes)) if len(widths) <= 1 else None


OPS: dict[str, Rule] = {
    "farm": _hash(0),
    "murmur": _hash(0),
    "sip": _hash(2),
    "text": _text,
    "join": _join,
    **dict.fromkeys(CASES, _case),
    "bucketize": _bucketize,
    **dict.fromkeys(ARITHMETIC, _arithmetic),
    "int32": _whole,
    "pick": _pick,
    "side_by_side": _side_by_side,
    "rows": _to_rows,
    "within": _within,
    "drop": _drop,
    "drop_below": _rows,
    "fill": _rows,
    "newest": _newest,
    "aged": _aged,
    "where": _where,
    "empty": _empty,
    "float32": _float32,
    "whole": _to_whole,
    "one_hot": _one_hot,
    "tally": _tally,
    "mask": _mask,
    "cross": _cross,
    "equal": _equal,
    **dict.fromkeys(HASHES, _codes),
}
