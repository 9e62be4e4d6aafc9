"""Read MovieLens as a click stream: ratings joined with user and movie attributes, in time order.

A folder with
- the events: the first of events.csv.gz, events.csv (timestamp,user_id,movie_id and label or rating) and ratings.dat
  (UserID::MovieID::Rating::Timestamp, as GroupLens ships MovieLens-1M);
- users.dat (UserID::Gender::Age::Occupation::Zip), needed only if one of its columns is read;
- movies.dat (MovieID::Title (Year)::Genre|Genre|...), likewise.
The label is the column `label` if there is one, else rating >= 4; the labels rated1 to rated5 are rating >= that
number. The column rating is read only for histories. Ties in time keep their order. A user or movie missing from its
file has empty strings, no genres and 0 for age, occupation and year.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from freshet_serving.models.data import arrow
from freshet_serving.models.data.files import CsvFile, RowNames
from freshet_serving.models.data.formats import CLOCKS, MOVIELENS_EVENTS, OUTCOMES
from freshet_serving.models.data.source import Batch, Field, Schema, check_position, choose
from freshet_serving.processor.columns import Column
from freshet_serving.processor.errors import BadInput

_USER_FIELDS = (
    Field("gender", "string"),
    Field("age", "id"),
    Field("occupation", "id"),
    Field("zip", "string"),
)
_MOVIE_FIELDS = (Field("genres", "strings"), Field("year", "id"))
FIELDS = (Field("user_id", "id"), Field("movie_id", "id"), *_USER_FIELDS, *_MOVIE_FIELDS)
CLOCK = Field(CLOCKS["movielens"], "seconds")
RATING = Field(OUTCOMES["movielens"], "float")

_YEAR = re.compile(r"\((\d{4})\)\s*$")
_LIKED = 4
_UNKNOWN: dict[str, Any] = {"id": 0, "string": "", "strings": []}


class MovieLensSource:
    """The stream, held in memory as four arrays (28 bytes an event); side features are looked up for each batch."""

    def __init__(self, path: str, wanted: Sequence[Field] = (), labels: Sequence[str] = ()) -> None:
        """Read the named columns or all of FIELDS, and labels out of RATED or the default one. Raises BadInput."""
        self.schema = Schema(choose(FIELDS, wanted, [CLOCK, RATING]), "label", CLOCK.name)
        folder = Path(path)
        events = next((folder / name for name in MOVIELENS_EVENTS if (folder / name).is_file()), None)
        if events is None:
            raise BadInput(f"data.path: expected a folder with one of {', '.join(MOVIELENS_EVENTS)}, got {path!r}")
        named = set(self.schema.names)
        self._user, self._movie, self._label, self._time, self._rating = _read_events(
            events, labels, RATING.name in named
        )
        self._users = _Side(folder / "users.dat", _USER_FIELDS, _user) if named & _names(_USER_FIELDS) else None
        self._movies = _Side(folder / "movies.dat", _MOVIE_FIELDS, _movie) if named & _names(_MOVIE_FIELDS) else None

    def count_rows(self) -> int:
        return len(self._label)

    def batches(self, rows: int, start: int = 0) -> Iterator[Batch]:
        check_position(rows, start)
        for first in range(start, self.count_rows(), rows):
            at = slice(first, min(first + rows, self.count_rows()))
            columns: dict[str, Column] = {"user_id": self._user[at], "movie_id": self._movie[at]}
            if CLOCK.name in self.schema.names:
                columns[CLOCK.name] = self._time[at].astype(np.int64)
            if self._rating is not None:
                columns[RATING.name] = self._rating[at]
            if self._users:
                columns |= self._users.columns(self._user[at])
            if self._movies:
                columns |= self._movies.columns(self._movie[at])
            columns = {name: columns[name] for name in self.schema.names}
            yield Batch(columns, self._label[at], self._time[at], first)


class _Side:
    """Attributes of users or movies: canonical arrays whose last row stands for any unknown id."""

    def __init__(self, path: Path, fields: Sequence[Field], parse: Callable[[list[str]], tuple[Any, ...]]) -> None:
        """Read a file whose lines `parse` turns, by their parts, into (id, a value for each of `fields`)."""
        self._fields = fields
        rows = {}
        for i, line in enumerate(_text(path).splitlines()):
            try:
                key, *values = parse(line.split("::"))
            except (ValueError, IndexError):
                raise BadInput(f"{path.name}: expected fields between '::', got {line[:80]!r} at row {i}") from None
            rows[key] = values
        if not rows:
            raise BadInput(f"{path.name}: expected rows, got an empty file")
        self._ids = np.array(sorted(rows), np.int64)
        unknown = [_UNKNOWN[f.kind] for f in fields]
        table = [rows[i] for i in self._ids.tolist()] + [unknown]
        types = [arrow.ARROW_TYPES[f.kind] for f in fields]
        self._arrays = [pa.array(values, t) for values, t in zip(zip(*table), types)]

    def columns(self, ids: np.ndarray) -> dict[str, Column]:
        """Return every field's rows for ids, int64 [n], in any order."""
        at = np.searchsorted(self._ids, ids)
        at[at == len(self._ids)] = 0
        at[self._ids[at] != ids] = len(self._ids)
        rows = pa.array(at)
        return {f.name: arrow.column(a.take(rows), f.kind) for f, a in zip(self._fields, self._arrays)}


def _names(fields: Sequence[Field]) -> set[str]:
    return {f.name for f in fields}


def _user(parts: list[str]) -> tuple[Any, ...]:
    key, gender, age, occupation, zip_code = parts
    return int(key), gender, int(age), int(occupation), zip_code


def _movie(parts: list[str]) -> tuple[Any, ...]:
    title, year = parts[1], 0
    if match := _YEAR.search(title):
        year = int(match[1])
    return int(parts[0]), [g for g in parts[2].split("|") if g], year


def _text(path: Path) -> str:
    """Return the file as text: UTF-8 if valid, else latin-1, the encoding in which GroupLens ships MovieLens-1M."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path.name}: expected next to the events, cannot be read: {error.strerror}") from None
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def _read_events(path: Path, labels: Sequence[str], rated: bool) -> tuple[Any, Any, Any, Any, np.ndarray | None]:
    """Return the events in time order.

    User int64 [n], movie int64 [n], label float32 [n] or [n, labels] (the default label if none are named), time
    float64 [n], and rating float32 [n] or, unless `rated`, None.
    """
    file = _open_ratings(path) if path.suffix == ".dat" else CsvFile(path)
    labelled = "label" in file.names and not labels
    kinds = {"timestamp": "time", "user_id": "id", "movie_id": "id"}
    kinds |= {"label": "label"} if labelled else {}
    kinds |= {RATING.name: "float"} if rated or not labelled else {}
    file.types(list(kinds))
    types = {name: pa.int64() if kind == "id" else pa.float64() for name, kind in kinds.items()}
    chunks: list[list[np.ndarray]] = []
    row = 0
    for chunk in file.read(types, 0):
        where = RowNames(path.name, row)
        named = zip(chunk.columns, kinds.items())
        chunks.append([arrow.canonical(array, kind, name, where).to_numpy() for array, (name, kind) in named])
        row += chunk.num_rows
    if not chunks:
        raise BadInput(f"{path.name}: expected rows, got an empty file")
    time, user, movie, *others = (np.concatenate(parts) for parts in zip(*chunks))
    rating = others[-1] if rated else None
    stars = [int(label[-1]) for label in labels] or [_LIKED]
    label = others[0] if labelled else np.stack([_liked(others[-1], least, path) for least in stars], 1)
    if label.shape[1:] == (1,):
        label = label[:, 0]
    if (time[1:] < time[:-1]).any():
        order = np.argsort(time, kind="stable")
        time, user, movie, label = time[order], user[order], movie[order], label[order]
        rating = None if rating is None else rating[order]
    return user, movie, label, time, rating


def _open_ratings(path: Path) -> CsvFile:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path.name}: cannot be read: {error.strerror}") from None
    names = ["user_id", "movie_id", "rating", "timestamp"]
    # The CSV reader takes a single byte as delimiter; no field of this file contains a TAB.
    return CsvFile(path, "\t", names, quoted=False, data=raw.replace(b"::", b"\t"))


def _liked(rating: np.ndarray, least: int, path: Path) -> np.ndarray:
    missing = np.isnan(rating)
    if missing.any():
        raise BadInput(f"column 'rating': expected a rating, got a null at row {int(missing.argmax())} of {path.name}")
    return (rating >= least).astype(np.float32)


def default_features() -> dict[str, dict[str, Any]]:
    """Return sections [features.*] for a MovieLens folder: all of FIELDS."""
    sides = {f.name: "user" for f in _USER_FIELDS} | {f.name: "item" for f in _MOVIE_FIELDS}
    sides |= {"user_id": "user", "movie_id": "item"}
    sections: dict[str, dict[str, Any]] = {f.name: {"kind": f.kind, "side": sides[f.name], "dim": 16} for f in FIELDS}
    sections["genres"]["combiner"] = "mean"
    return sections
