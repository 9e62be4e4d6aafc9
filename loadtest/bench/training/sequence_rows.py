"""MovieLens-1M with each user's history, cut in three by time, as every side of the sequence race learns it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.config.train_config import TrainConfig, parse_config
from freshet_serving.models.data.open_data import open_source
from freshet_serving.models.data.source import Batch, Source
from freshet_serving.processor.columns import Ragged
from loadtest.bench.training.quality_rows import CHOOSING, LEARNED, embedding_ids

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


class SequenceRows:
    """The stream's first `rows`, or all. parts: where each of the three parts begins and ends."""

    def __init__(self, data: Path, rows: int) -> None:
        self._data = str(data)
        source = self.source("stca")
        self.all = min(rows or 1 << 62, source.count_rows() or 0)
        learned, choosing = round(self.all * LEARNED), round(self.all * CHOOSING)
        self.parts = {"learned": (0, learned), "choosing": (learned, choosing), "last": (choosing, self.all)}
        self.whole = next(source.batches(self.all))

    def config(self, arch: str, **train: Any) -> TrainConfig:
        features = {"user_id": {"kind": "id", "side": "user", "dim": DIM}}
        features["movie_id"] = {"kind": "id", "side": "item", "dim": DIM}
        model: dict[str, Any] = {"name": "quality", "arch": arch, "hidden": HIDDEN}
        if arch == "din":
            model["attention"] = ATTENTION
        raw = {"model": model, "data": {"path": self._data, "format": "movielens"}, "features": features}
        raw |= {"train": train}
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

    def coded(self) -> tuple[dict[str, NDArray[Any]], dict[str, int]]:
        """Rows of embeddings by part and column, and each column's number of rows, for a side with an environment of
        its own: an embedding for each id of the learned rows; 0 is no event, 1 any other id."""
        whole, learned = self.whole, self.parts["learned"][1]
        history, movies, users = (whole.columns[name] for name in ("history.movie", "movie_id", "user_id"))
        assert isinstance(history, Ragged)
        assert isinstance(history.values, np.ndarray)
        assert isinstance(movies, np.ndarray)
        user, sizes = embedding_ids(users, learned)[0][:, 0], {"user_id": embedding_ids(users, learned)[1]}
        ids, movie = np.unique(movies, return_inverse=True)
        known = np.zeros(len(ids), bool)
        known[movie[:learned]] = True
        code = np.where(known, np.cumsum(known) + 1, 1).astype(np.int32)
        matrix = np.zeros((len(movie), LENGTH), np.int32)
        lengths = np.diff(history.row_splits)
        matrix[np.arange(LENGTH) < lengths[:, None]] = code[np.searchsorted(ids, history.values)]
        sizes["movie_id"] = int(known.sum()) + 2
        columns = {"user_id": user, "movie_id": code[movie], "history": matrix, "label": whole.label}
        arrays = {f"{part}.{n}": c[slice(*at)] for part, at in self.parts.items() for n, c in columns.items()}
        return arrays, sizes
