"""Good streams for the guard trial, trained as `freshet train` does it and kept as a version and its deltas.

A stream is trained once and replayed as often as there is something to try (loadtest.bench.guard_replay), so that the
trial of a guard does not wait for training.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from freshet_serving.models.config.train_config import TrainConfig, parse_config
from freshet_serving.models.data.open_data import default_features, open_source
from freshet_serving.models.data.source import Batch, Source
from freshet_serving.models.training.loop import TrainingRun
from freshet_serving.processor.package.delta import Delta, read_delta
from loadtest.bench.shop_streams import ShopKind, ShopSource

MODEL, HIDDEN, DIM = "ctr", [16], 8
ASKED_ROWS = 512
"""Of the rows that come next, so many are asked for before each delta."""


@dataclass(frozen=True, slots=True)
class GuardStream:
    """One stream of the trial.

    Attributes:
        data, form: place of real data below the data folder, and their format; "" for a shop.
        shop: the shop of a made-up stream, given the first row behind the full version.
        full_rows, delta_rows: as in [publish].
        asked: rows that one client asks again and again; 0: those that come next.
        delta_s: seconds from delta to delta; of a tide those that its rows take, or a day would pass in hours.
    """

    name: str
    data: str = ""
    form: str = ""
    shop: Callable[[int], ShopKind] | None = None
    full_rows: int = 12_000
    delta_rows: int = 500
    asked: int = 0
    delta_s: float = 10.0

    def open(self, data: Path, repository: Path, deltas: int) -> tuple[TrainConfig, Source]:
        """Return training file and rows; `deltas` says when halfway is, where something happens to a shop."""
        publish: dict[str, Any] = {"repository": str(repository), "full_rows": self.full_rows, "snapshot_after": 0}
        raw: dict[str, Any] = {
            "model": {"name": MODEL, "hidden": HIDDEN},
            "publish": publish | {"delta_rows": self.delta_rows},
        }
        if self.shop is not None:
            halfway = self.full_rows + deltas // 2 * self.delta_rows
            features = {name: {"kind": "id", "dim": DIM} for name in ("user", "item", "category", "hour")}
            raw["data"] = {"path": "made up", "label": "bought", "time": "time", "format": "parquet"}
            return parse_config(raw | {"features": features | {"price": {"kind": "float"}}}), ShopSource(
                self.shop(halfway)
            )
        path, form = str(data / self.data), self.form
        features = default_features(form, path)
        raw["data"] = {"path": path, "format": form}
        config = parse_config(
            raw | {"features": {name: f | ({"dim": DIM} if "dim" in f else {}) for name, f in features.items()}}
        )
        return config, open_source(config.data, config.features)


def _swing(halfway: int) -> ShopKind:
    return ShopKind("swing", 0.057, 0.105, row_s=20.0)


def _tide(halfway: int) -> ShopKind:
    return ShopKind("tide", 0.04, 0.12, tide=True, row_s=0.12)


def _launch(halfway: int) -> ShopKind:
    return ShopKind("launch", launch_row=halfway)


def _price(halfway: int) -> ShopKind:
    return ShopKind("price", price_row=halfway)


STREAMS = (
    GuardStream("MovieLens-1M, a delta every 200 ratings", "ml-1m", "movielens", full_rows=200_000, delta_rows=200),
    GuardStream("Criteo, a delta every 8 rows", "criteo/recoded20k.csv.gz", "criteo", full_rows=3_500, delta_rows=8),
    GuardStream("a shop whose labels swing from 5.7 to 10.5 %, four rows asked", shop=_swing, asked=4),
    GuardStream("a day's tide, labels of 4 to 12 %", shop=_tide, delta_s=60.0),
    GuardStream("a launch of 10,000 new ids, 30 % of the rows", shop=_launch),
    GuardStream("a price change, every third item at 0.7", shop=_price),
)


@dataclass(frozen=True, slots=True)
class KeptStream:
    """A stream that was trained.

    Attributes:
        folder: its repository, with version 1 of MODEL and all deltas.
        deltas: paths of the deltas, in order.
        held: notes of windows that the trainer's own guard held.
        asked: for each delta the rows that are asked for before it.
        earlier: rows of the full version, with their labels.
    """

    stream: GuardStream
    folder: Path
    deltas: Sequence[Path]
    held: Sequence[str]
    asked: Sequence[Batch]
    earlier: Batch

    def read(self, number: int) -> Delta:
        """Read delta `number`, counted from 0."""
        return read_delta(self.deltas[number])


class _HeldDeltaLog:
    def __init__(self) -> None:
        self.held: list[str] = []

    def begin(self, what: str, total: int | None) -> None: ...
    def advance(self, done: int) -> None: ...

    def note(self, text: str) -> None:
        if text.startswith(("held", "released")):
            self.held.append(text)


def train_stream(stream: GuardStream, data: Path, folder: Path, deltas: int) -> KeptStream:
    """Train a stream's full version and so many deltas into a repository in `folder`; one that is there is read."""
    config, source = stream.open(data, folder, deltas)
    about = folder / f"{deltas}.json"
    if not about.exists():
        notes, steps = _HeldDeltaLog(), []
        run = TrainingRun(config, source, reporter=notes)
        run.full()
        for generation in run.stream(stop_row=stream.full_rows + deltas * stream.delta_rows):
            steps.append(generation.step)
        about.write_text(json.dumps({"steps": steps, "held": notes.held}))
    told = json.loads(about.read_bytes())
    made = [folder / MODEL / "1" / "deltas" / f"{step}.safetensors" for step in told["steps"]]
    return KeptStream(
        stream, folder, made, told["held"], list(_coming(stream, source, deltas)), next(source.batches(4096, 0))
    )


def _coming(stream: GuardStream, source: Source, deltas: int) -> Iterator[Batch]:
    """The rows that are asked for while 25 deltas come: some of those that these deltas learn, or always the same. They
    are spread over them all: consecutive rows may be one user's, and many users ask a server at a time."""
    if stream.asked:
        yield next(source.batches(stream.asked, stream.full_rows))
        return
    step = 25 * stream.delta_rows
    for first in range(stream.full_rows, stream.full_rows + deltas * stream.delta_rows, step):
        batch = next(source.batches(step, first), None)
        if batch is None or not len(batch):
            return
        yield batch.take(np.linspace(0, len(batch) - 1, min(ASKED_ROWS, len(batch))).astype(np.int64))
