"""The trainer: pooled embeddings by serving's kernels, the dense network by a compiled TensorFlow step, row updates.

One thread owns it. A step looks up (inserting new ids), runs forward and backward of the dense network once, and
moves only the rows that the batch touched. score() computes what a server at this state would answer: no insertion,
default rows for unseen ids, inference behaviour of the network.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.dense.dense_graph import DenseGraph
from compiler.dense.fusion import fuse
from compiler.frameworks import keras, tf
from models.data.source import Batch
from models.embedding import kernels
from models.embedding.admission import Admission, Always, CountingBloom, ExactCounts
from models.embedding.optimizer import row_optimizer
from models.embedding.variable import EmbeddingVariable, Eviction, Initial
from models.train_config import TableConfig, TrainSettings
from models.zoo.arch import Arch, resolve_arch
from models.zoo.dense_input import DenseInput
from processor.columns import Column
from processor.features.plan import BoundRequest, SparsePlan
from processor.kernels.pool import SOURCE
from processor.package.manifest import COMBINERS, Manifest
from processor.tables.table import descriptors

NO_SPLITS = np.zeros(1, np.int64)


class Trainer:
    """A model in training: tables (EmbeddingVariables by name), the dense network, and how many steps it has taken."""

    def __init__(
        self,
        manifest: Manifest,
        settings: TrainSettings,
        hidden: tuple[int, ...] = (),
        fusion: Mapping[str, str] | None = None,
        tables: Mapping[str, TableConfig] | None = None,
    ) -> None:
        """manifest: the draft (models.training.spec). settings: filled in (models.training.defaults). fusion: further
        outputs as expressions (compiler.dense.fusion). tables: what single tables have for themselves. Raises BadInput
        for an unknown architecture or optimizer."""
        self.manifest, self.settings = manifest, settings
        self.plan = SparsePlan(manifest)
        configs = tables or {}
        self.tables: dict[str, EmbeddingVariable] = {}
        self.rates: dict[str, float] = {}
        self._evictions: dict[str, Eviction] = {}
        for n, t in enumerate(manifest.tables):
            config = configs.get(t.name, TableConfig())
            own = replace(settings, **config.train)
            self.rates[t.name] = own.learning_rate
            self._evictions[t.name] = Eviction(config.evict_after_steps, config.evict_below_norm)
            self.tables[t.name] = EmbeddingVariable(
                t.name,
                t.dim,
                row_optimizer(own.optimizer, own),
                settings.seed * 1_000_003 + n,
                Initial(config.init, config.init_scale),
                _admission(config),
            )
        options: dict[str, Any] = {"seed": settings.seed}
        if hidden:
            options["hidden"] = hidden
        self.arch = Arch.of(resolve_arch(manifest.arch)(DenseInput.from_features(manifest.features), **options))
        self._fusion = fusion or {}
        self.graph = self.dense_graph()
        self.optimizer = keras.optimizers.Adam(settings.dense_learning_rate)
        self.optimizer.build(self.arch.logits.trainable_variables)
        self._step = self._compile_step()
        self._counts = np.zeros((max(1, len(self.tables)), 2), np.int64)
        self.steps = 0

    def learn(self, batch: Batch) -> float:
        """Takes one optimizer step on a batch; returns its mean log-loss before the step."""
        bound = self.plan.bind(batch.columns)
        refs = self._insert(bound)
        x = self.pool(bound)
        loss, grad = self._step(tf.constant(x), tf.constant(batch.label))
        self.steps += 1
        self._backward(bound, refs, grad.numpy())
        return float(loss)

    def score(self, columns: Mapping[str, Column]) -> NDArray[np.float32]:
        """Scores [n] as a server at this state would answer them; changes nothing."""
        x = self.pool(self.plan.bind(columns))
        return self.graph.run(x, self.weights())["score"].reshape(-1)

    def pool(self, bound: BoundRequest) -> NDArray[np.float32]:
        """The dense input [n, width] for bound columns, from the tables as they are."""
        x = np.zeros((bound.rows, self.plan.width), np.float32)
        tables = descriptors([t.descriptor() for t in self.tables.values()])
        self.plan.fill(tables, 0, [bound], np.array([[0, bound.rows]], np.int64), x, self._counts)
        return x

    def dense_graph(self) -> DenseGraph:
        """The dense graph that is published of the network, with its weights as they are."""
        graph = DenseGraph.from_keras(self.arch.scores)
        return fuse(graph, self._fusion, self.manifest.features) if self._fusion else graph

    def weights(self) -> dict[str, NDArray[np.float32]]:
        """The dense tensors by name, as copies."""
        variables = self.arch.scores.variables
        trained = {v.path: np.array(v.numpy(), np.float32) for v in variables if v.path in self.graph.weights}
        return {name: trained.get(name, value.copy()) for name, value in self.graph.weights.items()}

    def optimizer_state(self) -> dict[str, NDArray[Any]]:
        """The dense optimizer's variables by name, as copies."""
        return {f"{i:04d}": np.array(v.numpy()) for i, v in enumerate(self.optimizer.variables)}

    def restore_dense(self, weights: Mapping[str, NDArray[np.float32]], optimizer: Mapping[str, NDArray[Any]]) -> None:
        """Puts back what weights() and optimizer_state() gave."""
        for variable in self.arch.scores.variables:
            if variable.path in weights:
                variable.assign(weights[variable.path])
        for i, variable in enumerate(self.optimizer.variables):
            variable.assign(optimizer[f"{i:04d}"].astype(variable.dtype))
        # The rate is one of the optimizer's variables, but it is the configuration's to say.
        self.optimizer.learning_rate = self.settings.dense_learning_rate

    def evict(self) -> int:
        """Removes the rows that no table keeps any longer; returns how many."""
        return sum(table.evict(self._evictions[name], self.steps) for name, table in self.tables.items())

    def clear(self) -> None:
        """Gives up every row of every table."""
        for table in self.tables.values():
            table.clear()

    def assign_dense(self, weights: Mapping[str, NDArray[np.float32]]) -> None:
        """Takes dense tensors that somebody else made, by name; the optimizer's own state stays."""
        self.restore_dense(weights, self.optimizer_state())

    def begin_with(self, dense: Mapping[str, NDArray[np.float32]]) -> None:
        """Takes dense tensors by name, with an optimizer that begins anew."""
        self.restore_dense(weights=dense, optimizer={n: np.zeros_like(a) for n, a in self.optimizer_state().items()})

    def _insert(self, bound: BoundRequest) -> list[NDArray[np.int64]]:
        """Gives every id of the batch a row; returns the row numbers of each embedding feature's values."""
        refs = []
        for row, f in enumerate(self.manifest.features):
            if not f.table:
                refs.append(NO_SPLITS)
                continue
            given = bound.keep[self.plan.plan[row, SOURCE]]
            values = given.values.reshape(-1)
            if given.splits is None and given.stride > 1:
                values = np.ascontiguousarray(values[f.column :: given.stride])
            refs.append(self.tables[f.table].insert(values))
        return refs

    def _backward(self, bound: BoundRequest, refs: list[NDArray[np.int64]], grad: NDArray[np.float32]) -> None:
        for name, table in self.tables.items():
            features = [(i, f) for i, f in enumerate(self.manifest.features) if f.table == name]
            most = sum(len(refs[i]) for i, _ in features)
            touched, sums = np.empty(most, np.int64), np.empty((most, table.dim), np.float32)
            place, count = table.place, 0
            for i, f in features:
                given = bound.keep[self.plan.plan[i, SOURCE]]
                splits = NO_SPLITS if given.splits is None else given.splits
                part = grad[:, f.offset : f.offset + f.width]
                count = kernels.accumulate(
                    refs[i], splits, COMBINERS[f.combiner], f.max_length, part, place, touched, sums, count
                )
            kernels.forget(place, touched[:count])
            table.update(touched[:count], sums[:count], self.rates[name], self.steps)

    def _compile_step(self) -> Any:
        model, optimizer = self.arch.logits, self.optimizer
        width = self.plan.width
        specs = [tf.TensorSpec((None, width), tf.float32), tf.TensorSpec((None,), tf.float32)]

        def step(x: Any, label: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                logits = tf.reshape(model(x, training=True), (-1,))
                loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(label, logits))
            grads = tape.gradient(loss, [x, *model.trainable_variables])
            optimizer.apply(grads[1:], model.trainable_variables)
            return loss, grads[0]

        return tf.function(step, input_signature=specs, autograph=False)


def _admission(config: TableConfig) -> Admission:
    if config.admit_after == 1:
        return Always()
    if config.admit_by == "counts":
        return ExactCounts(config.admit_after)
    return CountingBloom(config.admit_after, config.admit_ids, config.admit_error)
