"""The trainer: pooled embeddings by serving's kernels, the dense network by a compiled TensorFlow step, row updates.

One thread owns it. A step looks up (inserting new ids), runs forward and backward of the dense network once, and
moves only the rows that the batch touched. score() computes what a server at this state would answer: no insertion,
default rows for unseen ids, inference behaviour of the network.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from models.config.table_sections import TableConfig
from models.config.train_section import TrainSettings
from models.data.source import Batch
from models.embedding import kernels
from models.embedding.admission import Admission, Always, CountingBloom, ExactCounts
from models.embedding.optimizer import row_optimizer
from models.embedding.variable import EmbeddingVariable, Eviction, Initial
from models.training.defaults import of_table
from models.training.dense_step import DenseStep
from processor.columns import Column
from processor.features.plan import BoundRequest, SparsePlan
from processor.kernels.pool import CODES, MAX_LENGTH, SOURCE
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
            own = of_table(settings, config.train)
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
        self.dense = DenseStep(manifest, settings, hidden, fusion)
        self._counts = np.zeros((max(1, len(self.tables)), 2), np.int64)
        self.steps = 0

    def learn(self, batch: Batch) -> float:
        """Takes one optimizer step on a batch; returns its mean log-loss before the step."""
        bound = self.plan.bind(batch.columns)
        refs = self._insert(bound)
        loss, grad = self.dense(self.pool(bound), batch.label)
        self.steps += 1
        self._backward(bound, refs, grad)
        return loss

    def score(self, columns: Mapping[str, Column]) -> NDArray[np.float32]:
        """Scores [n] as a server at this state would answer them; changes nothing."""
        x = self.pool(self.plan.bind(columns))
        return self.dense.graph.run(x, self.dense.weights())["score"].reshape(-1)

    def pool(self, bound: BoundRequest) -> NDArray[np.float32]:
        """The dense input [n, width] for bound columns, from the tables as they are."""
        x = np.zeros((bound.rows, self.plan.width), np.float32)
        tables = descriptors([t.descriptor() for t in self.tables.values()])
        self.plan.fill(tables, 0, [bound], np.array([[0, bound.rows]], np.int64), x, self._counts)
        return x

    def evict(self) -> int:
        """Removes the rows that no table keeps any longer; returns how many."""
        return sum(table.evict(self._evictions[name], self.steps) for name, table in self.tables.items())

    def clear(self) -> None:
        """Gives up every row of every table."""
        for table in self.tables.values():
            table.clear()

    def _insert(self, bound: BoundRequest) -> list[NDArray[np.int64]]:
        """Gives the ids of the batch that are admitted a row; returns the row numbers of each embedding feature's
        values, negative for the others."""
        refs, ids = [], []
        for row, f in enumerate(self.manifest.features):
            if not f.table:
                refs.append(NO_SPLITS)
                ids.append(NO_SPLITS)
                continue
            given = bound.keep[self.plan.plan[row, SOURCE]]
            values = given.values.reshape(-1)
            if given.splits is None and given.stride > 1:
                values = np.ascontiguousarray(values[f.column :: given.stride])
            refs.append(self.tables[f.table].insert(values))
            ids.append(values)
        for i, f in enumerate(self.manifest.features):
            # An id that another feature of its table was admitted by has its row for this one too.
            if f.table and (refs[i] < 0).any():
                refs[i] = self.tables[f.table].find(ids[i])
        return refs

    def _backward(self, bound: BoundRequest, refs: list[NDArray[np.int64]], grad: NDArray[np.float32]) -> None:
        for name, table in self.tables.items():
            features = [(i, f) for i, f in enumerate(self.manifest.features) if f.table == name]
            most = sum(len(refs[i]) for i, _ in features)
            touched, sums = np.empty(most, np.int64), np.empty((most, table.dim), np.float32)
            met, place, count = np.empty(most, np.int64), table.place, 0
            for i, f in features:
                given = bound.keep[self.plan.plan[i, SOURCE]]
                splits = NO_SPLITS if given.splits is None else given.splits
                part = grad[:, f.offset : f.offset + f.width]
                most, codes = self.plan.plan[i, [MAX_LENGTH, CODES]].tolist()
                count = kernels.accumulate(
                    refs[i], splits, COMBINERS[f.combiner], most, codes, part, place, touched, sums, met, count
                )
            kernels.forget(place, touched[:count])
            table.update(touched[:count], sums[:count], met[:count], self.rates[name], self.steps)


def _admission(config: TableConfig) -> Admission:
    if config.admit_after == 1:
        return Always()
    if config.admit_by == "counts":
        return ExactCounts(config.admit_after)
    return CountingBloom(config.admit_after, config.admit_ids, config.admit_error)
