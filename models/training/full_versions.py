"""Publish the full versions of a run, and list the existing ones.

A version is published after its checkpoint is saved; after a kill between the two, the resumed run publishes it.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial

import numpy as np

from freshet_serving.compiler.building.calibrate import LabelledRows, Tolerance
from freshet_serving.compiler.building.packaging import LowPrecisionOptions
from freshet_serving.compiler.progress import Reporter
from freshet_serving.models.config.train_config import TrainConfig
from freshet_serving.models.data.sequence_columns import SequenceSource
from freshet_serving.models.data.source import Batch, Source
from freshet_serving.models.streams.followed_tables import followed_tables
from freshet_serving.models.training.checkpoint import RunState
from freshet_serving.models.training.entities import with_entities
from freshet_serving.models.training.lineage import Wait, no_retry, retry_until_ready
from freshet_serving.models.training.newest_events import NewestEvents
from freshet_serving.models.training.newest_pairs import NewestPairs
from freshet_serving.models.training.package_shift import trained_scores
from freshet_serving.models.training.publication import publish_version
from freshet_serving.models.training.retrieval_trainer import RetrievalTrainer
from freshet_serving.models.training.trainer import Trainer
from freshet_serving.models.training.version_gate import HeldOut
from freshet_serving.models.training.version_retention import NOTE, removable, remove_version
from freshet_serving.models.training.version_review import (
    NEWEST_ROWS,
    NOTE_OF_GATE,
    REFUSED,
    VersionReview,
    newest_rows,
    refusal,
)
from freshet_serving.models.zoo.architectures import NEXT_ITEM
from freshet_serving.processor.errors import BadInput, Conflict, FreshetError
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.package import dense_sequences
from freshet_serving.processor.repository import ChangeLog, Keyring, VersionContents, VersionReader, open_repository

PRACTICE_ROWS, PRACTICE_NBYTES = 1 << 16, 64 << 20
"""Limits on the newest trained rows kept to check a lower precision: rows, and bytes of dense input."""
CHECK_S = 30.0


class FullVersions:
    """Full versions of one model in one repository."""

    def __init__(self, config: TrainConfig, source: Source, report: Reporter, wait: Wait = no_retry) -> None:
        """Open the repository; `wait` waits while it is unreachable (models.training.lineage)."""
        self._wait, self._checked_s = wait, -CHECK_S
        self._config, self._source, self._report = config, source, report
        self._repository = open_repository(config.publish.repository).with_keys(Keyring.of_writer(config.publish.key))

    def numbers(self) -> list[int]:
        return retry_until_ready(lambda: self._repository.versions(self._config.model.name), self._wait)

    def next_number(self) -> int:
        return max([*self.numbers(), *self.candidates()], default=0) + 1

    def candidates(self) -> list[int]:
        return retry_until_ready(lambda: self._repository.candidates(self._config.model.name), self._wait)

    def published(self, number: int | None) -> VersionReader:
        return retry_until_ready(lambda: self._repository.version(self._config.model.name, number), self._wait)

    def barred(self, number: int) -> str:
        """Return why servers do not choose a version (held or withdrawn); "" if they may."""
        model = self._config.model.name
        record = retry_until_ready(lambda: self._repository.barred(model, [number]), self._wait).get(number)
        return record.describe() if record is not None else ""

    def check_chosen(self, number: int) -> None:
        """Raise Conflict if a version is held or withdrawn; asks an object store at most every CHECK_S."""
        now_s = time.monotonic()
        if self._repository.remote and now_s - self._checked_s < CHECK_S:
            return
        self._checked_s = now_s
        if why := self.barred(number):
            name = self._config.model.name
            raise Conflict(
                f"version {number} of {name} is {why}: no server takes its deltas; run again to continue from what is "
                f"served, or `freshet version release {name} {number}`"
            )

    def newest(self) -> VersionContents | None:
        """Return the newest version that servers choose; None without versions."""
        if not self.numbers():
            return None
        version = self.published(None)
        change_log = ChangeLog.of(version)
        return VersionContents(version, change_log, change_log.history.head)

    def was_refused(self, saved: RunState | None, anew: bool) -> bool:
        """Return True if a checkpoint's version was refused and not released; Refused for a candidate unless `anew`."""
        if saved is None or not saved.refused or saved.version in self.numbers():
            return False
        if not anew and saved.version in self.candidates():
            raise refusal(self._repository.candidate(self._config.model.name, saved.version))
        return True

    def publish(self, trainer: Trainer, state: RunState, held_out: HeldOut, again: bool = False) -> Generation:
        """Publish the trainer's weights as version state.version; raise Refused, or Conflict if the number is taken.

        `again` says that an earlier attempt may have succeeded although its reply was lost.
        """
        generation = Generation(state.version, 0)
        if self._is_published(state, again):
            return generation
        exports = {name: table.export() for name, table in trainer.tables.items()}
        draft = replace(
            trainer.manifest,
            version=state.version,
            created_at=state.finished_at,
            event_time=list(state.event_time or ()),
            notes={**trainer.manifest.notes, **NOTE},
        )
        draft, records = with_entities(draft, self._config.entities, followed_tables(self._source))
        self._report.begin("compiling", 5)
        published = publish_version(
            self._repository,
            draft,
            {name: (e.keys, e.rows) for name, e in exports.items()} | records,
            trainer.dense.published(),
            progress=lambda done, total: self._report.advance(1),
            counts={name: e.counts for name, e in exports.items()},
            lower=self._lower(trainer, state.position),
            review=self._review(trainer, state, held_out),
        )
        for line in published.manifest.notes.get("compile", {}).get("refused", ()):
            self._report.note(line)
        verdict = published.manifest.notes.get(NOTE_OF_GATE, {})
        if verdict.get("verdict") == REFUSED:
            raise refusal(published)
        for line in (*verdict.get("reasons", ()), *verdict.get("reported", ())):
            self._report.note(f"gate: {line}")
        self._report.note(f"published {self._config.model.name} {generation}")
        return generation

    def _is_published(self, state: RunState, again: bool) -> bool:
        """Return True if an earlier attempt published this version; raise Refused if it was refused."""
        model, number = self._config.model.name, state.version
        refused = number in self.candidates()
        if not refused and not (again and number in self.numbers()):
            return False
        version = self._repository.candidate(model, number) if refused else self.published(number)
        if version.root_manifest.created_at != state.finished_at:
            raise Conflict(f"version {number} was published by another writer in the meantime")
        if refused:
            raise refusal(version)
        return True

    def _review(self, trainer: Trainer, state: RunState, held_out: HeldOut) -> VersionReview | None:
        """Return the version's gate; None if off."""
        config, bounds = self._config, self._config.publish.gate
        if bounds.mode == "off":
            return None
        rows = list[Batch]()
        events: NewestEvents | NewestPairs | None = None
        try:
            if isinstance(self._source, SequenceSource) and config.model.arch in NEXT_ITEM:
                events = NewestEvents(config, self._source.events, state.position)
            else:
                rows = newest_rows(self._source, state.position, NEWEST_ROWS, config.train.batch_rows)
                if isinstance(trainer, RetrievalTrainer):
                    items = trainer.recent.columns_of(np.arange(len(trainer.recent)))
                    events = NewestPairs(config, rows, items)
        except BadInput as error:
            self._report.note(f"gate: the newest rows cannot be read again, so scores are not compared: {error}")
        before = self.published(None) if self.numbers() else None
        trained = partial(trained_scores, trainer)
        return VersionReview(bounds, config.model.name, rows, state.position, held_out, before, trained, events)

    def remove_old(self, current: int) -> None:
        """Remove the versions beyond publish.keep_versions; `current` is the version being trained on."""
        model, keep = self._config.model.name, self._config.publish.keep_versions
        if not keep:
            return
        removed = []
        try:
            for number in removable(self._repository, model, keep, current):
                remove_version(self._repository, model, number)
                removed.append(str(number))
        except (OSError, FreshetError) as error:
            why = str(error) if isinstance(error, FreshetError) else error.strerror
            self._report.note(f"publish.keep_versions: could not remove older versions of {model}: {why}")
        if removed:
            self._report.note(f"removed {model} {', '.join(removed)}: publish.keep_versions is {keep}")

    def _lower(self, trainer: Trainer, stop: int) -> LowPrecisionOptions | None:
        """Return the requested lower precision, with the newest rows before `stop` to check it."""
        publish = self._config.publish
        if publish.precision == "float32":
            return None
        width = trainer.manifest.width + sum(s.width for s in dense_sequences(trainer.manifest.sequences))
        rows = min(PRACTICE_ROWS, max(1, PRACTICE_NBYTES // (4 * width)))
        try:
            batches = newest_rows(self._source, stop, rows, self._config.train.batch_rows)
        except BadInput as error:
            self._report.note(f"publishing float32 only: rows to check a lower precision cannot be read: {error}")
            return None
        parts = [trainer.dense_inputs(batch.columns) for batch in batches]
        inputs = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        labels = np.concatenate([batch.label.reshape(len(batch), -1)[:, 0] for batch in batches])
        practice = LabelledRows(inputs, labels, trainer.dense.arch.outputs[0])
        return LowPrecisionOptions(publish.precision, practice, Tolerance(publish.max_error, publish.max_auc_change))
