"""One side of models' processes: a trainer alone, or rank 0's and its others under mpiexec, each on a core of its own.

Arguments: a shape (process_shapes), float32 or float16 on the way. A line of stdin is so many steps to learn; the
answer is a line of JSON: seconds of the turn, seconds by stage, bytes that this process has sent.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from freshet_serving.models.config.train_config import parse_config
from freshet_serving.models.data.prefetch import PrefetchPipeline
from freshet_serving.models.data.source import Batch
from freshet_serving.models.embedding.variable import Changes
from freshet_serving.models.parallel.mpi_run import started_by_mpi, take_part
from freshet_serving.models.runs.step_profile import StageTime
from freshet_serving.models.training.spec import draft
from freshet_serving.models.training.trainer import Trainer
from freshet_serving.processor.columns import Ragged
from freshet_serving.processor.cores import available, run_on
from loadtest.bench.training.process_shapes import SHAPES, ProcessShape

FILLED_ROWS = 1 << 18


def filled(rows: int, dim: int) -> Iterator[Changes]:
    """A table in which every id has its row, some at a time."""
    random, nothing = np.random.default_rng(1), np.empty(0, np.int64)
    for first in range(0, rows, FILLED_ROWS):
        keys = np.arange(first, min(first + FILLED_ROWS, rows))
        values = random.uniform(-0.01, 0.01, (len(keys), dim)).astype(np.float32)
        slots, books = np.full((len(keys), dim), 0.1, np.float32), np.ones(len(keys), np.int64)
        yield Changes(keys, values, slots, books, books, nothing)


def batches(shape: ProcessShape) -> Iterator[Batch]:
    """Of rows that are held in memory and learned over and over."""
    ids, labels = shape.ids(), shape.labels()
    splits = np.arange(0, (shape.batch_rows + 1) * shape.length, shape.length)
    for number in itertools.cycle(range(shape.held_batches)):
        columns: dict[str, Any] = {}
        for f in range(shape.features):
            values = ids[number, f]
            columns[f"f{f}"] = values if shape.length == 1 else Ragged(values, splits)
        yield Batch(columns, labels[number], None, number * shape.batch_rows)


def learn_turns(shape: ProcessShape, wire: str, make: Callable[..., Any] | None) -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    config = parse_config(shape.config())
    settings = replace(config.train, wire=wire)
    trainer: Trainer = (make or Trainer)(draft(config, {}), settings, config.network)
    for table in trainer.tables.values():
        for piece in filled(shape.table_rows, shape.dim):
            table.restore(piece)
    with PrefetchPipeline(batches(shape), trainer.transform) as works:
        answers.write("ready\n")
        for line in sys.stdin:
            before, began_s = _standing(trainer), time.perf_counter()
            for work in itertools.islice(trainer.profile.waited(works), int(line)):
                trainer.learn(work)
            wall_s, after = time.perf_counter() - began_s, _standing(trainer)
            answers.write(json.dumps({"wall_s": wall_s, "spent": {k: after[k] - before[k] for k in after}}) + "\n")


def _standing(trainer: Any) -> dict[str, float]:
    """Seconds by stage, and bytes that were sent for a step and for batches, so far."""
    stages = trainer.profile.measured()
    found = {"cpu": time.process_time()}
    for name in ("read", "transform", "wait", "look up", "exchange", "step", "update"):
        stage_times = stages.get(name, StageTime())
        found |= {name: stage_times.wall_s, f"{name} cpu": stage_times.cpu_s}
    ranks, slices = getattr(trainer, "ranks", None), getattr(trainer, "batches", None)
    sent = ranks.sent_nbytes if ranks else 0
    return found | {"step bytes": sent, "slice bytes": slices.sent_nbytes if slices else 0}


def main() -> None:
    shape, wire = SHAPES[sys.argv[1]], sys.argv[2]
    if started_by_mpi():
        take_part(lambda make: learn_turns(shape, wire, make))
    else:
        run_on(frozenset(sorted(available())[:1]))
        learn_turns(shape, wire, None)


if __name__ == "__main__":
    main()
