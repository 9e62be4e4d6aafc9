"""A network of the next item in the race, without counts, trained as `freshet train` does; one thread.

Arguments: the network, a file of LeaveOneOut arrays, a folder, seed, epochs, threads. Writes after every epoch
<folder>/<network>-<seed>.json, figures by epoch, and the trainer's state beside it, and continues from there.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.models.config.train_config import parse_config
from freshet_serving.models.data.source import Batch
from freshet_serving.models.embedding.variable import Changes
from freshet_serving.models.training.next_item_trainer import NextItemTrainer
from freshet_serving.models.training.spec import draft
from freshet_serving.processor.columns import Column, Ragged
from loadtest.bench.training.leave_one_out import LeaveOneOut

DIM, LENGTH, LAYERS, DROPOUT, BATCH, RATE = 50, 200, 2, 0.2, 128, 0.001
SCORED_USERS = 256
FIRST_SPREAD = 0.02
"""About that of Xavier's first values for as many items, which the peer has."""


def trainer_of(arch: str, seed: int) -> NextItemTrainer:
    history: dict[str, Any] = {
        "columns": {"movie": "movie_id"},
        "tables": {"movie": "movie_id"},
        "from_events": "user_id",
        "ties": "file",
        "max_length": LENGTH,
    }
    if arch == "hstu_next":
        history["time"] = "timestamp"
    rates = {"optimizer": "adam", "learning_rate": RATE, "dense_learning_rate": RATE, "batch_rows": BATCH, "seed": seed}
    config = parse_config(
        {
            "model": {"name": "next", "arch": arch, "layers": LAYERS, "dropout": DROPOUT, "popularity": False},
            "data": {"path": "-", "format": "movielens"},
            "features": {
                "user_id": {"kind": "id", "side": "user"},
                "movie_id": {"kind": "id", "side": "item", "dim": DIM},
            },
            "sequences": {"history": history},
            "train": rates,
            "tables": {"movie_id": {"init": "normal", "init_scale": FIRST_SPREAD}},
        }
    )
    return NextItemTrainer(draft(config, {}), config.train, config.network, None, config.tables)


def histories(split: LeaveOneOut, users: NDArray[np.int64], timed: bool, ends: bool) -> Batch:
    """Each user's newest events.

    Args:
        split: The events.
        users: The users.
        timed: Whether there are times.
        ends: Whether the last event is a target, or stands after the newest, where nothing reads it.
    """
    stops, most = split.splits[users + 1], LENGTH + 1 if ends else LENGTH
    counts = np.minimum(stops - split.splits[users], most)
    splits = np.concatenate([[0], np.cumsum(counts)])
    at = np.repeat(stops - counts - splits[:-1], counts) + np.arange(splits[-1])
    if not ends:
        at = np.insert(at, splits[1:], at[splits[1:] - 1])
        splits = splits + np.arange(len(splits))
    columns: dict[str, Column] = {"history.movie": Ragged(split.items[at], splits)}
    if timed:
        columns["history.time"] = Ragged(split.times[at], splits)
    return Batch(columns, (np.diff(splits) - 1).astype(np.float32), None, 0)


def measured(trainer: NextItemTrainer, split: LeaveOneOut, timed: bool) -> dict[str, float]:
    vectors = []
    for first in range(0, len(split.targets), SCORED_USERS):
        users = np.arange(first, min(first + SCORED_USERS, len(split.targets)))
        batch = histories(split, users, timed, False)
        vectors.append(trainer.states(batch)[0][np.arange(len(users)), batch.label.astype(np.int64) - 1])
    export = trainer.items.export()
    items = np.zeros((split.catalogue, DIM), np.float32)
    items[export.keys] = export.rows
    return split.measured(np.concatenate(vectors), items)


def main() -> None:
    arch, file, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    seed, epochs, threads = (int(word) for word in sys.argv[4:7])
    told = folder / f"{arch}-{seed}.json"
    if told.exists() and len(json.loads(told.read_text())) >= epochs:
        return
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    split, timed = LeaveOneOut.loaded(np.load(file)), arch == "hstu_next"
    trainer, done = trainer_of(arch, seed), list[dict[str, float]]()
    kept = folder / f"{arch}-{seed}.state"
    if kept.exists():
        done = restore(trainer, kept)
    learned = np.flatnonzero(np.diff(split.splits) > 1)
    while len(done) < epochs:
        began, cpu = time.perf_counter(), time.process_time()
        order, losses = np.random.default_rng((seed, len(done))).permutation(learned), list[float]()
        for first in range(0, len(order), BATCH):
            losses.append(trainer.learn(histories(split, order[first : first + BATCH], timed, True)))
        spent, cpu = time.perf_counter() - began, time.process_time() - cpu
        figures = {"seconds": round(spent, 1), "cpu_seconds": round(cpu, 1), "loss": float(np.mean(losses))}
        done.append(measured(trainer, split, timed) | figures)
        save(trainer, kept, done)
        told.write_text(json.dumps(done, indent=1) + "\n")
        print(json.dumps(done[-1]), flush=True)


def save(trainer: NextItemTrainer, path: Path, done: list[dict[str, float]]) -> None:
    arrays: dict[str, Any] = asdict(trainer.items.export())
    arrays |= {f"dense{number}": array for number, array in enumerate(trainer.dense.state.arrays())}
    beside = path.with_suffix(".tmp")
    with open(beside, "wb") as file:
        np.savez(file, steps=trainer.steps, done=json.dumps(done), **arrays)
    beside.replace(path)


def restore(trainer: NextItemTrainer, path: Path) -> list[dict[str, float]]:
    """Restore what save() wrote, and return its figures by epoch."""
    with np.load(path, allow_pickle=False) as saved:
        trainer.items.restore(Changes(**{f.name: saved[f.name] for f in fields(Changes)}))
        dense = sum(name.startswith("dense") for name in saved)
        trainer.dense.state.replace([saved[f"dense{number}"] for number in range(dense)])
        trainer.count_from(int(saved["steps"]))
        done: list[dict[str, float]] = json.loads(str(saved["done"]))
    return done


if __name__ == "__main__":
    main()
