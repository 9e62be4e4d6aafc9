"""What test_publisher_kills kills: a trainer that publishes all the time, and a server that follows and rolls back.

    python -m tests.e2e.killed_publisher train REPOSITORY CHECKPOINT KIND SEED
    python -m tests.e2e.killed_publisher finish REPOSITORY CHECKPOINT KIND SEED
    python -m tests.e2e.killed_publisher serve REPOSITORY SEED

KIND: numpy, a trainer of plain arrays behind what callback and hook share, or torch, a PyTorch model with the hook,
under a Python that has it. How it learns, removes and restores rows is drawn. It keeps a checkpoint now and then, and
finds one at its start: rows, bias, what it removed, and the generation that they stand on.
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path

import numpy as np

from freshet_serving.models.publishing.model_tracker import ModelTracker, PublishInterval, TrackedTable
from freshet_serving.models.publishing.publisher import Publisher
from tests.e2e.killing import announce_commits, say

MODEL, ROWS, DIM, BIAS = "small", 40, 4, "mlp_0/bias"


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
    """One life of a trainer of plain arrays."""

    def __init__(self, repository, checkpoint, seed):
        self.draw, self.checkpoint = random.Random(seed), Path(checkpoint)
        saved = json.loads(self.checkpoint.read_text())
        values = np.frombuffer(bytes.fromhex(saved["rows"]), np.float32).reshape(ROWS, DIM).copy()
        bias = np.frombuffer(bytes.fromhex(saved["bias"]), np.float32).copy()
        self.publisher = Publisher(repository, MODEL, generation=saved["generation"])
        self.tracked = self.track(values, bias)
        self.removed = set()
        self.remove(saved["removed"])

    def track(self, values, bias):
        self.matrix, self.bias = Matrix(values, self.draw.random() < 0.5), Bias(bias)
        keys = np.arange(ROWS)
        table = TrackedTable(self.publisher.manifest.table("user"), keys, keys, self.matrix)
        tracked = ModelTracker(self.publisher, [table], {BIAS: self.bias}, PublishInterval(0.0, 1))
        tracked.open()
        return tracked

    def remove(self, keys):
        self.tracked.remove("user", np.array(sorted(keys), np.int64))
        self.removed |= set(keys)

    def learn(self):
        draw = self.draw
        self.move(draw.sample(range(ROWS), draw.randint(0, 6)), draw.random() < 0.3)
        if draw.random() < 0.2:
            self.remove(draw.sample(range(ROWS), 2))
        if draw.random() < 0.2 and self.removed:
            back = draw.sample(sorted(self.removed), 1)
            self.tracked.restore("user", np.array(back))
            self.removed -= set(back)

    def move(self, rows, bias):
        self.matrix.values[rows] += np.float32(self.draw.uniform(-1, 1))
        self.matrix.noted |= set(rows)
        if bias:
            self.bias.value += np.float32(self.draw.uniform(-1, 1))

    def publish(self):
        generation = self.tracked.publish()
        # A rollback may have brought rows back, or taken some away.
        self.removed = set(np.flatnonzero(self.tracked.tables["user"].gone).tolist())
        return generation

    def weights(self):
        return self.matrix.values, self.bias.value

    def save(self):
        aside = self.checkpoint.with_suffix(".tmp")
        aside.write_text(json.dumps(self.state()))
        os.replace(aside, self.checkpoint)

    def state(self):
        return state_of(*self.weights(), self.removed, self.publisher.generation)


class TorchTrainer(Trainer):
    """One life of a PyTorch model; what it learns is gradients."""

    def track(self, values, bias):
        import torch

        self.model = torch.nn.Module()
        self.model.user = torch.nn.Parameter(torch.from_numpy(values))
        self.model.register_parameter(BIAS, torch.nn.Parameter(torch.from_numpy(bias)))
        kind = self.draw.choice([torch.optim.SGD, torch.optim.Adagrad, torch.optim.Adam])
        self.optimizer = kind(self.model.parameters(), 0.1)
        self.sparse = kind is not torch.optim.Adam
        self.hook = self.publisher.torch(self.model, self.optimizer, every_batches=10**9)
        return self.hook._tracker

    def move(self, rows, bias):
        import torch

        self.optimizer.zero_grad()
        # Each by itself: PyTorch 1.13's Adagrad cannot take a gradient of no rows.
        if rows:
            at = torch.tensor(rows, dtype=torch.int64)
            looked_up = torch.nn.functional.embedding(at, self.model.user, sparse=self.sparse)
            (looked_up.sum() * self.draw.uniform(-1, 1)).backward()
        if bias:
            getattr(self.model, BIAS).sum().backward()
        self.optimizer.step()

    def weights(self):
        return self.model.user.detach().numpy(), getattr(self.model, BIAS).detach().numpy()


TRAINERS = {"numpy": Trainer, "torch": TorchTrainer}


def state_of(rows, bias, removed, generation):
    """What a checkpoint holds."""
    rows, bias = (np.ascontiguousarray(part, np.float32).tobytes().hex() for part in (rows, bias))
    return {"rows": rows, "bias": bias, "removed": sorted(removed), "generation": str(generation)}


def train(repository, checkpoint, kind, seed):
    trainer = TRAINERS[kind](repository, checkpoint, seed)
    announce_commits()
    while True:
        trainer.learn()
        say("published", trainer.publish())
        if trainer.draw.random() < 0.3:
            # Learned, and not published yet.
            trainer.learn()
            trainer.save()


def finish(repository, checkpoint, kind, seed):
    trainer = TRAINERS[kind](repository, checkpoint, seed)
    trainer.learn()
    trainer.publish()
    say(json.dumps(trainer.state()))


def serve(repository, seed):
    from freshet_serving.processor.engine import Processor, ProcessorConfig
    from freshet_serving.processor.errors import FreshetError
    from freshet_serving.processor.generation import Generation

    draw = random.Random(seed)
    processor = Processor.initialize(ProcessorConfig(str(repository), sessions=1, undo_depth=2))
    announce_commits()
    while True:
        processor.poll()
        generation = processor.predictor.manifest(MODEL)[1]
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
