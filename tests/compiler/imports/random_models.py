"""Small random TensorFlow models: ids and strings of every rank, free lengths, branches, loops and called functions."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from freshet_serving.compiler.frameworks import tf
from tests.compiler.imports.foreign import saved, variable

ITEMS, PLACES, DIM, LENGTH = 20, 16, 4, 3
WORDS = [f"w{i}" for i in range(9)]
IDS = {"single": [None], "column": [None, 1], "fixed": [None, LENGTH], "free": [None, None]}


class Parts:
    """What parts read: variables, a table of words, and the ids or words as [rows, length]."""

    def __init__(self, module: Any, ids: Any) -> None:
        self.module, self.ids = module, ids
        self.rows, self.length = tf.shape(ids)[0], tf.shape(ids)[1]
        self.known = tf.not_equal(ids, 0)


def _positions(parts: Parts, x: Any) -> Any:
    return x + tf.gather(parts.module.places, tf.range(parts.length)[None])


def _positions_of_each_row(parts: Parts, x: Any) -> Any:
    return x + tf.gather(parts.module.places, tf.tile(tf.range(parts.length)[None], [parts.rows, 1]))


def _places_that_count(parts: Parts, x: Any) -> Any:
    return x + tf.gather(parts.module.places, tf.cumsum(tf.cast(parts.known, tf.int32), axis=1))


def _masked(parts: Parts, x: Any) -> Any:
    return tf.where(parts.known[:, :, None], x, 0.0)


def _attention(parts: Parts, x: Any) -> Any:
    scores = tf.matmul(x, x, transpose_b=True) - 1e3 * tf.cast(~parts.known, tf.float32)[:, None]
    return tf.matmul(tf.nn.softmax(scores), x)


def _constant_branch(parts: Parts, x: Any) -> Any:
    return tf.cond(tf.constant(3) > tf.size(parts.module.places), lambda: -x, lambda: x * 0.5)


def _branch_of_a_mask(parts: Parts, x: Any) -> Any:
    """A mask that depends on the number of rows alone, made in a branch."""
    ones = tf.ones(tf.shape(x), tf.bool)
    mask = tf.cond(tf.constant(-1) >= 0, lambda: ones, lambda: tf.linalg.band_part(ones, -1, 0))
    return x * tf.cast(mask, tf.float32)


def _branch_of_a_length(parts: Parts, x: Any) -> Any:
    return tf.cond(parts.length > 2, lambda: x * 0.5, lambda: -x)


def _branch_of_values(parts: Parts, x: Any) -> Any:
    return tf.cond(tf.reduce_any(parts.known), lambda: x * 1.0, lambda: x + 0.0)


def _loop(parts: Parts, x: Any) -> Any:
    return tf.while_loop(lambda i, _: i < 2, lambda i, y: (i + 1, y * 0.5), [0, x])[1]


def _switch(parts: Parts, x: Any) -> Any:
    return tf.switch_case(tf.rank(x) - 2, [lambda: x, lambda: x * 0.5])


def _mapped(parts: Parts, x: Any) -> Any:
    return tf.map_fn(lambda row: row * 2.0, x)


def _called(parts: Parts, x: Any) -> Any:
    return tf.function(lambda y: tf.nn.relu(y) + 0.1, autograph=False)(x)


def _counted(parts: Parts, x: Any) -> Any:
    return x * tf.cast(tf.reduce_sum(tf.cast(parts.known, tf.int32), axis=1), tf.float32)[:, None, None]


def _sorted(parts: Parts, x: Any) -> Any:
    return tf.sort(x, axis=1)


def _flat_and_back(parts: Parts, x: Any) -> Any:
    return tf.reshape(tf.reshape(x, [-1, DIM]) @ parts.module.layer, [-1, parts.length, DIM])


def _ragged(parts: Parts, x: Any) -> Any:
    return tf.ragged.map_flat_values(tf.nn.relu, tf.RaggedTensor.from_tensor(x)).to_tensor()


INNER = {part.__name__: part for part in (
    _positions, _positions_of_each_row, _places_that_count, _masked, _attention, _constant_branch, _branch_of_a_mask,
    _branch_of_a_length, _branch_of_values, _loop, _switch, _mapped, _called, _counted, _sorted, _flat_and_back,
    _ragged,
)}  # fmt: skip
POOLS = {
    "sum": lambda parts, x: tf.reduce_sum(x, 1),
    "mean": lambda parts, x: tf.reduce_mean(x, axis=1),
    "max": lambda parts, x: tf.reduce_max(x, [1]),
    "last": lambda parts, x: x[:, -1],
    "known": lambda parts, x: tf.math.divide_no_nan(
        tf.reduce_sum(x * tf.cast(parts.known, tf.float32)[:, :, None], 1),
        tf.reduce_sum(tf.cast(parts.known, tf.float32), 1, keepdims=True),
    ),
    "segments": lambda parts, x: tf.math.segment_sum(
        tf.reshape(x, [-1, DIM]), tf.repeat(tf.range(parts.rows), tf.repeat(parts.length, parts.rows))
    ),
}
SIDES = {
    "none": lambda parts: None,
    "multi hot": lambda parts: tf.math.bincount(
        tf.cast(parts.ids, tf.int32), minlength=ITEMS, maxlength=ITEMS, axis=-1, binary_output=True, dtype=tf.float32
    ),
    "counts": lambda parts: tf.math.bincount(
        tf.cast(parts.ids, tf.int32), minlength=ITEMS, maxlength=ITEMS, axis=-1, dtype=tf.float32
    ),
    "one hot": lambda parts: tf.reduce_max(tf.one_hot(parts.ids, ITEMS), 1),
    "first": lambda parts: tf.reshape(tf.cast(parts.ids[:, 0], tf.float32), [-1, 1]),
    "how many": lambda parts: tf.reduce_sum(tf.cast(parts.known, tf.float32), 1, keepdims=True),
}


class Model(tf.Module):
    """A model of some parts."""

    def __init__(self, drawn: Any) -> None:
        self.items, self.places = variable(1, ITEMS, DIM, name="items"), variable(2, PLACES, DIM, name="places")
        self.layer, self.head = variable(3, DIM, DIM, name="layer"), variable(4, DIM, 1, name="head")
        self.wide = variable(5, ITEMS, 1, name="wide")
        keys = tf.lookup.KeyValueTensorInitializer(WORDS, tf.range(1, 10, dtype=tf.int64))
        self.table = tf.lookup.StaticHashTable(keys, 0)
        spec = tf.TensorSpec(IDS[drawn.ids], tf.string if drawn.words else drawn.dtype, name="ids")

        def score(ids: Any) -> dict[str, Any]:
            ids = self.table.lookup(ids) if drawn.words else ids
            parts = Parts(self, ids[:, None] if drawn.ids == "single" else ids)
            x = tf.gather(self.items, parts.ids)
            for name in drawn.inner:
                x = INNER[name](parts, x)
            result = POOLS[drawn.pool](parts, x) @ self.head
            side = SIDES[drawn.side](parts)
            if side is not None:
                result += side @ self.wide[: side.shape[1]]
            return {"score": result if drawn.column else tf.squeeze(result, 1)}

        self.score = tf.function(score, input_signature=[spec], autograph=False)


@dataclass(frozen=True)
class RandomModel:
    """The parts of a model.

    Attributes:
        ids: Shape of the ids.
        words: Whether they are strings.
        dtype: Their type otherwise.
        inner: Parts between the lookup and the pooling.
        pool: The pooling.
        side: A part that reads the ids by itself.
        column: Whether the score has a dimension for its only column.
    """

    ids: str
    words: bool
    dtype: Any
    inner: tuple[str, ...]
    pool: str
    side: str
    column: bool = field(default=True)

    @classmethod
    def drawn(cls, random: np.random.Generator) -> "RandomModel":
        """Return one of the many models."""
        inner = random.choice(list(INNER), int(random.integers(0, 4)), replace=False)
        return cls(
            str(random.choice(list(IDS))),
            bool(random.random() < 0.3),
            tf.int64 if random.random() < 0.7 else tf.int32,
            tuple(map(str, inner)),
            str(random.choice(list(POOLS))),
            str(random.choice(list(SIDES))),
            bool(random.integers(2)),
        )

    def write(self, folder: Any) -> tuple[Any, Model]:
        """Write it as a SavedModel; return the folder and the model."""
        module = Model(self)
        return saved(module, folder, module.score), module

    def requests(self, random: np.random.Generator) -> Any:
        """Yield values of the ids, as the model takes them."""
        for rows, length in ((1, 3), (4, 6), (7, 1)):
            shape = {"single": (rows,), "column": (rows, 1), "fixed": (rows, LENGTH), "free": (rows, length)}[self.ids]
            if self.words:
                yield random.choice([*WORDS, "unknown"], shape).astype(object)
            else:
                drawn = random.integers(0, ITEMS, shape)
                drawn[0] = 0
                yield drawn
