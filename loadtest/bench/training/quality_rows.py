"""MovieLens-1M cut in three by time, as every side of the quality race learns it, and what a side is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from freshet_serving.models.config.train_config import TrainConfig, parse_config
from freshet_serving.models.data.movielens import MovieLensSource
from freshet_serving.models.data.open_data import default_features
from freshet_serving.models.data.source import Batch
from freshet_serving.processor.columns import Column, Ragged, Strings

LABELS = ("rated4", "rated5")
LEARNED, CHOOSING = 0.8, 0.9
EPOCHS = 3

Float32s = NDArray[np.float32]
Ids = dict[str, NDArray[np.int32]]
Run = dict[str, Any]
"""What a side makes of one seed. auc: on the last rows, by label; epochs; choosing: its main label's on those rows."""


class QualityRows:
    """The stream's first `rows`, or all. parts: where each of the three parts begins and ends."""

    def __init__(self, data: Path, rows: int) -> None:
        self.data, self.features = str(data), default_features("movielens", str(data))
        source = MovieLensSource(self.data, (), LABELS)
        self.all = min(rows or 1 << 62, source.count_rows())
        learned, choosing = round(self.all * LEARNED), round(self.all * CHOOSING)
        self.parts = {"learned": (0, learned), "choosing": (learned, choosing), "last": (choosing, self.all)}
        self.whole = next(source.batches(self.all))
        self.ids, self.sizes = {}, {}
        for name, column in self.whole.columns.items():
            self.ids[name], self.sizes[name] = embedding_ids(column, learned)

    def config(self, arch: str, labels: tuple[str, ...]) -> TrainConfig:
        data = {"path": "-", "format": "movielens", "label": list(labels)}
        return parse_config({"model": {"name": "quality", "arch": arch}, "data": data, "features": self.features})

    def batches(self, part: str, rows: int, labels: int, random: np.random.Generator | None = None) -> Iterator[Batch]:
        """A part's batches of so many rows, with the first so many labels; in order of time, or mixed at random."""
        order = np.arange(*self.parts[part])
        if random is not None:
            random.shuffle(order)
        for at in range(0, len(order), rows):
            batch = self.whole.take(order[at : at + rows])
            yield replace(batch, label=batch.label[:, 0] if labels == 1 else batch.label)

    def coded(self, part: str, labels: int) -> tuple[Ids, Float32s]:
        """Each feature's rows of an embedding [n, values], and the first so many labels [n, labels]."""
        at = slice(*self.parts[part])
        return {name: ids[at] for name, ids in self.ids.items()}, self.whole.label[at, :labels]


def embedding_ids(column: Column, learned: int) -> tuple[NDArray[np.int32], int]:
    """A column as rows [n, values] of an embedding, and how many rows that has: one an id of the first `learned` rows;
    0 is no value, 1 any other id."""
    values = column.values if isinstance(column, Ragged) else column
    if isinstance(values, Strings):
        buffers = [None, pa.py_buffer(values.offsets), pa.py_buffer(values.data)]
        array = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(values), buffers)
    else:
        array = pa.array(values)
    # Numbered as they come, so that those of the first rows are below all others.
    numbers = array.dictionary_encode().indices.to_numpy()
    known = int(numbers[: column.row_splits[learned] if isinstance(column, Ragged) else learned].max()) + 1
    ids = np.where(numbers < known, numbers + 2, 1).astype(np.int32)
    if not isinstance(column, Ragged):
        return ids[:, None], known + 2
    lengths = np.diff(column.row_splits)
    matrix = np.zeros((len(lengths), int(lengths.max(initial=1))), np.int32)
    matrix[np.arange(matrix.shape[1]) < lengths[:, None]] = ids
    return matrix, known + 2


def best_epoch(learn: Callable[[], None], aucs: Callable[[str], list[float]], epochs: int) -> Run:
    """The epoch that the choosing rows like best; one that they like less than the one before is the last.

    learn: one epoch more. aucs: by label, of a part of the rows. epochs: at most.
    """
    best: Run = {"choosing": -1.0}
    for epoch in range(1, epochs + 1):
        learn()
        choosing = aucs("choosing")[0]
        if choosing <= best["choosing"]:
            break
        best = {"auc": aucs("last"), "epochs": epoch, "choosing": choosing}
    return best


def said(run: Mapping[str, Any]) -> str:
    """A run in a line."""
    aucs = ", ".join(f"{auc:.4f}" for auc in run["auc"])
    return f"AUC {aucs}; of the choosing rows {run['choosing']:.4f} (epoch {run['epochs']})"
