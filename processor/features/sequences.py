"""Align the columns of a request's sequences: one length an event list, cut to the sequence's max_length.

A sequence's columns come as lists of one row a request, or one for each candidate, in one of three forms:

    lists               each column a Ragged of its own
    shared row_splits   values end to end, and one `<sequence>.row_splits` int64 [rows + 1] for all columns
    padded              matrices [rows, L], and one `<sequence>.lengths` int64 [rows]; the first values of a row count

Columns of different lengths are refused. Places that hold a sequence's padding value are no events, wherever they are:
they are left out before anything is counted. Lists beyond max_length are cut here, before strings are hashed or a
transform is computed, so what follows never sees more than max_length values a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.processor.columns import Column, Ragged, Strings, are_splits, equal_strings, take_rows
from freshet_serving.processor.errors import BadInput, TooLarge, first_of
from freshet_serving.processor.features.limits import RequestLimits
from freshet_serving.processor.package import Manifest, SequenceEntry, dense_sequences

ROW_SPLITS, LENGTHS = ".row_splits", ".lengths"
Int64s = NDArray[np.int64]


class SequenceColumns:
    """Aligns the sequences of one model's requests.

    `cut` counts, for people, lists that were longer than max_length: threads may lose one of each other's.
    """

    def __init__(self, manifest: Manifest) -> None:
        self._sequences = manifest.sequences
        self._places = sum(s.max_length for s in dense_sequences(manifest.sequences))
        self.cut = 0

    def check_limit(self, limits: RequestLimits, rows: int) -> None:
        """Raise TooLarge if the histories of so many rows cost more than the limit on ids allows.

        A row costs all places of the model's sequences; one user that asks for all candidates has one row.
        """
        if rows * self._places > limits.max_ids:
            raise TooLarge(
                f"max_ids: expected at most {limits.max_ids} events per request, got {rows} rows of histories of "
                f"{self._places} each; send one user a request, or fewer rows"
            )

    def aligned(self, inputs: Mapping[str, Column]) -> Mapping[str, Column]:
        """Return a request's inputs with every sequence as lists of equal lengths, at most max_length each.

        Raises BadInput if a sequence's columns do not belong together. A missing column is left to the caller.
        """
        aligned = dict(inputs)
        for s in self._sequences:
            unpack(aligned, s)
            columns = {name: aligned[name] for name in s.inputs if name in aligned}
            lists = [column for column in columns.values() if isinstance(column, Ragged) and is_sound(column)]
            if len(lists) < len(columns) or not lists:
                # The caller refuses what is no list, and names it.
                continue
            ends = lists[0].row_splits
            for name, column in zip(columns, lists):
                if not _equal(column.row_splits, ends):
                    raise BadInput(f"input {name!r}: expected lists as long as those of {first_of(columns)!r}")
            if s.padding is not None and s.inputs[0] in columns:
                lists = without_padding(lists, list(columns).index(s.inputs[0]), s.padding)
                aligned |= zip(columns, lists)
                ends = lists[0].row_splits
            if len(ends) == 2 and ends[1] <= s.max_length:
                # One short row, as of most requests.
                continue
            long = np.diff(ends) > s.max_length
            if long.any():
                self.cut += int(long.sum())
                splits, at = _kept(ends, s)
                aligned |= {name: Ragged(take_rows(c.values, at), splits) for name, c in zip(columns, lists)}
        return aligned


def without_padding(lists: Sequence[Ragged], first: int, padding: int | str) -> list[Ragged]:
    """Return lists of equal lengths without the places in which the first one, by number, holds the padding."""
    values = lists[first].values
    if isinstance(values, Strings):
        events = ~equal_strings(values, str(padding).encode())
    else:
        events = values != np.array(padding).astype(values.dtype)
    if events.all():
        return list(lists)
    at, before = np.flatnonzero(events), np.append(0, np.cumsum(events))
    return [Ragged(take_rows(column.values, at), before[lists[first].row_splits]) for column in lists]


def is_sound(column: Ragged) -> bool:
    """Report whether a column's row_splits describe its values."""
    return are_splits(column.row_splits, len(column.values))


def unpack(columns: dict[str, Column], s: SequenceEntry) -> None:
    """Replace a sequence's columns, in place, by lists if they came with one row_splits or lengths for all of them."""
    splits, lengths = columns.pop(s.name + ROW_SPLITS, None), columns.pop(s.name + LENGTHS, None)
    if splits is not None and lengths is not None:
        raise BadInput(f"input {s.name + ROW_SPLITS!r}: expected it or {s.name + LENGTHS!r}, got both")
    if splits is not None:
        ends = _whole_numbers(splits, s.name + ROW_SPLITS)
        sent = {n: columns[n] for n in s.inputs if n in columns}
        columns |= {n: column if isinstance(column, Ragged) else Ragged(column, ends) for n, column in sent.items()}
        return
    if lengths is None:
        return
    counts = _whole_numbers(lengths, s.name + LENGTHS)
    for name in s.inputs:
        values = columns.get(name)
        if isinstance(values, Ragged) or values is None:
            continue
        total = len(values) if isinstance(values, Strings) else values.size
        matrix = isinstance(values, Strings) or (values.ndim == 2 and len(values) == len(counts))
        if not matrix or not len(counts) or total % len(counts):
            raise BadInput(f"input {name!r}: expected {len(counts)} rows of one length, got {total} values")
        flat: Any = values if isinstance(values, Strings) else values.reshape(-1)
        columns[name] = unpadded(flat, total // len(counts), counts, f"input {s.name + LENGTHS!r}")


def unpadded(values: NDArray[np.int64] | Strings, places: int, counts: Int64s, where: str) -> Ragged:
    """Return a padded matrix, its values in row-major order, as lists: the first counts[i] values of row i.

    Raises BadInput, which names `where`, if a row has fewer than 0 or more than `places` values.
    """
    if not len(counts):
        # A matrix without rows has any number of places.
        raise BadInput(f"{where}: expected at least one row")
    if int(counts.min()) < 0 or int(counts.max()) > places:
        raise BadInput(f"{where}: expected 0 to {places} in every row")
    at = np.flatnonzero((np.arange(places) < counts[:, None]).reshape(-1))
    return Ragged(take_rows(values, at), _ends(counts))


def _whole_numbers(column: Column, name: str) -> Int64s:
    if not isinstance(column, np.ndarray) or column.dtype != np.int64:
        raise BadInput(f"input {name!r}: expected int64 values")
    return np.ascontiguousarray(column, np.int64).reshape(-1)


def _kept(ends: Int64s, s: SequenceEntry) -> tuple[Int64s, Int64s]:
    """Return row_splits of the events that are kept, and the events' numbers."""
    counts = np.minimum(np.diff(ends), s.max_length)
    firsts = ends[1:] - counts if s.keep == "newest" else ends[:-1]
    splits = _ends(counts)
    return splits, np.repeat(firsts - splits[:-1], counts) + np.arange(splits[-1])


def _ends(counts: Int64s) -> Int64s:
    ends = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=ends[1:])
    return ends


def _equal(splits: NDArray[Any], ends: NDArray[Any]) -> bool:
    """Report whether two row_splits are the same, those of one row without a call of numpy."""
    if len(splits) == len(ends) == 2:
        return bool(splits[1] == ends[1])
    return splits is ends or np.array_equal(splits, ends)
