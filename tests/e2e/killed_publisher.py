"""What test_publisher_kills kills: a trainer that publishes all the time, and a server that follows and rolls back.

    python -m tests.e2e.killed_publisher train REPOSITORY CHECKPOINT SEED
    python -m tests.e2e.killed_publisher finish REPOSITORY CHECKPOINT SEED
    python -m tests.e2e.killed_publisher serve REPOSITORY SEED

The trainer is one of plain numpy behind what callback and hook share; how it learns, removes and restores rows is
drawn. It keeps a checkpoint now and then: rows, bias, what it removed, and the generation that they stand on.
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path

import numpy as np

from models.publishing.publisher import Publisher
from models.publishing.tracked import Pace, Tracked, TrackedTable
from tests.e2e.killing import announce_commits, say
from tests.packages import DIM, make_weights, rows_of

MODEL, ROWS, BIAS = "small", 40, "mlp_0/bias"


class Matrix:
    """Rows in memory; says which were touched, or nothing."""

    def __init__(self, values, tells):
        self.values, self.tells, self.noted = values, tells, set()

    def read(self, rows):
        return self.values[rows]

    def write(self, rows, values):
        self.values[rows] = values

    def touched(self):
        noted, self.noted = np.array(sorted(self.noted), np.int64), set()
        return noted if self.tells else None


class Bias:
    def __init__(self, value):
        self.value = value

    def read(self):
        return self.value

    def write(self, value):
        self.value[:] = value


class Trainer:
    """One life of the trainer."""

    def __init__(self, repository, checkpoint, seed):
        self.draw, self.checkpoint = random.Random(seed), Path(checkpoint)
        values, bias, removed, generation = rows_of(range(ROWS), 0), make_weights(0)[BIAS], [], "1.0"
        if self.checkpoint.exists():
            saved = json.loads(self.checkpoint.read_text())
            values = np.frombuffer(bytes.fromhex(saved["rows"]), np.float32).reshape(ROWS, DIM).copy()
            bias = np.frombuffer(bytes.fromhex(saved["bias"]), np.float32).copy()
            removed, generation = saved["removed"], saved["generation"]
        self.matrix, self.bias, self.removed = Matrix(values, self.draw.random() < 0.5), Bias(bias), set(removed)
        self.publisher = Publisher(repository, MODEL, generation=generation)
        keys = np.arange(ROWS)
        table = TrackedTable(self.publisher.manifest.table("user"), keys, keys, self.matrix)
        self.tracked = Tracked(self.publisher, [table], {BIAS: self.bias}, Pace(0.0, 1))
        self.tracked.open()
        self.remove(removed)

    def remove(self, keys):
        self.tracked.remove("user", np.array(sorted(keys), np.int64))
        self.removed |= set(keys)

    def learn(self):
        draw = self.draw
        touched = draw.sample(range(ROWS), draw.randint(0, 6))
        self.matrix.values[touched] += np.float32(draw.uniform(-1, 1))
        self.matrix.noted |= set(touched)
        if draw.random() < 0.3:
            self.bias.value += np.float32(draw.uniform(-1, 1))
        if draw.random() < 0.2:
            self.remove(draw.sample(range(ROWS), 2))
        if draw.random() < 0.2 and self.removed:
            back = draw.sample(sorted(self.removed), 1)
            self.tracked.restore("user", np.array(back))
            self.removed -= set(back)

    def publish(self):
        generation = self.tracked.publish()
        # A rollback may have brought rows back, or taken some away.
        self.removed = set(np.flatnonzero(self.tracked.tables["user"].gone).tolist())
        return generation

    def state(self):
        return {
            "rows": self.matrix.values.tobytes().hex(),
            "bias": self.bias.value.tobytes().hex(),
            "removed": sorted(self.removed),
            "generation": str(self.publisher.generation),
        }

    def save(self):
        aside = self.checkpoint.with_suffix(".tmp")
        aside.write_text(json.dumps(self.state()))
        os.replace(aside, self.checkpoint)


def train(repository, checkpoint, seed):
    trainer = Trainer(repository, checkpoint, seed)
    announce_commits()
    while True:
        trainer.learn()
        say("published", trainer.publish())
        if trainer.draw.random() < 0.3:
            # Learned, and not published yet.
            trainer.learn()
            trainer.save()


def finish(repository, checkpoint, seed):
    trainer = Trainer(repository, checkpoint, seed)
    trainer.learn()
    trainer.publish()
    say(json.dumps(trainer.state()))


def serve(repository, seed):
    from processor.engine import Processor, ProcessorConfig
    from processor.errors import FreshetError
    from processor.generation import Generation

    draw = random.Random(seed)
    processor = Processor.initialize(ProcessorConfig(str(repository), sessions=1, undo_depth=2))
    announce_commits()
    while True:
        processor.poll()
        generation = processor.manifest(MODEL)[1]
        say("serves", generation)
        if generation.step > 3 and draw.random() < 0.05:
            try:
                processor.rollback(MODEL, Generation(1, generation.step - draw.randint(1, 3)))
                say("rolled back")
            except FreshetError as error:
                # Undone already, or no generation of the line.
                say("refused", error)


if __name__ == "__main__":
    {f.__name__: f for f in (train, finish, serve)}[sys.argv[1]](*sys.argv[2:])
