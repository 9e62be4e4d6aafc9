"""Run `freshet train`, from a configuration to a published version and a stream of deltas.

Phase one trains on rows [0, full_rows) for some epochs and publishes the full version. Its last epoch scores the
held-out tail before training on it, for the run's AUC and log-loss; with early stopping each epoch does.
Phase two trains on the remaining rows in order. It scores each batch before training on it, and publishes a delta
whenever one is due, behind a hold if the guard finds the window abnormal. A followed stream has no end.

A kill loses at most the work since the last checkpoint; the same command continues from there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from freshet_serving.compiler.progress import Reporter, SilentReporter
from freshet_serving.models.config.train_config import StartOptions, TrainConfig
from freshet_serving.models.data.formats import label_names
from freshet_serving.models.data.prefetch import PrefetchPipeline
from freshet_serving.models.data.shuffled import shuffled
from freshet_serving.models.data.source import Batch, Source
from freshet_serving.models.evaluation.counting_baselines import CountingBaselines
from freshet_serving.models.evaluation.evaluation_metrics import EvaluationMetrics
from freshet_serving.models.evaluation.extra_columns import ExtraColumns
from freshet_serving.models.evaluation.quality import ScoredRows
from freshet_serving.models.runs.outages import Outages
from freshet_serving.models.runs.run_journal import RunJournal
from freshet_serving.models.runs.stage_bars import stage_lines
from freshet_serving.models.runs.step_profile import overlap
from freshet_serving.models.runs.train_metrics import RunStatus
from freshet_serving.models.streams.followed_source import IngestStatus, followed_source
from freshet_serving.models.streams.followed_tables import followed_tables
from freshet_serving.models.streams.history_writer import HistoryWriter
from freshet_serving.models.streams.open_rows import checkpoint_folder, open_rows
from freshet_serving.models.training.checkpoint import Checkpoints, clear_changed
from freshet_serving.models.training.defaults import CHOSEN
from freshet_serving.models.training.delta_rules import DeltaRules
from freshet_serving.models.training.divergence import check_loss
from freshet_serving.models.training.early_stopping import EarlyStopping, EpochQuality, scored_quality
from freshet_serving.models.training.entity_deltas import forget_gone, marks_of
from freshet_serving.models.training.full_versions import PRACTICE_ROWS, FullVersions
from freshet_serving.models.training.learned_rows import LearnedRows
from freshet_serving.models.training.lineage import Lineage, rebuild, retry_until_ready
from freshet_serving.models.training.prefetch_windows import PrefetchWindows
from freshet_serving.models.training.repeated_run import RepeatedRun
from freshet_serving.models.training.resolved_config import with_unsigned_ids
from freshet_serving.models.training.run_start import ContinuedStart, ResumedStart, RunStart, find_start, make_folders
from freshet_serving.models.training.run_summary import Summary, held_out_lines
from freshet_serving.models.training.spec import draft, measure_log_odds
from freshet_serving.models.training.stream_guard import StreamGuard
from freshet_serving.models.training.stream_quality import StreamQuality
from freshet_serving.models.training.table_export import write_analysis
from freshet_serving.models.training.trainer import BoundBatch, Trainer
from freshet_serving.models.training.version_gate import HeldOut
from freshet_serving.models.training.version_review import held_out_auc
from freshet_serving.processor.cores import available
from freshet_serving.processor.errors import BadInput, Refused
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.repository import VersionContents, is_address

Given = TypeVar("Given", Batch, Batch | None)

CHECKPOINT_SECONDS = 30.0
LOOK_S, NEWS_S = 0.5, 10.0
SAMPLED_BATCHES, SAMPLED_SHARE = 200, 5
"""Batches of a stream that the version as published also scores; one in SAMPLED_SHARE if the stream has no end."""


class TrainingRun:
    """One training run over one source; resumes from its checkpoints automatically."""

    default_trainer: type[Trainer] = Trainer
    batches_have_rows = True

    def __init__(
        self,
        config: TrainConfig,
        source: Source | None = None,
        checkpoints: Path | None = None,
        reporter: Reporter | None = None,
        unix_s: Callable[[], float] = time.time,
        start_options: StartOptions | None = None,
        make_trainer: Callable[..., Trainer] | None = None,
    ) -> None:
        """Open the data, find the state to start from, and restore it.

        By default data are those of the configuration, checkpoints in .checkpoints/<model> of the trainer's folder, and
        make_trainer(), called like Trainer(), default_trainer.
        """
        self._begun = start_options or StartOptions()
        self._named = [f"train.{key}" for key in CHOSEN if getattr(config.train, key)]
        trainer_folder, folder = make_folders(config), checkpoints or checkpoint_folder(config)
        self.config = config = with_unsigned_ids(config)
        repeated = self._begun.repeat
        self.source = source or open_rows(config, folder, self._begun.from_scratch, repeated)
        self._followed, self._tables = followed_source(self.source), followed_tables(self.source)
        self._endless = self._followed is not None and self._followed.endless
        self._repeated = None if repeated is None else RepeatedRun(repeated)
        self._report = reporter = reporter or SilentReporter()
        self._unix_s, self._stopped, self._told_s, self._in_order = unix_s, threading.Event(), 0.0, True
        self._outages = Outages(self._endless and is_address(config.publish.repository), self._stopped, reporter.note)
        self._checkpoints = Checkpoints(folder, self.source)
        if self._endless and not self._checkpoints.newest():
            self._await_rows(1)
        versions, known_rows = FullVersions(config, self.source, reporter, self._outages.wait), self._known_rows()
        start = find_start(config, self.source, self._begun, self._checkpoints, versions, known_rows, reporter.note)
        self.config = config = start.config
        self.state = start.state()
        self._joined = {field.name for table in config.joined for field in table.fields}
        self._versions = FullVersions(config, self.source, self._report, self._outages.wait)
        drafted = draft(config, start.scaling, start.hash_seeds)
        self.trainer = (make_trainer or self.default_trainer)(
            drafted, config.train, config.network, config.fusion, config.tables, folder
        )
        measured = config.evaluate
        self._baselines = CountingBaselines(config.features if self.batches_have_rows else ())
        self.evaluation_metrics = EvaluationMetrics(
            label_names(config.data), measured.by, measured.group, measured.top, self._baselines
        )
        extra_columns = [*measured.by, *([measured.group] if measured.group else [])]
        self._extra = ExtraColumns(extra_columns, self.source, config.data, config.train.batch_rows)
        self._histories = HistoryWriter.of(config, self.trainer.manifest, self.source, reporter, self._stopped)
        self._stopping = EarlyStopping(config.train, self.trainer, self._checkpoints)
        self._counted = RunStatus()
        runs, name = trainer_folder / ".runs", config.model.name
        self.journal = RunJournal(runs / name, name, asdict(config.shown), self._progress_line, reporter.note)
        self._lineage: Lineage | None = None
        self.quality = StreamQuality(self._versions, self.trainer)
        self.guard = self._make_guard()
        self._go_on(start)

    def status(self) -> RunStatus:
        """Return the run's status. Thread-safe."""
        state, guard, lineage = self.state, self.guard, self._lineage
        stream = self._followed.ingest_status() if self._followed is not None else IngestStatus()
        return replace(
            self._counted,
            position=state.position,
            waiting_rows=max(0, stream.rows - state.position) + stream.backlog.rows,
            lost_rows=stream.backlog.lost,
            files_aside=stream.backlog.aside,
            rejected_rows=stream.rejected,
            trouble=stream.backlog.trouble,
            store_trouble=self._histories.trouble,
            stale_tables=sum(bool(table.trouble) for table in self._tables),
            version=state.version,
            step=state.step,
            held_windows=guard.held_windows,
            **(guard.newest.shown if guard.newest else {}),
            held=lineage.held if lineage else "",
            table_rows={name: len(table) for name, table in self.trainer.tables.items()},
        )

    def stop(self) -> None:
        """End the stream after the current batch, with a delta of the changes. Thread-safe."""
        self._stopped.set()

    @property
    def held_out(self) -> ScoredRows:
        return self.evaluation_metrics.main.scored

    def _make_guard(self) -> StreamGuard:
        return StreamGuard(self.config.guard, self.trainer)

    def _go_on(self, start: RunStart) -> None:
        """Set the trainer's first weights and the run's position."""
        if isinstance(start, ResumedStart):
            self._resume()
            return
        self._recognise()
        if isinstance(start, ContinuedStart):
            self._begin_with(start.old)
        else:
            self.state.log_odds = self.state.log_odds or measure_log_odds(self.source)
            self.trainer.dense.set_initial_bias(self.state.log_odds)
            if self._begun.from_scratch or self._checkpoints.newest():
                self._checkpoints.save_full(self.trainer, self.state)

    def _resume(self) -> None:
        if (restored := self._checkpoints.restore(self.trainer)) is None:
            return
        self.state = state = replace(restored.state, settings=self.state.settings, train=self.state.train)
        self._recognise()
        for line in state.resumed(self._total_rows, self.config.publish.full_rows):
            self._report.note(line)
        if not state.version:
            return
        self.guard.windows.restore(state.guard)
        self._histories.write(state)
        committed = state.step or state.version in self._versions.numbers()
        if committed:
            self._open_chain().resume(restored)
        else:
            self._publish_version()
        if self._begun.new_version and committed:
            self._begin_version()

    def _recognise(self) -> None:
        """Raise BadInput if the data are not those that the state's position counts rows of."""
        if self._followed is None:
            position, rows = self.state.position, self._total_rows
            LearnedRows(self.state.data, self._joined).recognise(self.source, position, rows)

    def _begin_with(self, old: VersionContents) -> None:
        rebuild(self.trainer, old)
        before, position = Generation(old.base.manifest.version, old.link.step), self.state.position
        row = f"row {position:,}" if position else "the first row"
        self._checkpoints.borders.interrupted(position)
        self._report.note(f"no checkpoint: starting with the weights of {before} and {row}")
        self._begin_version()

    def _begin_version(self) -> None:
        """Publish the current weights as the next version; if it is refused, stay with the one before it."""
        state, before = self.state, replace(self.state)
        state.begin_version(self._versions.next_number(), self._unix_s())
        try:
            self._save_version()
        except Refused:
            if before.version:
                state.go_back(before)
                self._checkpoints.save_full(self.trainer, state)
            raise

    def full(self) -> Generation:
        """Run phase one: train on the full rows and publish the version; does nothing if that is done."""
        if self.state.version:
            return Generation(self.state.version, self.state.step)
        stop = self._full_rows()
        if self._endless:
            self._await_rows(stop)
        if self.state.position > stop:
            self._report.note(
                f"{self.state.position:,} rows were trained on before publish.full_rows became {stop:,}: the full"
                " version contains all of them"
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
                self._learn(until, self.evaluation_metrics)
            self.state.epoch += 1
            if not last:
                self.state.position = 0
        if settings.patience:
            self._learn(stop, self.evaluation_metrics)
        if self.state.position == 0:
            raise BadInput("data: expected at least one row, got none")
        self.state.version = self._versions.next_number()
        self.state.full_rows = self.config.publish.full_rows
        self.state.finished_at = self._unix_s()
        self.guard.begin_stream()
        self.state.guard = self.guard.windows.saved()
        if removed := self.trainer.evict():
            self._report.note(f"evicted {removed:,} rows before the full version")
        self._save_version()
        return Generation(self.state.version, 0)

    def _save_version(self) -> None:
        self.state.version_row, self.state.refused = self.state.position, False
        self._checkpoints.borders.published(self.state.position, Generation(self.state.version, 0))
        self._histories.write(self.state, bar=True)
        self.state.entities = marks_of(self._tables)
        self._checkpoints.save_full(self.trainer, self.state)
        clear_changed(self.trainer)
        self._publish_version()

    def _end_epoch(self, held_out_from: int, stop: int) -> None:
        """Score the held-out rows and apply early stopping."""
        with self._works(held_out_from, stop) as works:
            quality = self._epoch_quality(works)
        self.journal.epoch(self.state.epoch + 1, quality.figures)
        self._report.note(self._stopping.judge(self.state, quality, held_out_from))

    def _epoch_quality(self, works: Iterable[BoundBatch]) -> EpochQuality:
        return scored_quality(self.trainer, works, self.config.train.stop_by)

    def stream(
        self, before: Callable[[Batch], None] | None = None, stop_row: int | None = None
    ) -> Iterator[Generation]:
        """Run phase two up to `stop_row`: yield each delta's generation; before() gets batches before training."""
        publish = self.config.publish
        if not (publish.delta_rows or publish.delta_seconds or self._repeated):
            return
        # After the weights went back, or a new version was published, reading restarts at the state's position.
        while not (yield from self._stream_on(before, stop_row)):
            pass

    def _stream_on(
        self, before: Callable[[Batch], None] | None, stop_row: int | None
    ) -> Generator[Generation, None, bool]:
        """Train and publish from the state's position on; return False if reading has to restart."""
        lineage, self._in_order = self._open_chain(), True
        rules = DeltaRules(self.config.publish, time.monotonic, lineage.entities_changed)
        if self._repeated is not None:
            rules = self._repeated.rules(self.config.publish, self.state)
        rows = None if self._endless else self.source.count_rows()
        left = None if rows is None else rows - self.state.position
        self._report.begin("streaming", left)
        every = SAMPLED_SHARE if left is None else max(1, left // (SAMPLED_BATCHES * self.config.train.batch_rows))
        read, batches = PrefetchPipeline(self._arriving(stop_row), self._transformed), 0
        with self.trainer.with_prefetched_rows(read, lambda work: [] if work is None else [work]) as works:
            for work in self.trainer.profile.waited(works):
                if not rules.rows and lineage.follow():
                    self.guard.reset()
                    return False
                self.guard.prepare()
                if work is not None:
                    if before is not None:
                        before(work.batch)
                    self._score_and_learn(work, batches % every == 0)
                    self._checkpoints.borders.learned(work.batch.start, work.batch.end)
                    rules.learned(work.batch.stream_rows)
                    batches += 1
                self._tell_news()
                self._histories.check(self.state)
                while rules.due():
                    if (generation := self._publish_delta(lineage)) is None:
                        return False
                    yield generation
                    rules.published()
                    if self._version_due() and self._began_version():
                        yield Generation(self.state.version, 0)
                        return False
                if self._stopped.is_set():
                    break
        # What is withheld follows in a delta of its own, so that a repeated run can tell.
        for remains in (rules.left, lambda: self.state.withheld > 0):
            if remains():
                if (generation := self._publish_delta(lineage)) is None:
                    return False
                yield generation
        return True

    def _arriving(self, stop_row: int | None) -> Iterator[Batch | None]:
        """Yield the batches to stream, up to row `stop_row`; None if nothing has arrived for a moment."""
        rows, chunk_rows = self.config.train.batch_rows, self.config.publish.delta_rows
        if self._repeated is not None:
            yield from self._timed(self._repeated.batches(self.source, self.state.position), stop_row)
        elif self._followed is not None:
            most = min(rows, chunk_rows) if chunk_rows else rows
            yield from self._timed(self.source.arriving(most, self.state.position), stop_row)  # type: ignore[attr-defined]
        else:
            for chunk in self._timed(self.source.batches(chunk_rows or rows, self.state.position), stop_row):
                yield from chunk.pieces(rows)

    def _version_due(self) -> bool:
        """Return True if a full version is due; never behind a hold, even one of another writer."""
        publish, state, lineage = self.config.publish, self.state, self._open_chain()
        if lineage.history.gate is not None:
            return False
        enough = 0 < publish.version_rows <= state.position - state.version_row
        late = 0 < publish.version_seconds <= self._unix_s() - lineage.made_at
        # While a person decides about a refused version, no further one is made.
        return (enough or late) and max(self._versions.candidates(), default=0) < state.version

    def _began_version(self) -> bool:
        """Publish the current weights as the next version; return False, with a note, if it is refused."""
        try:
            self._begin_version()
        except Refused as error:
            self._report.note(str(error))
            return False
        return True

    def run(self) -> Summary:
        """Run both phases."""
        generation = self.full()
        self._counted = replace(self._counted, held_out=self._held_out_figures())
        if len(self.held_out):
            for line in held_out_lines(self.evaluation_metrics, self.trainer.steps, self._named):
                self._report.note(line)
            self.journal.measured(self.evaluation_metrics.lines())
        for generation in self.stream():  # noqa: B007
            pass
        streamed = self.quality.streamed
        if len(streamed):
            self._report.note(self.quality.summary(self.state.version))
        stage_times, cores = self.trainer.profile.measured(), len(available())
        if stage_times["step"].times:
            self.journal.measured(stage_lines(stage_times, cores, overlap(stage_times, cores)))
        write_analysis(self._checkpoints.folder, self.trainer, self._report)
        return Summary(generation, self.state.position, self.held_out, streamed, self.journal.report())

    def _held_out_figures(self) -> dict[str, float]:
        scored = self.held_out
        return {"auc": scored.auc(), "log_loss": scored.log_loss()} if len(scored) else {}

    def _score_and_learn(self, work: BoundBatch, sampled: bool) -> None:
        """Train on a batch, scored by the weights before; if `sampled`, also by the version as published."""
        batch, (loss, fresh) = work.batch, self.trainer.learn_scored(work)
        self._learned(work, loss)
        self.quality.add(work, fresh, self.state.version, sampled)
        self.journal.scored(batch.label, fresh, batch.weight)
        self.guard.see(work, fresh)

    def _learn(self, until: int, evaluation_metrics: EvaluationMetrics | None = None, mixed: bool = False) -> None:
        """Train up to row `until`, scoring each batch first for `evaluation_metrics`; `mixed` shuffles the rows."""
        saved_s, self._in_order = time.monotonic(), not (mixed and self.config.train.shuffle_rows)
        with self._works(self.state.position, until, mixed) as works:
            for work in self.trainer.profile.waited(works):
                if evaluation_metrics is not None:
                    self._measure(work, evaluation_metrics)
                elif not self.state.epoch:
                    self._baselines.learned(work.batch)
                self._learned(work, self.trainer.learn(work))
                if time.monotonic() - saved_s >= CHECKPOINT_SECONDS:
                    self._checkpoints.save(self.trainer, self.state)
                    self._checkpoints.compact(self.trainer, self.state, lambda: self._stopping.wanted(self.state))
                    saved_s = time.monotonic()

    def _measure(self, work: BoundBatch, evaluation_metrics: EvaluationMetrics) -> None:
        batch, scores = work.batch, self.trainer.score(work)
        evaluation_metrics.add(self._extra.of(batch), batch.label, scores, batch.weight)
        self._baselines.score(batch)
        self.guard.see_held_out(work, scores)

    def _works(self, first: int, until: int, mixed: bool = False) -> PrefetchPipeline | PrefetchWindows:
        settings = self.config.train
        batches = self.source.batches(settings.batch_rows, first)
        if mixed and settings.shuffle_rows:
            seed = settings.known_seed, self.state.epoch
            batches = shuffled(self.source, settings.batch_rows, first, until, settings.shuffle_rows, seed)
        return self.trainer.with_prefetched_rows(PrefetchPipeline(self._timed(batches, until), self.trainer.transform))

    def _timed(self, batches: Iterator[Given], until: int | None) -> Iterator[Given]:
        while True:
            with self.trainer.profile.timed("read"):
                batch: Any = next(batches, self)
            if batch is self or (batch is not None and until is not None and batch.start >= until):
                return
            yield batch if batch is None or until is None else batch.slice(0, min(len(batch), until - batch.start))

    def _transformed(self, batch: Batch | None) -> BoundBatch | None:
        return None if batch is None else self.trainer.transform(batch)

    def _progress_line(self) -> dict[str, Any]:
        return {"epoch": self.state.epoch, "position": self.state.position, **self.trainer.progress()}

    def _learned(self, work: BoundBatch, loss: float) -> None:
        batch, state = work.batch, self.state
        check_loss(loss, self.trainer, self._checkpoints.newest)
        state.learned(batch)
        if self._in_order and self._followed is None and batch.covers is None:
            LearnedRows(self.state.data, self._joined).learned(batch)
        event_time, rows = state.event_time[1] if state.event_time else 0.0, batch.stream_rows
        learned_rows = self._counted.learned_rows + rows
        self._counted = replace(self._counted, learned_rows=learned_rows, loss=loss, event_time=event_time)
        self.journal.learned(rows, loss)
        self._report.advance(rows)

    def _known_rows(self) -> int | None:
        """Return the rows of the full version; None for all rows of endless data."""
        full_rows = self.config.publish.full_rows
        if self._total_rows is None or (full_rows and full_rows <= self._total_rows):
            return full_rows or None
        return self._total_rows

    def _full_rows(self) -> int:
        rows, full_rows = self._known_rows(), self.config.publish.full_rows
        if rows is None:
            raise BadInput("publish.full_rows: expected a number, because this stream has no end")
        if full_rows > rows:
            self._report.note(
                f"publish.full_rows is {full_rows:,}, the data have {rows:,} rows: the full version uses all of them,"
                " and there are no deltas until rows are added"
            )
        return rows

    @cached_property
    def _total_rows(self) -> int | None:
        return None if self._endless and self.config.publish.full_rows else self.source.count_rows()

    def _await_rows(self, expected: int) -> None:
        if (arrived := self.source.count_rows() or 0) >= expected:
            return
        self._report.note(f"waiting for {expected:,} rows, {arrived:,} have arrived so far")
        self._report.begin("waiting for rows", expected)
        self._report.advance(arrived)
        while arrived < expected:
            if self._stopped.wait(LOOK_S):
                raise BadInput(f"data: expected {expected:,} rows for the full version, got {arrived:,} so far")
            self._tell_news()
            before, arrived = arrived, self.source.count_rows() or 0
            self._report.advance(arrived - before)

    def _publish_version(self) -> None:
        state, before_s = self.state, self._outages.waited_s
        args = self.trainer, state, HeldOut() if self._lineage is not None else self._held_out_quality()
        try:
            generation = retry_until_ready(
                lambda: self._versions.publish(*args, again=self._outages.waited_s != before_s), self._outages.wait
            )
        except Refused:
            state.refused = True
            self._checkpoints.save_full(self.trainer, state)
            raise
        self._versions.remove_old(state.version)
        state.event_time, state.events = None, 0
        self._lineage = None
        self._counted = replace(self._counted, published_at=self.state.finished_at, versions=self._counted.versions + 1)
        self.journal.published(str(generation))

    def _held_out_quality(self) -> HeldOut:
        return held_out_auc(self.held_out)

    def _publish_delta(self, lineage: Lineage) -> Generation | None:
        """Publish all changes, behind a hold if the window is abnormal; return None if the weights went back."""
        self._versions.check_chosen(self.state.version)
        self.state.finished_at = self._unix_s()
        self.trainer.evict()
        if self.state.events and (verdict := self.guard.judge(lineage)):
            self._report.note(verdict)
        self.state.guard = self.guard.windows.saved()
        self._histories.write(self.state)
        generation = lineage.publish()
        if generation is None:
            self.guard.reset()
        else:
            self.guard.begin()
            self._counted = replace(self._counted, published_at=self.state.finished_at, deltas=self._counted.deltas + 1)
            self.journal.published(str(generation))
            if self._followed is not None:
                self._followed.forget(self._oldest_row)
                forget_gone(self._tables, self._checkpoints.states())
        self.state.event_time, self.state.events = None, 0
        return generation

    def _tell_news(self) -> None:
        if self._followed is not None and time.monotonic() - self._told_s >= NEWS_S:
            self._told_s = time.monotonic()
            for line in [*self._followed.news(), *(line for table in self._tables for line in table.news())]:
                self._report.note(line)

    def _oldest_row(self) -> int:
        """Return the first row that may be read again."""
        return min(state.position for _, state in self._checkpoints.states()) - PRACTICE_ROWS

    def _open_chain(self) -> Lineage:
        if self._lineage is None:
            self._lineage = Lineage(
                self._versions.published(self.state.version),
                self.trainer,
                self._checkpoints,
                self.state,
                self._report,
                self._begun.replay,
                self.config.publish,
                self._outages.wait,
                self._tables,
            )
        return self._lineage
