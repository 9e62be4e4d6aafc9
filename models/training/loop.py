"""`freshet train`: a whole run, from a configuration to a published version and a stream of deltas.

Two phases. The first learns rows [0, full_rows) for some epochs and publishes the full version; in its last epoch the
held-out tail is scored before it is learned, which gives the run's AUC and log-loss. The second learns the rest in
order and publishes a delta every delta_rows rows or delta_seconds seconds; each chunk is scored before it is learned.

A kill at any moment loses at most the work since the last checkpoint; run again, the same command goes on from there.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from compiler.progress import Reporter
from models.data.open_data import open_source
from models.data.source import Batch, Source
from models.embedding.variable import Changes
from models.train_config import TrainConfig
from models.training.checkpoint import Checkpoints, RunState
from models.training.publication import publish_delta, publish_version
from models.training.quality import Scored
from models.training.spec import draft, measure_scaling
from models.training.trainer import Trainer
from processor.chain.ledger import Ledger
from processor.errors import BadInput
from processor.generation import Generation
from processor.package.delta import Delta, TableDelta
from processor.package.repository import Repository

CHECKPOINT_SECONDS = 30.0


class Quiet:
    """A reporter that says nothing."""

    def begin(self, what: str, total: int | None) -> None: ...
    def advance(self, done: int) -> None: ...
    def note(self, text: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Summary:
    """A run's quality. held_out: of the full version's tail; streamed: of the chunks before they were learned."""

    generation: Generation
    rows: int
    held_out: Scored
    streamed: Scored


class TrainingRun:
    """One training run over one source; resumes by itself from its checkpoints."""

    def __init__(
        self,
        config: TrainConfig,
        source: Source | None = None,
        checkpoints: Path | None = None,
        reporter: Reporter | None = None,
        unix_s: Callable[[], float] = time.time,
    ) -> None:
        """checkpoints: their folder (default: .checkpoints/<model> in the repository). Raises BadInput."""
        self.config = config
        self.repository = Path(config.publish.repository)
        self.repository.mkdir(parents=True, exist_ok=True)
        for unfinished in (self.repository / config.model.name).glob(".*.tmp"):
            shutil.rmtree(unfinished)
        self.source = source or open_source(config.data, config.features)
        self._report = reporter or Quiet()
        self._unix_s = unix_s
        self._checkpoints = Checkpoints(checkpoints or self.repository / ".checkpoints" / config.model.name)
        fingerprint = _fingerprint(config)
        scaling = self._checkpoints.read_scaling() or measure_scaling(self.source, config.features)
        self.trainer = Trainer(draft(config, scaling), config.train, config.model.hidden, config.fusion)
        self.state = RunState(fingerprint, scaling)
        self.held_out, self.streamed = Scored(), Scored()
        restored = self._checkpoints.restore(self.trainer, fingerprint)
        self._last_dense = self.trainer.weights()
        if restored is not None:
            self.state = restored.state
            here = Generation(self.state.version, self.state.step)
            self._report.note(f"resumed at row {self.state.position}, generation {here}")
            self._republish(restored.changes)

    def full(self) -> Generation:
        """Phase one: learns the full rows and publishes the version; does nothing when that is done."""
        if self.state.version:
            return Generation(self.state.version, self.state.step)
        stop = self.config.publish.full_rows or self._all_rows()
        held_out_from = stop - round(stop * self.config.train.holdout)
        settings = self.config.train
        while self.state.epoch < settings.epochs:
            last = self.state.epoch == settings.epochs - 1
            until = stop if last else held_out_from
            name = (
                "training" if settings.epochs == 1 else f"training, epoch {self.state.epoch + 1} of {settings.epochs}"
            )
            self._report.begin(name, until)
            self._report.advance(self.state.position)
            self._learn(min(until, held_out_from))
            if last:
                self._learn(until, self.held_out)
            self.state.epoch += 1
            if not last:
                self.state.position = 0
        if self.state.position == 0:
            raise BadInput("data: at least one row wanted, got none")
        versions = Repository(self.repository).versions(self.config.model.name)
        self.state.version = max(versions, default=0) + 1
        self.state.finished_at = self._unix_s()
        self._checkpoints.save_full(self.trainer, self.state)
        for table in self.trainer.tables.values():
            table.clear_changed()
        self._publish_version()
        return Generation(self.state.version, 0)

    def stream(
        self, before: Callable[[Batch], None] | None = None, stop_row: int | None = None
    ) -> Iterator[Generation]:
        """Phase two: yields the generation of each delta once it is published.

        before(batch) is called with each piece before it is learned. stop_row: where to end; default: with the data.
        """
        publish = self.config.publish
        if not (publish.delta_rows or publish.delta_seconds):
            return
        chunk_rows = publish.delta_rows or self.config.train.batch_rows
        total = self.source.count_rows()
        self._report.begin("streaming", None if total is None else total - self.state.position)
        changed_s, pending = time.monotonic(), False
        for chunk in self.source.batches(chunk_rows, self.state.position):
            if stop_row is not None and chunk.start >= stop_row:
                break
            for batch in _pieces(chunk, self.config.train.batch_rows):
                if before is not None:
                    before(batch)
                self.streamed.add(batch.label, self.trainer.score(batch.columns))
                self._learn_batch(batch)
            pending = True
            due = publish.delta_seconds and time.monotonic() - changed_s >= publish.delta_seconds
            if len(chunk) == publish.delta_rows or due:
                yield self._publish_delta()
                changed_s, pending = time.monotonic(), False
        if pending:
            yield self._publish_delta()

    def run(self) -> Summary:
        """Runs both phases."""
        generation = self.full()
        if len(self.held_out):
            self._report.note(_metrics("held out", self.held_out))
        for generation in self.stream():  # noqa: B007
            pass
        if len(self.streamed):
            self._report.note(_metrics("streamed, scored before learned", self.streamed))
        return Summary(generation, self.state.position, self.held_out, self.streamed)

    def _learn(self, until: int, scored: Scored | None = None) -> None:
        """Learns on to row `until`; with `scored`, scores each batch first."""
        saved_s = time.monotonic()
        for batch in self.source.batches(self.config.train.batch_rows, self.state.position):
            if batch.start >= until:
                return
            batch = batch.slice(0, min(len(batch), until - batch.start))
            if scored is not None:
                scored.add(batch.label, self.trainer.score(batch.columns))
            self._learn_batch(batch)
            if time.monotonic() - saved_s >= CHECKPOINT_SECONDS:
                self._checkpoints.save(self.trainer, self.state)
                self._checkpoints.compact(self.trainer, self.state)
                saved_s = time.monotonic()

    def _learn_batch(self, batch: Batch) -> None:
        self.trainer.learn(batch)
        state = self.state
        state.position = batch.end
        state.events += len(batch)
        if batch.time is not None:
            first, last = float(batch.time[0]), float(batch.time[-1])
            state.event_time = (min(state.event_time[0], first) if state.event_time else first, last)
        self._report.advance(len(batch))

    def _all_rows(self) -> int:
        total = self.source.count_rows()
        if total is None:
            raise BadInput("publish.full_rows: a number wanted, because this stream never ends")
        return total

    def _publish_version(self) -> None:
        state = self.state
        exports = {name: table.export() for name, table in self.trainer.tables.items()}
        graph = self.trainer.dense_graph()
        draft = replace(
            self.trainer.manifest,
            version=state.version,
            created_at=state.finished_at,
            event_time=list(state.event_time or ()),
        )
        self._report.begin("compiling", 5)
        publish_version(
            self.repository,
            draft,
            {name: (e.keys, e.rows) for name, e in exports.items()},
            graph,
            progress=lambda done, total: self._report.advance(1),
            counts={name: e.counts for name, e in exports.items()},
        )
        state.event_time, state.events = None, 0
        self._last_dense = self.trainer.weights()
        self._report.note(f"published {self.config.model.name} {Generation(state.version, 0)}")

    def _publish_delta(self) -> Generation:
        state = self.state
        state.step += 1
        state.finished_at = self._unix_s()
        changes = self._checkpoints.save(self.trainer, state)
        publish_delta(self.repository, self._delta(changes))
        self._checkpoints.compact(self.trainer, state)
        state.event_time, state.events = None, 0
        return Generation(state.version, state.step)

    def _delta(self, changes: dict[str, Changes]) -> Delta:
        state, dense = self.state, self.trainer.weights()
        changed = {n: a for n, a in dense.items() if not np.array_equal(a, self._last_dense[n])}
        self._last_dense = dense
        return Delta(
            model=self.config.model.name,
            version=state.version,
            step=state.step,
            parent_step=state.step - 1,
            tables={
                name: TableDelta(c.keys, c.rows, c.removed)
                for name, c in changes.items()
                if len(c.keys) or len(c.removed)
            },
            dense=changed,
            published_at=state.finished_at,
            event_time=state.event_time,
            events=state.events,
        )

    def _republish(self, changes: dict[str, Changes] | None) -> None:
        """Publishes what the newest checkpoint was saved for, where a kill came between the two."""
        state, name = self.state, self.config.model.name
        if not state.version:
            return
        published = Repository(self.repository)
        if state.step == 0:
            if state.version not in published.versions(name):
                self._publish_version()
            else:
                state.event_time, state.events = None, 0
            return
        ledger = Ledger.of(published.version(name, state.version))
        if changes is not None and ledger.history.known(state.step) is None:
            # What the delta before it held is not known any more: all dense tensors go.
            self._last_dense = {n: np.full_like(a, np.nan) for n, a in self._last_dense.items()}
            publish_delta(self.repository, self._delta(changes))
        state.event_time, state.events = None, 0


def _pieces(chunk: Batch, rows: int) -> Iterator[Batch]:
    for first in range(0, len(chunk), rows):
        yield chunk.slice(first, min(first + rows, len(chunk)))


def _metrics(what: str, scored: Scored) -> str:
    return f"{what}: AUC {scored.auc():.4f}, log-loss {scored.log_loss():.4f} over {len(scored)} rows"


def _fingerprint(config: TrainConfig) -> str:
    """Of whatever decides the shape of tables and network."""
    features = [replace(f, side="context", dtype="") for f in config.features]
    parts = [asdict(config.model), [asdict(f) for f in features], config.train.optimizer, config.train.seed]
    if config.fusion:
        parts.append(dict(config.fusion))
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
