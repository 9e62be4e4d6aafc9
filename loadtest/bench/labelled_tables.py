"""The tables of `make -C loadtest defaults`: real ones where they are found, made-up ones by seed.

Made-up ad clicks are as uneven as real ones: one click in 400 rows, six columns of ids, from 24 hours to 120,000
addresses, most of which are met once, and a few applications that get most of the clicks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.config.train_config import TrainConfig, parse_config
from freshet_serving.models.data import open_data, synthetic
from freshet_serving.models.data.source import Batch, Field, Schema, Source, check_position

CLICK_ROWS, CLICK_SHARE = 80_000, 0.0025
# column: (ids, how uneven they are, how much they say)
CLICK_COLUMNS = {
    "ip": (120_000, 0.55, 0.8),
    "app": (500, 1.15, 2.2),
    "device": (3000, 2.3, 1.5),
    "os": (400, 1.2, 0.5),
    "channel": (300, 1.0, 1.2),
    "hour": (24, 0.3, 0.2),
}


@dataclass(frozen=True, slots=True)
class LabelledTable:
    """name: of the table and, behind a comma, of an architecture that is not the default one. data: where it is in the
    folder of real data, "" for a made-up one. open: from that place to the stream and its sections [features.*]."""

    name: str
    open: Callable[[Path], tuple[Source, dict[str, Any]]]
    arch: str = "deepfm"
    data: str = ""

    def config(self, features: dict[str, Any]) -> TrainConfig:
        """A training file that says nothing of [train]."""
        model = {"name": "table", "arch": self.arch}
        return parse_config({"model": model, "data": {"path": "x.csv", "label": "-"}, "features": features})


class AdClicks:
    """The made-up ad clicks, in memory."""

    schema = Schema(tuple(Field(name, "id") for name in CLICK_COLUMNS), "clicked")

    def __init__(self, rows: int = CLICK_ROWS, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        logit = np.zeros(rows)
        self._columns: dict[str, NDArray[np.int64]] = {}
        for name, (ids, uneven, says) in CLICK_COLUMNS.items():
            shares = np.cumsum(1 / np.arange(1, ids + 1) ** uneven)
            self._columns[name] = np.searchsorted(shares, random.random(rows) * shares[-1]).astype(np.int64)
            logit += (random.standard_normal(ids) * says)[self._columns[name]]
        self._label = (random.random(rows) < click_shares(logit, CLICK_SHARE)).astype(np.float32)

    def count_rows(self) -> int:
        return len(self._label)

    def batches(self, rows: int, start: int = 0) -> Iterator[Batch]:
        check_position(rows, start)
        for first in range(start, len(self._label), rows):
            cut = slice(first, first + rows)
            columns = {name: ids[cut] for name, ids in self._columns.items()}
            yield Batch(dict(columns), self._label[cut], None, first)


class FirstRows:
    """The first rows of a stream."""

    def __init__(self, source: Source, rows: int) -> None:
        self._source, self._rows = source, rows
        self.schema = source.schema

    def count_rows(self) -> int:
        return self._rows

    def batches(self, rows: int, start: int = 0) -> Iterator[Batch]:
        for batch in self._source.batches(rows, start):
            if batch.start >= self._rows:
                return
            yield batch.slice(0, min(len(batch), self._rows - batch.start))


def click_shares(logit: NDArray[np.float64], mean: float) -> NDArray[np.float64]:
    """Probabilities of these logits, moved so that their mean is as wanted."""
    low, high = -50.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if (1 / (1 + np.exp(-logit - middle))).mean() < mean else (low, middle)
    shares: NDArray[np.float64] = 1 / (1 + np.exp(-logit - low))
    return shares


def _of_format(form: str) -> Callable[[Path], tuple[Source, dict[str, Any]]]:
    def opened(path: Path) -> tuple[Source, dict[str, Any]]:
        features = open_data.default_features(form, str(path))
        raw = {"model": {"name": "table"}, "data": {"path": str(path), "format": form}}
        config = parse_config(raw | {"features": features})
        return open_data.open_source(config.data, config.features), features

    return opened


def _synthetic(rows: int) -> Callable[[Path], tuple[Source, dict[str, Any]]]:
    return lambda _: (synthetic.SyntheticSource(1, rows), synthetic.default_features())


def _ad_clicks(_: Path) -> tuple[Source, dict[str, Any]]:
    return AdClicks(), {name: {"kind": "id"} for name in CLICK_COLUMNS}


CRITEO = "criteo/recoded20k.csv.gz"
TABLES = {
    table.name: table
    for table in (
        LabelledTable("MovieLens-1M", _of_format("movielens"), data="ml-1m"),
        LabelledTable("synthetic, 10,000 rows", _synthetic(10_000)),
        LabelledTable("synthetic, 10,000 rows, dlrm", _synthetic(10_000), "dlrm"),
        LabelledTable("synthetic, 100,000 rows", _synthetic(100_000)),
        LabelledTable("Criteo, 20,000 rows", _of_format("criteo"), data=CRITEO),
        LabelledTable("Criteo, 20,000 rows, dlrm", _of_format("criteo"), "dlrm", data=CRITEO),
        LabelledTable("ad clicks, made up, 80,000 rows", _ad_clicks),
    )
}
