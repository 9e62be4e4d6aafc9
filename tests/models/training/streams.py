"""What the training tests share: a stream with every kind of feature and value, a configuration for it, small runs.

Ids spread over the whole int64 range; strings and ragged rows repeat and run empty and long; floats hold NaN. The
label follows from user, item and price, so that it can be learned.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from freshet_serving.models.config.feature_sections import FeatureConfig
from freshet_serving.models.config.model_section import ModelConfig
from freshet_serving.models.config.publish_section import PublishConfig
from freshet_serving.models.config.train_config import TrainConfig
from freshet_serving.models.config.train_section import TrainSettings
from freshet_serving.models.data.formats import DataConfig
from freshet_serving.models.data.source import Batch, Field, Schema, check_position, join_batches
from freshet_serving.models.embedding.variable import Changes
from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.features.bound_request import BatchView

PARTS = [f.name for f in dataclasses.fields(Changes)]
FEATURES = [
    FeatureConfig("user", "id", "user", 4, side="user"),
    FeatureConfig("item", "id", "item", 8, side="item"),
    FeatureConfig("city", "string", "city", 4),
    FeatureConfig("history", "ids", "item", 8, side="user", combiner="sqrtn", max_length=5),
    FeatureConfig("tags", "strings", "tag", 4, side="item", combiner="mean", max_length=3),
    FeatureConfig("words", "strings", "tag", 4, combiner="sum"),
    FeatureConfig("price", "float", transform="log1p"),
    FeatureConfig("age", "float"),
]
# The same without pooling: rows side by side and a mask.
SEQUENCES = [dataclasses.replace(f, combiner="none") if f.max_length else f for f in FEATURES]
CITIES = ["", "Zürich", "東京", "Oslo", "La Paz", "x" * 40]


def make_config(repository, features=FEATURES, arch="deepfm", full_rows=256, delta_rows=96, **settings):
    rates = {"learning_rate": 0.1, "dense_learning_rate": 0.01, "initial_accumulator": 0.1}
    settings = {"optimizer": "adagrad", "batch_rows": 64, "seed": 3} | rates | settings
    publish = PublishConfig(str(repository), full_rows, delta_rows)
    return TrainConfig(
        ModelConfig("mixed", arch, options={"hidden": (8,)}),
        DataConfig("x", "csv"),
        features,
        TrainSettings(**settings),
        publish,
    )


def spread(numbers):
    """Distinct ids all over int64 for small whole numbers."""
    return (np.asarray(numbers).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)).view(np.int64)


def ragged(lists, make):
    splits = np.zeros(len(lists) + 1, np.int64)
    np.cumsum([len(part) for part in lists], out=splits[1:])
    return Ragged(make([v for part in lists for v in part]), splits)


def make_batch(rows, seed=0, users=60, items=40, start=0):
    """Rows of the mixed stream; every row is drawn from (seed, start)."""
    random = np.random.default_rng([seed, start])
    user, item = random.integers(0, users, rows), random.integers(0, items, rows)
    price = np.where(random.random(rows) < 0.1, np.nan, random.lognormal(2, 1, rows)).astype(np.float32)
    age = np.where(random.random(rows) < 0.1, np.nan, random.normal(40, 12, rows)).astype(np.float32)
    history = [random.integers(0, items, random.choice([0, 1, 2, 5, 6, 30])) for _ in range(rows)]
    tags = [[f"tag {t}" for t in random.integers(0, 12, random.choice([0, 1, 3, 9]))] for _ in range(rows)]
    words = [[f"tag {t}" for t in random.integers(6, 30, random.choice([0, 2]))] for _ in range(rows)]
    columns = {
        "user": spread(user),
        "item": spread(item),
        "city": Strings.of([CITIES[c] for c in random.integers(0, len(CITIES), rows)]),
        "history": ragged(history, lambda flat: spread(np.array(flat, np.int64))),
        "tags": ragged(tags, Strings.of),
        "words": ragged(words, Strings.of),
        "price": price,
        "age": age,
    }
    logit = 2.0 * np.where(user % 2, 1, -1) + 1.5 * np.where(item % 3, 1, -1) - 0.02 * np.nan_to_num(price, nan=10.0)
    label = (random.random(rows) < 1 / (1 + np.exp(-logit))).astype(np.float32)
    return Batch(columns, label, 1_700_000_000.0 + start + np.arange(rows) / 2, start)


class Notes:
    """A reporter that keeps its messages."""

    def __init__(self):
        self.notes, self.begun, self.done = [], [], 0

    def begin(self, what, total):
        self.begun.append((what, total))

    def advance(self, done):
        self.done += done

    def note(self, text):
        self.notes.append(text)


BEGINNING = 584


@functools.lru_cache
def _made(rows, seed, users, items):
    """The stream's first rows: a stream that is a little longer begins with the rows of a shorter one."""
    if rows > 2 * BEGINNING or (users, items) != (60, 40):
        return make_batch(rows, seed, users, items)
    first = make_batch(BEGINNING, seed, users, items)
    if rows <= BEGINNING:
        return first.slice(0, rows)
    return join_batches([first, make_batch(rows - BEGINNING, seed, users, items, start=BEGINNING)])


class MixedSource:
    """The mixed stream, made once and cut as asked; `started` notes where each reading began."""

    schema = Schema(tuple(Field(f.name, f.kind) for f in FEATURES), "label", "time")

    def __init__(self, rows, seed=0, users=60, items=40):
        self._all, self.started = _made(rows, seed, users, items), []

    def count_rows(self):
        return len(self._all)

    def batches(self, rows, start=0):
        check_position(rows, start)
        self.started.append(start)
        for first in range(start, len(self._all), rows):
            yield self._all.slice(first, min(first + rows, len(self._all)))


def odd_batch():
    """Rows as no training stream has them: unseen ids, extreme ids, empty and very long lists, NaN throughout."""
    extreme = np.array([-(2**63), 2**63 - 1, 0, -1, 12345, 1 << 62], np.int64)
    known = spread(np.arange(40))
    columns = {
        "user": extreme,
        "item": np.array([*extreme[:3], *known[:3]], np.int64),
        "city": Strings.of(["nowhere", "", "Oslo", "oslo", "\x00", "東京"]),
        "history": ragged(
            [[], known, extreme, [extreme[0]], known[:6], [5, *known[:2]]], lambda v: np.array(v, np.int64)
        ),
        "tags": ragged(
            [[], ["tag 1"] * 50, ["new", "tag 2"], [""], ["tag 3", "tag 4", "tag 5", "tag 6"], []], Strings.of
        ),
        "words": ragged([[]] * 6, Strings.of),
        "price": np.array([np.nan, 0, -5, 1e30, -1e-30, 7], np.float32),
        "age": np.array([np.nan, np.nan, 0, -1e10, 40, 1e-38], np.float32),
    }
    return Batch(columns, np.zeros(6, np.float32), None, 0)


def snapshot(trainer):
    """Everything that a trainer has learned, as bytes by name."""
    parts = {"steps": trainer.steps}
    for name, table in trainer.tables.items():
        export = table.export()
        parts |= {f"{name}/{part}": getattr(export, part).tobytes() for part in PARTS}
    parts |= {f"dense/{name}": a.tobytes() for name, a in trainer.dense.weights().items()}
    parts |= {f"optimizer/{name}": a.tobytes() for name, a in trainer.dense.state.optimizer().items()}
    return parts


def differing(a, b):
    """Names under which two snapshots differ; [] when they are equal to the bit."""
    return sorted(name for name in a.keys() | b.keys() if a.get(name) != b.get(name))


def exported(trainer):
    """What a version published now would hold: ({table: (keys, rows)}, dense)."""
    exports = {name: table.export() for name, table in trainer.tables.items()}
    return {name: (e.keys, e.rows) for name, e in exports.items()}, trainer.dense.weights()


def served_as_bytes(export):
    """An export of a trainer or of a ServedVersion, as bytes by name."""
    tables, dense = export
    parts = {f"{name}/{part}": a.tobytes() for name, pair in tables.items() for part, a in zip(("keys", "rows"), pair)}
    return parts | {f"dense/{name}": a.tobytes() for name, a in dense.items()}


def pooled_by(processor, columns, model="mixed"):
    """The dense input [n, width] that a session would hand to the network now."""
    replica = processor.predictor.replica(model)
    with replica.pinned(0) as state:
        bound = replica.plan.bind_inputs(columns)
        x = np.full((bound.rows, replica.plan.width), np.nan, np.float32)
        counts = np.zeros((len(replica.manifest.tables), 2), np.int64)
        replica.plan.fill(BatchView(state.tables, state.epoch, [bound], np.array([[0, bound.rows]]), counts), x)
        return x


def untouched(table, since_step):
    """The ids of an EmbeddingVariable that were last trained before a step."""
    held = table.export()
    return held.keys[held.last_step < since_step]
