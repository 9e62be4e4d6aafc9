"""MovieLens-1M with each user's history, cut in three by time, as every side of the sequence race learns it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.config.train_config import TrainConfig, parse_config
from freshet_serving.models.data.open_data import open_source
from freshet_serving.models.data.source import Batch, Source
from freshet_serving.processor.columns import Ragged

LEARNED, CHOOSING = 0.8, 0.9
EPOCHS, SCORED_ROWS = 3, 8192
DIM, LENGTH = 16, 50
HIDDEN, ATTENTION = [128, 64], [64]
HISTORY = {
    "columns": {"movie": "movie_id"},
    "tables": {"movie": "movie_id"},
    "from_events": "user_id",
    "where": "label",
    "time": "timestamp",
    "max_length": LENGTH,
}

Run = dict[str, Any]
"""A side's result of one seed. auc: on the last rows; epochs; choosing: its AUC on those rows."""


class SequenceRows:
    """The stream's first `rows`, or all. parts: where each of the three parts begins and ends."""

    def __init__(self, data: Path, rows: int) -> None:
        self._data = str(data)
        source = self.source("stca")
        self.all = min(rows or 1 << 62, source.count_rows() or 0)
        learned, choosing = round(self.all * LEARNED), round(self.all * CHOOSING)
        self.parts = {"learned": (0, learned), "choosing": (learned, choosing), "last": (choosing, self.all)}
        self.whole = next(source.batches(self.all))

    def config(self, arch: str) -> TrainConfig:
        features = {"user_id": {"kind": "id", "side": "user", "dim": DIM}}
        features["movie_id"] = {"kind": "id", "side": "item", "dim": DIM}
        model: dict[str, Any] = {"name": "quality", "arch": arch, "hidden": HIDDEN}
        if arch == "din":
            model["attention"] = ATTENTION
        raw = {"model": model, "data": {"path": self._data, "format": "movielens"}, "features": features}
        # A network without histories has none of their columns.
        return parse_config(raw if arch == "deepfm" else raw | {"sequences": {"history": HISTORY}})

    def source(self, arch: str) -> Source:
        config = self.config(arch)
        return open_source(config.data, config.features)

    def batches(
        self, part: str, rows: int, names: Sequence[str], random: np.random.Generator | None = None
    ) -> Iterator[Batch]:
        """A part's batches of so many rows with these columns, in order of time, or mixed at random."""
        whole = replace(self.whole, columns={name: self.whole.columns[name] for name in names})
        order = np.arange(*self.parts[part])
        if random is not None:
            random.shuffle(order)
        for at in range(0, len(order), rows):
            yield whole.take(order[at : at + rows])

    def save_coded(self, path: Path) -> Path:
        arrays, sizes = self.coded()
        np.savez(path, **(arrays | {"sizes": np.array(json.dumps(sizes))}))  # type: ignore[arg-type]
        return path

    def coded(self) -> tuple[dict[str, NDArray[Any]], dict[str, int]]:
        """Rows of embeddings by part and column, and each column's number of rows, for a side with an environment of
        its own: an embedding for each id of the learned rows; 0 is no event, 1 any other id."""
        whole, learned = self.whole, self.parts["learned"][1]
        history, movies, users = (whole.columns[name] for name in ("history.movie", "movie_id", "user_id"))
        assert isinstance(history, Ragged)
        assert isinstance(history.values, np.ndarray)
        assert isinstance(movies, np.ndarray)
        assert isinstance(users, np.ndarray)
        (_, user_code, user), (ids, code, movie) = (embedding_codes(column, learned) for column in (users, movies))
        sizes = {"user_id": int(user_code.max()) + 1, "movie_id": int(code.max()) + 1}
        matrix = np.zeros((len(movie), LENGTH), np.int32)
        lengths = np.diff(history.row_splits)
        matrix[np.arange(LENGTH) < lengths[:, None]] = code[np.searchsorted(ids, history.values)]
        columns = {"user_id": user_code[user], "movie_id": code[movie], "history": matrix, "label": whole.label}
        arrays = {f"{part}.{n}": c[slice(*at)] for part, at in self.parts.items() for n, c in columns.items()}
        return arrays, sizes


def embedding_codes(column: NDArray[Any], learned: int) -> tuple[NDArray[Any], NDArray[np.int32], NDArray[np.intp]]:
    """Return the ids in order, the row of an embedding of each (one an id of the first `learned` rows, from 2 on; 1 for
    any other), and where each value of the column is among the ids."""
    ids, at = np.unique(column, return_inverse=True)
    known = np.zeros(len(ids), bool)
    known[at[:learned]] = True
    return ids, np.where(known, np.cumsum(known) + 1, 1).astype(np.int32), at


def best_epoch(learn: Callable[[], None], auc: Callable[[str], float], epochs: int) -> Run:
    """The epoch that the choosing rows like best; one that they like less than the one before is the last.

    learn: one epoch more. auc: of a part of the rows. epochs: at most.
    """
    best: Run = {"choosing": -1.0}
    for epoch in range(1, epochs + 1):
        learn()
        choosing = auc("choosing")
        if choosing <= best["choosing"]:
            break
        best = {"auc": auc("last"), "epochs": epoch, "choosing": choosing}
    return best
