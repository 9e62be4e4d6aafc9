"""Freshet's trainer in the races of steps, as `freshet train` drives it: read and transform ahead, look up, step.

Arguments: `ids`, batch rows, table rows; or `histories`, batch rows, the folder of MovieLens-1M, rows. Untuned.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from freshet_serving.models.config.train_config import TrainConfig, parse_config
from freshet_serving.models.data.prefetch import PrefetchPipeline
from freshet_serving.models.data.source import Batch
from freshet_serving.models.training.defaults import chosen
from freshet_serving.models.training.spec import draft, measure_scaling, share_of_ones
from freshet_serving.models.training.trainer import Trainer
from loadtest.bench.training.sequence_rows import SequenceRows
from loadtest.bench.training.turns import DENSE_RATE, DIM, FEATURES, HIDDEN, RATE, RaceShape, serve


def race_config(shape: RaceShape) -> TrainConfig:
    """The training file of what all sides learn."""
    return parse_config(
        {
            "model": {"name": "race", "hidden": list(HIDDEN)},
            "data": {"path": "rows.parquet", "label": "label"},
            "features": {f"f{f}": {"kind": "id", "dim": DIM} for f in range(FEATURES)},
            "train": {
                "batch_rows": shape.batch_rows,
                "optimizer": "adagrad",
                "learning_rate": RATE,
                "initial_accumulator": 0.1,
                "dense_learning_rate": DENSE_RATE,
            },
        }
    )


def of_ids(batch_rows: int, table_rows: str) -> tuple[Trainer, Iterator[Batch]]:
    shape = RaceShape(batch_rows, int(table_rows))
    config = race_config(shape)
    ids, labels = shape.rows()
    columns = [ids[:, f].copy() for f in range(FEATURES)]

    def batches() -> Iterator[Batch]:
        for at in itertools.cycle(range(0, shape.steps() * batch_rows, batch_rows)):
            part = slice(at, at + batch_rows)
            yield Batch({f"f{f}": column[part] for f, column in enumerate(columns)}, labels[part], None, at)

    return Trainer(draft(config, {}), config.train, config.network), batches()


def of_histories(batch_rows: int, data: str, all_rows: str) -> tuple[Trainer, Iterator[Batch]]:
    rows = SequenceRows(Path(data), int(all_rows))
    config, source = rows.config("din"), rows.source("din")
    names, learned = [f.name for f in config.features], rows.parts["learned"][1]
    settings = chosen(config.train, config.features, learned, share_of_ones(source))
    settings = replace(settings, batch_rows=batch_rows, seed=0)
    random = np.random.default_rng(0)

    def batches() -> Iterator[Batch]:
        while True:
            yield from itertools.islice(rows.batches("learned", batch_rows, names, random), learned // batch_rows)

    return Trainer(draft(config, measure_scaling(source, config.features)), settings, config.network), batches()


def main() -> None:
    kind, batch_rows, *words = sys.argv[1:]
    trainer, batches = (of_ids if kind == "ids" else of_histories)(int(batch_rows), *words)
    with PrefetchPipeline(batches, trainer.transform) as works:

        def learn(steps: int) -> float:
            return [trainer.learn(work) for work in itertools.islice(works, steps)][-1]

        serve(learn)


if __name__ == "__main__":
    main()
