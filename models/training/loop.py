"""`freshet train`: a whole run, from a configuration to a published version and a stream of deltas.

Two phases. The first learns rows [0, full_rows) for some epochs and publishes the full version; in its last epoch the
held-out tail is scored before it is learned, which gives the run's AUC and log-loss; with early stopping it is scored
after each epoch too (models.training.early_stopping). The second learns the rest in
order and publishes a delta every delta_rows rows or delta_seconds seconds; each chunk is scored before it is learned.

A kill at any moment loses at most the work since the last checkpoint; run again, the same command goes on from there.
What others do to the version's chain meanwhile is models.training.lineage's to follow.

A second version begins with the weights that are there, or with new ones. Beside the fresh model a sample of the
batches is scored by the version as it was published.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from compiler.building.calibrate import Labelled, Tolerance
from compiler.building.packaging import Lower
from compiler.progress import Quiet, Reporter
from models.config.train_config import Beginning, TrainConfig
from models.data.formats import label_names
from models.data.open_data import open_source
from models.data.shuffled import shuffled
from models.data.source import Batch, Source
from models.evaluation.assessment import Assessment
from models.evaluation.extra_columns import ExtraColumns
from models.evaluation.quality import Scored, next_step
from models.pipeline.ahead import Ahead
from models.pipeline.step_profile import Spent, overlap
from models.runs.run_journal import RunJournal
from models.runs.stage_bars import stage_lines
from models.training.analysed import write_analysis
from models.training.as_published import AsPublished
from models.training.checkpoint import Checkpoints, RunState, clear_changed
from models.training.defaults import CHOSEN, kept
from models.training.early_stopping import EarlyStopping
from models.training.fingerprint import fingerprint, settings
from models.training.lineage import Lineage, rebuild
from models.training.publication import publish_version
from models.training.spec import draft, measure_log_odds
from models.training.stretches import Stretches
from models.training.trainer import BoundBatch, Trainer
from models.training.whole_config import begun, continued, scaling_of
from processor.chain.contents import Contents
from processor.chain.ledger import Ledger
from processor.cores import available
from processor.errors import BadInput
from processor.generation import Generation
from processor.package.repository import Repository
from processor.package.version import VersionReader

CHECKPOINT_SECONDS = 30.0
PRACTICE_ROWS, PRACTICE_NBYTES = 1 << 16, 64 << 20
"""The last rows that were learned, to check a lower precision by: at most so many, and so many bytes of dense input."""
SAMPLED_BATCHES, SAMPLED_SHARE = 200, 5
"""So many batches are scored by the version as published too; of a stream without an end one in so many."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A run's quality. held_out: of the full version's tail; streamed: of the chunks before they were learned. report:
    of the run, where there is one. spent: by stage of a step."""

    generation: Generation
    rows: int
    held_out: Scored
    streamed: Scored
    report: Path | None = None
    spent: dict[str, Spent] = field(default_factory=dict)


class TrainingRun:
    """One training run over one source; resumes by itself from its checkpoints."""

    def __init__(
        self,
        config: TrainConfig,
        source: Source | None = None,
        checkpoints: Path | None = None,
        reporter: Reporter | None = None,
        unix_s: Callable[[], float] = time.time,
        beginning: Beginning | None = None,
    ) -> None:
        """checkpoints: their folder (default: .checkpoints/<model> in the repository). Raises BadInput, in one line
        that names what has changed where the configuration cannot continue what is there."""
        self.config, self._begun = config, beginning or Beginning()
        self._named = [f"train.{key}" for key in CHOSEN if getattr(config.train, key)]
        self.repository = Path(config.publish.repository)
        self.repository.mkdir(parents=True, exist_ok=True)
        for unfinished in (self.repository / config.model.name).glob(".*.tmp"):
            shutil.rmtree(unfinished)
        self.source = source or open_source(config.data, config.features)
        self._report = reporter or Quiet()
        self._unix_s = unix_s
        self._checkpoints = Checkpoints(checkpoints or self.repository / ".checkpoints" / config.model.name)
        saved = None if self._begun.from_scratch else self._checkpoints.newest()
        old = (
            self._newest_contents() if self._begun.new_version and not self._begun.from_scratch and not saved else None
        )
        folder, version, rows = self._checkpoints.folder, old.base.manifest if old else None, self._known_rows()
        if saved is not None:
            inside = folder.is_relative_to(self.repository)
            where = folder.relative_to(self.repository).as_posix() if inside else folder.name
            self.config = config = continued(config, saved, rows, where)
        else:
            self.config = config = begun(config, self.source, version, rows, self._report.note)
        scaling = saved.scaling if saved else scaling_of(config, self.source, version)
        drafted = draft(config, scaling)
        self.trainer = Trainer(drafted, config.train, config.network, config.fusion, config.tables, folder)
        self.state = RunState(fingerprint(config), scaling, settings=settings(config), train=kept(config.train))
        self.streamed = Scored()
        measured = config.evaluate
        self.assessment = Assessment(label_names(config.data), measured.by, measured.group)
        extra = [*measured.by, *([measured.group] if measured.group else [])]
        self._extra = ExtraColumns(extra, self.source, config.data, config.train.batch_rows)
        self._stopping = EarlyStopping(config.train, self.trainer, self._checkpoints)
        self.journal = RunJournal(
            self.repository / ".runs" / config.model.name,
            config.model.name,
            asdict(config),
            self._standing,
            self._report.note,
        )
        # The same sample of the rows, by the fresh model and by the version as published.
        self.sampled, self.as_published = Scored(), Scored()
        self._lineage: Lineage | None = None
        self._frozen: AsPublished | None = None
        if saved is None and old is None:
            self.trainer.dense.begin_at(measure_log_odds(self.source))
        if self._begun.from_scratch:
            self._checkpoints.save_full(self.trainer, self.state)
        elif saved is not None:
            self._resume()
        elif old is not None:
            self._begin_with(old)

    @property
    def held_out(self) -> Scored:
        return self.assessment.main.scored

    def _resume(self) -> None:
        restored = self._checkpoints.restore(self.trainer)
        if restored is None:
            return
        self.state = state = replace(restored.state, settings=self.state.settings, train=self.state.train)
        here = Generation(state.version, state.step)
        self._report.note(f"resumed at row {state.position}, generation {here}")
        if not state.version:
            return
        if state.full_rows not in (None, self.config.publish.full_rows):
            self._report.note(
                f"publish.full_rows is {self.config.publish.full_rows:,} and was {state.full_rows:,} when version"
                f" {state.version} was made, which stays as it is; --new-version --from-scratch makes one of these rows"
            )
        committed = state.step or state.version in self._versions()
        if committed:
            self._open_chain().resume(restored)
        else:
            self._publish_version()
        if self._begun.new_version and committed:
            self._begin_version()

    def _begin_with(self, old: Contents) -> None:
        """A version that lies in the repository without checkpoints: its newest weights, and rows from the first on."""
        rebuild(self.trainer, old)
        before = Generation(old.base.manifest.version, old.link.step)
        self._report.note(f"no checkpoint: the weights are those of {before}, and the rows are read from the first on")
        self._begin_version()

    def _begin_version(self) -> None:
        """Publishes the weights as they are as the next version."""
        state = self.state
        state.version, state.step, state.digest, state.parent = self._next_version(), 0, "", ""
        state.finished_at = self._unix_s()
        state.event_time, state.events = None, 0
        self._checkpoints.save_full(self.trainer, state)
        self._publish_version()

    def full(self) -> Generation:
        """Phase one: learns the full rows and publishes the version; does nothing when that is done."""
        if self.state.version:
            return Generation(self.state.version, self.state.step)
        stop = self._full_rows()
        if self.state.position > stop:
            self._report.note(
                f"{self.state.position:,} rows were learned before publish.full_rows became {stop:,}: they make the"
                " full version"
            )
        held_out_from = stop - round(stop * self.config.train.holdout)
        settings = self.config.train
        while self.state.epoch < settings.epochs:
            last = self.state.epoch == settings.epochs - 1 and not settings.patience
            until = stop if last else held_out_from
            name = (
                "training" if settings.epochs == 1 else f"training, epoch {self.state.epoch + 1} of {settings.epochs}"
            )
            self._report.begin(name, until)
            self._report.advance(self.state.position)
            self._learn(held_out_from, mixed=True)
            if settings.patience:
                self._end_epoch(held_out_from, stop)
                continue
            if last:
                self._learn(until, self.assessment)
            self.state.epoch += 1
            if not last:
                self.state.position = 0
        if settings.patience:
            self._learn(stop, self.assessment)
        if self.state.position == 0:
            raise BadInput("data: at least one row wanted, got none")
        self.state.version = self._next_version()
        self.state.full_rows = self.config.publish.full_rows
        self.state.finished_at = self._unix_s()
        if removed := self.trainer.evict():
            self._report.note(f"evicted {removed:,} rows before the full version")
        self._checkpoints.save_full(self.trainer, self.state)
        clear_changed(self.trainer)
        self._publish_version()
        return Generation(self.state.version, 0)

    def _end_epoch(self, held_out_from: int, stop: int) -> None:
        """Scores the held-out rows, without learning them, and lets early stopping say where to go on."""
        scored = Scored()
        with self._works(held_out_from, stop) as works:
            for work in works:
                scored.add(work.batch.label, self.trainer.score(work), work.batch.weight)
        auc, log_loss = scored.auc(), scored.log_loss()
        self.journal.epoch(self.state.epoch + 1, auc, log_loss)
        self._report.note(self._stopping.judge(self.state, auc, log_loss, held_out_from))

    def stream(
        self, before: Callable[[Batch], None] | None = None, stop_row: int | None = None
    ) -> Iterator[Generation]:
        """Phase two: yields the generation of each delta once it is published.

        before(batch) is called with each piece before it is learned. stop_row: where to end; default: with the data.
        """
        publish = self.config.publish
        if not (publish.delta_rows or publish.delta_seconds):
            return
        # Where the weights have gone back the rows are read anew, from wherever the state says.
        while not (yield from self._stream_on(before, stop_row)):
            pass

    def _stream_on(
        self, before: Callable[[Batch], None] | None, stop_row: int | None
    ) -> Generator[Generation, None, bool]:
        """Learns and publishes from the state's position on; False: the weights went back."""
        publish, lineage = self.config.publish, self._open_chain()
        chunk_rows = publish.delta_rows or self.config.train.batch_rows
        total = self.source.count_rows()
        left = None if total is None else total - self.state.position
        self._report.begin("streaming", left)
        every = SAMPLED_SHARE if left is None else max(1, left // (SAMPLED_BATCHES * self.config.train.batch_rows))
        changed_s, pending, batches = time.monotonic(), False, 0
        chunks_read = self._timed(self.source.batches(chunk_rows, self.state.position), stop_row)
        read = Ahead(chunks_read, self._transformed_pieces)
        with self.trainer.in_stretches(read, list) as chunks:
            for works in self.trainer.profile.waited(chunks):
                if not pending and lineage.follow():
                    return False
                for work in works:
                    if before is not None:
                        before(work.batch)
                    self._score(work, batches % every == 0)
                    self._learn_batch(work)
                    batches += 1
                pending = True
                due = publish.delta_seconds and time.monotonic() - changed_s >= publish.delta_seconds
                if sum(len(work.batch) for work in works) == publish.delta_rows or due:
                    generation = self._publish_delta(lineage)
                    if generation is None:
                        return False
                    yield generation
                    changed_s, pending = time.monotonic(), False
        if pending:
            generation = self._publish_delta(lineage)
            if generation is None:
                return False
            yield generation
        return True

    def run(self) -> Summary:
        """Runs both phases."""
        generation = self.full()
        if len(self.held_out):
            for label, each in self.assessment.labels.items():
                which = "" if each.scored is self.held_out else f", {label}"
                self._report.note(_metrics(f"held out{which}", each.scored))
            self.journal.measured(self.assessment.lines())
            if advice := next_step(self.held_out, self.trainer.steps, self._named):
                self._report.note(advice)
        for generation in self.stream():  # noqa: B007
            pass
        if len(self.streamed):
            self._report.note(self._streamed_metrics())
        spent, cores = self.trainer.profile.measured(), len(available())
        if spent["step"].times:
            self.journal.measured(stage_lines(spent, cores, overlap(spent, cores)))
        for name, tiers in self.trainer.tiers.items():
            log = f"{len(tiers.cold):,} on disk in {tiers.cold.log_nbytes >> 20:,} MiB"
            self._report.note(f"table {name!r}: {tiers.hot:,} rows in memory, {log}")
        write_analysis(self._checkpoints.folder, self.trainer, self._report)
        return Summary(generation, self.state.position, self.held_out, self.streamed, self.journal.report(), spent)

    def _score(self, work: BoundBatch, sampled: bool) -> None:
        """Scores a batch before it is learned; `sampled`: by the version as it was published too."""
        batch, fresh = work.batch, self.trainer.score(work)
        self.streamed.add(batch.label, fresh, batch.weight)
        self.journal.scored(batch.label, fresh, batch.weight)
        if sampled:
            if self._frozen is None or self._frozen.version != self.state.version:
                self.sampled, self.as_published = Scored(), Scored()
                self._frozen = AsPublished(self._published(self.state.version), self.trainer.dense)
            self.sampled.add(batch.label, fresh, batch.weight)
            self.as_published.add(batch.label, self._frozen.score(batch.columns), batch.weight)

    def _streamed_metrics(self) -> str:
        told = _metrics("streamed, scored before learned", self.streamed)
        frozen = f"version {self.state.version} as published: AUC {self.as_published.auc():.4f}"
        if len(self.sampled) == len(self.streamed):
            return f"{told}; {frozen}"
        return f"{told}; {frozen} over {len(self.sampled)} of them, the fresh model there {self.sampled.auc():.4f}"

    def _learn(self, until: int, assessment: Assessment | None = None, mixed: bool = False) -> None:
        """Learns on to row `until`; with an assessment, scores each batch first. mixed: in the order of this epoch."""
        saved_s = time.monotonic()
        with self._works(self.state.position, until, mixed) as works:
            for work in self.trainer.profile.waited(works):
                if assessment is not None:
                    batch, scores = work.batch, self.trainer.score(work)
                    assessment.add(self._extra.of(batch), batch.label, scores, batch.weight)
                self._learn_batch(work)
                if time.monotonic() - saved_s >= CHECKPOINT_SECONDS:
                    self._checkpoints.save(self.trainer, self.state)
                    self._checkpoints.compact(self.trainer, self.state, lambda: self._stopping.wanted(self.state))
                    saved_s = time.monotonic()

    def _works(self, first: int, until: int, mixed: bool = False) -> Ahead | Stretches:
        """Rows [first, until) in batches, read and transformed ahead."""
        settings = self.config.train
        batches = self.source.batches(settings.batch_rows, first)
        if mixed and settings.shuffle_rows:
            seed = settings.seed, self.state.epoch
            batches = shuffled(self.source, settings.batch_rows, first, until, settings.shuffle_rows, seed)
        return self.trainer.in_stretches(Ahead(self._timed(batches, until), self.trainer.transform))

    def _timed(self, batches: Iterator[Batch], until: int | None) -> Iterator[Batch]:
        """The batches before row `until`."""
        while True:
            with self.trainer.profile.timed("read"):
                batch = next(batches, None)
            if batch is None or (until is not None and batch.start >= until):
                return
            yield batch if until is None else batch.slice(0, min(len(batch), until - batch.start))

    def _transformed_pieces(self, chunk: Batch) -> list[BoundBatch]:
        return [self.trainer.transform(piece) for piece in _pieces(chunk, self.config.train.batch_rows)]

    def _standing(self) -> dict[str, Any]:
        """See RunJournal."""
        trainer, factor = self.trainer, self.trainer.rate_factor
        return {
            "step": trainer.steps,
            "epoch": self.state.epoch,
            "position": self.state.position,
            "dense_learning_rate": self.config.train.dense_learning_rate * factor,
            "learning_rates": {name: rate * factor for name, rate in trainer.rates.items()},
            "table_rows": {name: len(table) for name, table in trainer.tables.items()},
        }

    def _learn_batch(self, work: BoundBatch) -> None:
        batch, state, loss = work.batch, self.state, self.trainer.learn(work)
        state.position = batch.end
        state.events += len(batch)
        if batch.time is not None:
            first, last = float(batch.time.min()), float(batch.time.max())
            known = state.event_time or (first, last)
            state.event_time = min(known[0], first), max(known[1], last)
        self.journal.learned(len(batch), loss)
        self._report.advance(len(batch))

    def _known_rows(self) -> int | None:
        """The rows of the full version, as far as file and data tell; None where the data never end and it is all of
        them."""
        wanted = self.config.publish.full_rows
        if self._total_rows is None or (wanted and wanted <= self._total_rows):
            return wanted or None
        return self._total_rows

    def _full_rows(self) -> int:
        """The rows of the full version, said aloud where the data have fewer than the file wants."""
        rows, wanted = self._known_rows(), self.config.publish.full_rows
        if rows is None:
            raise BadInput("publish.full_rows: a number wanted, because this stream never ends")
        if wanted > rows:
            self._report.note(
                f"publish.full_rows is {wanted:,}, the data have {rows:,} rows: the full version is made of all of"
                " them, and nothing is left for deltas until rows are added"
            )
        return rows

    @cached_property
    def _total_rows(self) -> int | None:
        return self.source.count_rows()

    def _publish_version(self) -> None:
        state = self.state
        exports = {name: table.export() for name, table in self.trainer.tables.items()}
        graph = self.trainer.dense.published()
        draft = replace(
            self.trainer.manifest,
            version=state.version,
            created_at=state.finished_at,
            event_time=list(state.event_time or ()),
        )
        self._report.begin("compiling", 5)
        published = publish_version(
            self.repository,
            draft,
            {name: (e.keys, e.rows) for name, e in exports.items()},
            graph,
            progress=lambda done, total: self._report.advance(1),
            counts={name: e.counts for name, e in exports.items()},
            lower=self._lower(),
        )
        for line in published.manifest.notes.get("compile", {}).get("refused", ()):
            self._report.note(line)
        state.event_time, state.events = None, 0
        self._lineage = None
        self.journal.published(str(Generation(state.version, 0)))
        self._report.note(f"published {self.config.model.name} {Generation(state.version, 0)}")

    def _lower(self) -> Lower | None:
        """What the file wants of a lower precision, with the last rows that were learned."""
        publish, stop = self.config.publish, self.state.position
        if publish.precision == "float32":
            return None
        wanted = min(PRACTICE_ROWS, max(1, PRACTICE_NBYTES // (4 * self.trainer.manifest.width)))
        first, rows = max(0, stop - wanted), self.config.train.batch_rows
        batches = list(self._timed(self.source.batches(rows, first), stop))
        x = np.concatenate([self.trainer.pool(self.trainer.transform(batch).bound) for batch in batches])
        labels = np.concatenate([batch.label.reshape(len(batch), -1)[:, 0] for batch in batches])
        practice = Labelled(x, labels, self.trainer.dense.arch.outputs[0])
        return Lower(publish.precision, practice, Tolerance(publish.max_error, publish.max_auc_change))

    def _publish_delta(self, lineage: Lineage) -> Generation | None:
        self.state.finished_at = self._unix_s()
        self.trainer.evict()
        generation = lineage.publish()
        if generation is not None:
            self.journal.published(str(generation))
        self.state.event_time, self.state.events = None, 0
        return generation

    def _open_chain(self) -> Lineage:
        if self._lineage is None:
            self._lineage = Lineage(
                self._published(self.state.version),
                self.trainer,
                self._checkpoints,
                self.state,
                self._report,
                self._begun.replay,
                self.config.publish.snapshot_after,
            )
        return self._lineage

    # What lies in the repository.

    def _versions(self) -> list[int]:
        return Repository(self.repository).versions(self.config.model.name)

    def _next_version(self) -> int:
        return max(self._versions(), default=0) + 1

    def _published(self, number: int) -> VersionReader:
        return Repository(self.repository).version(self.config.model.name, number)

    def _newest_contents(self) -> Contents | None:
        """What the newest version holds; None where there is no version."""
        versions = self._versions()
        if not versions:
            return None
        version = self._published(versions[-1])
        ledger = Ledger.of(version)
        return Contents(version, ledger, ledger.history.head)


def _pieces(chunk: Batch, rows: int) -> Iterator[Batch]:
    for first in range(0, len(chunk), rows):
        yield chunk.slice(first, min(first + rows, len(chunk)))


def _metrics(what: str, scored: Scored) -> str:
    return f"{what}: AUC {scored.auc():.4f}, log-loss {scored.log_loss():.4f} over {len(scored)} rows"
