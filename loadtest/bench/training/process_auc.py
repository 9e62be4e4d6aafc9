"""The AUC of the synthetic stream, each batch scored before it is learned, by one process or several under mpiexec.

With --optimizer, ids wait for their rows and leave, gradients are clipped, and it is that optimizer's: what
`make -C loadtest processes-grid` compares. Says "scores" and those of the rows that follow 100 batches, as hexadecimal
float32, then "auc" and the AUC of the last half of the rows.
"""

from __future__ import annotations

import argparse
import itertools
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from freshet_serving.models.config.train_config import parse_config
from freshet_serving.models.data.prefetch import PrefetchPipeline
from freshet_serving.models.data.synthetic import SyntheticSource, default_features
from freshet_serving.models.evaluation.quality import ScoredRows
from freshet_serving.models.parallel.mpi_run import started_by_mpi, take_part
from freshet_serving.models.training.defaults import chosen
from freshet_serving.models.training.spec import draft
from freshet_serving.models.training.trainer import Trainer

BATCH_ROWS, COMPARED_BATCHES = 256, 100
TABLES = {"user_id": {"admit_after": 2}, "item_id": {"evict_after_steps": 40}, "tags": {"evict_below_norm": 1e-4}}


def learn_stream(rows: int, wire: str, optimizer: str, make: Callable[..., Any] | None) -> None:
    train = {"optimizer": optimizer, "clip_norm": 1.0} if optimizer else {"optimizer": "adagrad", "learning_rate": 0.05}
    if optimizer == "sgd":
        train["learning_rate"] = 0.5
    config = parse_config(
        {
            "model": {"name": "stream", "hidden": [64, 32]},
            "data": {"path": "stream", "format": "csv", "label": "label"},
            "features": {name: dict(options) for name, options in default_features().items()},
            "train": {"batch_rows": BATCH_ROWS, **train},
            "tables": TABLES if optimizer else {},
        }
    )
    if optimizer:
        settings = replace(chosen(config.train, config.features, rows), wire=wire)
    else:
        settings = replace(config.train, wire=wire, initial_accumulator=1e-6, dense_learning_rate=0.001)
    given = draft(config, {}), settings, config.network
    trainer: Trainer = (make or Trainer)(*given, None, config.tables if optimizer else None)
    scored, batches = ScoredRows(), itertools.islice(SyntheticSource().batches(BATCH_ROWS), rows // BATCH_ROWS)
    with PrefetchPipeline(batches, trainer.transform) as works:
        for number, work in enumerate(works):
            if optimizer and number == COMPARED_BATCHES:
                os.write(1, f"scores {trainer.score(work).tobytes().hex()}\n".encode())
            if work.batch.start >= rows // 2:
                scored.add(work.batch.label, trainer.score(work), None)
            trainer.learn(work)
            if optimizer and number % 20 == 19:
                trainer.evict()
    os.write(1, f"auc {scored.auc():.6f}\n".encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=150_000)
    parser.add_argument("--wire", default="float32")
    parser.add_argument("--optimizer", default="")
    given = parser.parse_args()
    if started_by_mpi():
        take_part(lambda make: learn_stream(given.rows, given.wire, given.optimizer, make))
    else:
        learn_stream(given.rows, given.wire, given.optimizer, None)


if __name__ == "__main__":
    main()
