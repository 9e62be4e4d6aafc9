"""Publish what Keras' `fit` changes, as a callback.

    model.fit(data, callbacks=[Publisher("repository", "ctr").keras()])

The model is the one that was imported, or one that is built in the same way (models.publishing.keras_mapping). Touched
ids are collected from the gradients, inside the compiled train step, if these are sparse and the optimizer moves only
touched rows: SGD without momentum, Adagrad, both without decay. For any other optimizer, and for variables with dense
gradients (regularised, or used other than by lookup), all rows are compared with a copy of the published state.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from freshet_serving.models.publishing.keras_mapping import map_variables
from freshet_serving.models.publishing.model_tracker import (
    EVERY_S,
    MODEL,
    ModelTracker,
    PublishInterval,
    SupportsPublish,
    TrackedTable,
)
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.package import TableEntry
from freshet_serving.processor.repository import Float32s, Int64s, bits

LOG = logging.getLogger("freshet")
TOUCHED_ALONE = {"SGD": ("momentum",), "Adagrad": ()}
NEVER = ("weight_decay", "use_ema", "gradient_accumulation_steps")


class KerasCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Callback that publishes a model's weights as `fit` changes them; may be used by several fits in sequence."""

    def __init__(
        self,
        publisher: SupportsPublish,
        every_s: float = EVERY_S,
        every_batches: int | None = None,
        keys: Mapping[str, Any] | None = None,
        begin: str = MODEL,
        compare: bool = False,
    ) -> None:
        """Configure the callback.

        Args:
            every_s: Seconds between publications.
            every_batches: Batches between publications; replaces every_s.
            keys: By layer (or table), the key of each row, None for a row without one; needed only if it cannot be
                derived from the model.
            begin: "model" publishes the model's weights at the beginning; "served" loads the served weights into the
                model.
            compare: Ignore gradients and compare all rows, for programs that change weights outside the train step.
        """
        super().__init__()
        self._publisher, self._begin, self._compare = publisher, begin, compare
        self._keys, self._interval = keys or {}, PublishInterval(every_s, every_batches)
        self._tracker: ModelTracker | None = None
        self._of: Any = None
        self._sides: list[_KerasMatrix] = []
        self._unknown: list[tuple[TableEntry, int, Any]] = []
        self._early: list[tuple[str, Any]] = []
        self._optimizer: Any = None
        self._batch = -1

    @property
    def generation(self) -> Generation:
        """Generation that the model is based on.

        Save it with the model's weights, and pass it to Publisher(generation=...) when they are loaded.
        """
        return self._publisher.generation

    def publish(self, event_time: tuple[float, float] | None = None, events: int = 0) -> Generation:
        """Publish all changes now. Raises as Publisher.publish().

        Args:
            event_time: Times of the first and the last event, Unix seconds.

        Returns:
            The generation that the model is based on afterwards.
        """
        generation = self._open().publish(event_time, events)
        self._warn_of_unknown()
        return generation

    def remove(self, table: str, keys: Any) -> None:
        """Remove rows from the served table with the next publication, until restore().

        Removals are not saved with the weights: repeat them after a restart, before fit().

        Args:
            keys: Keys of the rows.
        """
        if self._tracker is None:
            self._early.append((table, keys))
        else:
            self._tracker.remove(table, keys)

    def restore(self, table: str, keys: Any) -> None:
        """Serve rows again that remove() took out.

        Args:
            keys: Keys of the rows.
        """
        self._open().restore(table, keys)

    # Called by Keras.

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        if self._tracker is None or self._of is not model:
            self._track(model)
        optimizer = getattr(model, "optimizer", None)
        if optimizer is not None and optimizer is not self._optimizer:
            self._optimizer = optimizer
            collects = not self._compare and _tells(model, optimizer)
            for side in self._sides:
                side.optimizer = optimizer if collects else None
            if collects and self._sides:
                _collect(optimizer, self._sides)
                # A train function compiled before does not collect, so have it compiled again.
                model.train_function = None

    def on_train_begin(self, logs: Any = None) -> None:
        self._open().open()
        self._batch = -1

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._batch = -1

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        # If one execution runs several steps, Keras reports only the last one.
        batches, self._batch = max(1, batch - self._batch), batch
        self._open().tick(batches)

    def on_train_end(self, logs: Any = None) -> None:
        self.publish()

    def _open(self) -> ModelTracker:
        if self._tracker is None:
            raise BadInput("callback: call fit() with this callback first")
        return self._tracker

    def _track(self, model: Any) -> None:
        fit = map_variables(model, self._publisher.manifest, self._keys, self._publisher.published_keys)
        weights = self._publisher.manifest.stage_weights
        self._sides = [
            _KerasStageWeight(variable, entry.dim) if entry.name in weights else _KerasMatrix(variable)
            for entry, _, variable in fit.tables
        ]
        self._unknown = [(entry, keys.unknown, v) for entry, keys, v in fit.tables if keys.unknown >= 0]
        self._tracker, self._of = None, model
        self._tracker = ModelTracker(
            self._publisher,
            [
                TrackedTable(entry, keys.keys, keys.rows, side)
                for (entry, keys, _), side in zip(fit.tables, self._sides)
            ],
            {name: _KerasWeight(variable) for name, variable in fit.dense.items()},
            self._interval,
            self._begin,
            {name: _KerasWeight(variable) for name, variable in fit.left_out.items()},
        )
        for table, removed in self._early:
            self._tracker.remove(table, removed)
        self._early = []

    def _warn_of_unknown(self) -> None:
        """Warn once if the row of unknown keys moved: it is the table's default row, which deltas lack."""
        for entry, row, variable in self._unknown:
            value = _KerasMatrix(variable).read(np.array([row]))
            if (bits(value) != bits(np.array([entry.default or [0.0] * entry.dim], np.float32))).any():
                LOG.warning(
                    "table %r: the row of keys outside the vocabulary changed; the imported row is served until the "
                    "model is imported again",
                    entry.name,
                )
                self._unknown = [row_of for row_of in self._unknown if row_of[0] is not entry]
                return


class _KerasMatrix:
    """An embedding matrix, and a record of its rows that had a gradient."""

    def __init__(self, variable: Any) -> None:
        self.variable = variable
        self.optimizer: Any = None
        self.mask: Any = None

    def collect(self, gradient: Any) -> None:
        """Record the rows of a gradient; runs inside the train step."""
        import tensorflow as tf

        if gradient is None or self.optimizer is None:
            return
        if not isinstance(gradient, tf.IndexedSlices):
            self.optimizer = None
            return
        if self.mask is None:
            with tf.init_scope():
                self.mask = tf.Variable(tf.zeros([int(self.variable.shape[0])], tf.bool), trainable=False)
        indices = tf.reshape(gradient.indices, [-1])
        self.mask.scatter_update(tf.IndexedSlices(tf.ones_like(indices, tf.bool), indices))

    def touched(self) -> Int64s | None:
        if self.optimizer is None or not _touched_alone(self.optimizer):
            return None
        if self.mask is None:
            return np.empty(0, np.int64)
        rows = np.flatnonzero(self.mask.numpy())
        self.mask.assign(np.zeros(self.mask.shape, np.bool_))
        return rows

    def read(self, rows: Int64s) -> Float32s:
        return np.asarray(keras.ops.convert_to_numpy(keras.ops.take(self.variable, rows, axis=0)), np.float32)

    def write(self, rows: Int64s, values: Float32s) -> None:
        values = values.astype(self.variable.dtype)
        self.variable.assign(keras.ops.scatter_update(self.variable, rows[:, None], values))


class _KerasStageWeight(_KerasMatrix):
    """A variable of any shape that the package has as rows of its last dimension."""

    def __init__(self, variable: Any, dim: int) -> None:
        super().__init__(variable)
        self._dim = dim

    def read(self, rows: Int64s) -> Float32s:
        return np.asarray(keras.ops.convert_to_numpy(self.variable), np.float32).reshape(-1, self._dim)[rows]

    def write(self, rows: Int64s, values: Float32s) -> None:
        whole = self.read(np.arange(math.prod(self.variable.shape) // self._dim)).copy()
        whole[rows] = values
        self.variable.assign(whole.reshape(self.variable.shape).astype(self.variable.dtype))


class _KerasWeight:
    def __init__(self, variable: Any) -> None:
        self._variable = variable

    def read(self) -> Float32s:
        return np.array(keras.ops.convert_to_numpy(keras.ops.convert_to_tensor(self._variable)), np.float32)

    def write(self, value: Float32s) -> None:
        self._variable.assign(value.astype(self._variable.dtype))


def _tells(model: Any, optimizer: Any) -> bool:
    """Return True if gradients pass through the optimizer as this module assumes."""
    return (
        keras.backend.backend() == "tensorflow"
        and type(model).train_step is keras.Model.train_step
        and type(model.distribute_strategy).__name__ == "_DefaultDistributionStrategy"
        and _touched_alone(optimizer)
    )


def _touched_alone(optimizer: Any) -> bool:
    """Return True if an optimizer leaves rows without a gradient unchanged."""
    options = TOUCHED_ALONE.get(type(optimizer).__name__) if type(optimizer).__module__.startswith("keras.") else None
    return options is not None and not any(getattr(optimizer, option, None) for option in (*options, *NEVER))


def _collect(optimizer: Any, sides: list[_KerasMatrix]) -> None:
    """Wrap an optimizer so that it reports the gradients that it applies."""
    real = optimizer.apply

    def apply(grads: Any, trainable_variables: Any = None) -> Any:
        grads = list(grads)
        variables = optimizer._trainable_variables if trainable_variables is None else list(trainable_variables)
        for gradient, variable in zip(grads, variables):
            for side in sides:
                if side.variable is variable:
                    side.collect(gradient if variable.constraint is None else variable)
        return real(grads, variables if trainable_variables is not None else None)

    optimizer.apply = apply
