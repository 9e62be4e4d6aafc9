"""Freshet's trainer, as `freshet train` drives it: read and transform ahead, then look up, step, update.

Arguments: batch rows, table rows. Nothing is tuned. What it answers has the stages' seconds beside the rest.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator

from freshet_serving.models.config.train_config import TrainConfig, parse_config
from freshet_serving.models.data.prefetch import PrefetchPipeline
from freshet_serving.models.data.source import Batch
from freshet_serving.models.training.spec import draft
from freshet_serving.models.training.trainer import Trainer
from loadtest.bench.training.race_shape import DENSE_RATE, DIM, FEATURES, HIDDEN, RATE, RaceShape
from loadtest.bench.training.turns import serve


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


def batches(shape: RaceShape) -> Iterator[Batch]:
    ids, labels = shape.rows()
    columns = [ids[:, f].copy() for f in range(FEATURES)]
    for at in itertools.cycle(range(0, shape.steps() * shape.batch_rows, shape.batch_rows)):
        part = slice(at, at + shape.batch_rows)
        yield Batch({f"f{f}": column[part] for f, column in enumerate(columns)}, labels[part], None, at)


def main() -> None:
    shape = RaceShape(int(sys.argv[1]), int(sys.argv[2]))
    config = race_config(shape)
    trainer = Trainer(draft(config, {}), config.train, config.network)
    with PrefetchPipeline(batches(shape), trainer.transform) as works:

        def learn(steps: int) -> float:
            return [trainer.learn(work) for work in itertools.islice(works, steps)][-1]

        serve(learn)


if __name__ == "__main__":
    main()
