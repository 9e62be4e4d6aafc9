"""Format the first rows of a request as JSON text, by input: an int64 would lose digits as a browser's number."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from freshet_serving.processor.columns import Column, Ragged, Strings
from freshet_serving.processor.package import Input

MOST_ROWS, MOST_VALUES, MAX_CHARS = 3, 24, 1 << 15


def texts(columns: Mapping[str, Column | str], specs: Sequence[Input]) -> dict[str, str]:
    """Return each input's first rows as JSON text; {} if the text is too long to show. A text stays as it is."""
    by_input = {}
    for spec in specs:
        if spec.name not in columns:
            # A key that the model does not read may be left out of a request.
            continue
        column = columns[spec.name]
        by_input[spec.name] = column if isinstance(column, str) else text_of(column, spec)
    return by_input if sum(map(len, by_input.values())) <= MAX_CHARS else {}


def text_of(column: Column, spec: Input) -> str:
    """Return the first rows of a column, in the form of a predict request."""
    if isinstance(column, Ragged):
        ends = column.row_splits[: MOST_ROWS + 1].tolist()
        flat = _sent(column.values, spec)
        rows: list[Any] = [_readable(flat[a:b][:MOST_VALUES]) for a, b in zip(ends, ends[1:])]
    elif isinstance(column, Strings):
        width, strings = spec.columns or 1, _readable(column.tolist()[: MOST_ROWS * (spec.columns or 1)])
        rows = strings if not spec.columns else [strings[n : n + width] for n in range(0, len(strings), width)]
    else:
        rows = spec.as_sent(np.asarray(column)[:MOST_ROWS]).tolist()
    if spec.dtype == "float32":
        rows = [[_short(v) for v in row] if isinstance(row, list) else _short(row) for row in rows]
    return orjson.dumps(rows).decode()


def looked_up_text(columns: Mapping[str, Column | None], specs: Sequence[Input], most_nbytes: int) -> str:
    """Return looked-up inputs as one line of JSON in ASCII; null for a column that is None or too long."""
    parts = []
    for spec in specs:
        if spec.name not in columns:
            continue
        column = columns[spec.name]
        rows: list[Any]
        if column is None:
            parts.append(f"{json.dumps(spec.name)}: null")
            continue
        if isinstance(column, Ragged):
            ends, flat = column.row_splits.tolist(), _numbered(_sent(column.values, spec))
            rows = [_readable(flat[a:b]) for a, b in zip(ends, ends[1:])]
        elif isinstance(column, Strings):
            rows = _readable(column.tolist())
        else:
            rows = _numbered(_sent(column.reshape(-1), spec))
        if spec.columns:
            rows = [rows[n : n + spec.columns] for n in range(0, len(rows), spec.columns)]
        text = json.dumps(rows)
        most_nbytes -= len(text)
        parts.append(f"{json.dumps(spec.name)}: {text if most_nbytes >= 0 else 'null'}")
    return f"{{{', '.join(parts)}}}"


def _sent(values: NDArray[Any] | Strings, spec: Input) -> list[Any]:
    return values.tolist() if isinstance(values, Strings) else spec.as_sent(values).tolist()


def _numbered(values: list[Any]) -> list[Any]:
    return [None if value != value else value for value in values]


def _readable(values: list[Any]) -> list[Any]:
    """Return strings as JSON represents them; bytes that are not UTF-8 as base64."""
    return [_letters(value) if isinstance(value, bytes) else value for value in values]


def _letters(value: bytes) -> Any:
    try:
        return value.decode()
    except UnicodeDecodeError:
        import base64

        return {"b64": base64.b64encode(value).decode()}


def _short(value: float) -> float:
    return float(np.format_float_positional(np.float32(value), unique=True)) if np.isfinite(value) else 0.0
