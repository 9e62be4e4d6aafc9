"""The AUC of the synthetic stream, each batch scored before it is learned, by one process or several under mpiexec.

Argument: float32 or float16 on the way. Says "auc" and the AUC of the last half of the rows.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from models.config.train_config import parse_config
from models.data.synthetic import SyntheticSource, default_features
from models.evaluation.quality import Scored
from models.parallel.mpi_run import started_by_mpi, take_part
from models.pipeline.ahead import Ahead
from models.training.spec import draft
from models.training.trainer import Trainer

ROWS, BATCH_ROWS = 150_000, 256


def learn_stream(wire: str, make: Callable[..., Any] | None) -> None:
    config = parse_config(
        {
            "model": {"name": "stream", "hidden": [64, 32]},
            "data": {"path": "stream", "format": "csv", "label": "label"},
            "features": {name: dict(options) for name, options in default_features().items()},
            "train": {"batch_rows": BATCH_ROWS, "optimizer": "adagrad", "learning_rate": 0.05},
        }
    )
    settings = replace(config.train, wire=wire, initial_accumulator=1e-6, dense_learning_rate=0.001)
    trainer: Trainer = (make or Trainer)(draft(config, {}), settings, config.network)
    scored, batches = Scored(), itertools.islice(SyntheticSource().batches(BATCH_ROWS), ROWS // BATCH_ROWS)
    with Ahead(batches, trainer.transform) as works:
        for work in works:
            if work.batch.start >= ROWS // 2:
                scored.add(work.batch.label, trainer.score(work), None)
            trainer.learn(work)
    os.write(1, f"auc {scored.auc():.6f}\n".encode())


def main() -> None:
    if started_by_mpi():
        take_part(lambda make: learn_stream(sys.argv[1], make))
    else:
        learn_stream(sys.argv[1], None)


if __name__ == "__main__":
    main()
