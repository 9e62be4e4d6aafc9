"""Collect the figures of a full version before it is committed, and those of the version before, for its gate.

The new version is read from the folder where it was written, and the one before with its deltas, so both are judged as
servers have them: compiled network, precision, packed tables. Both score the newest rows trained on, or rank what came
next in the newest events of a log.

Cost: both versions are loaded, one after the other, and score NEWEST_ROWS; their tables are mapped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freshet_serving.compiler.building.packaging import Review
from freshet_serving.models.config.gate_section import GateConfig
from freshet_serving.models.data.source import Batch, Source, rows_between
from freshet_serving.models.evaluation.evaluate import fields_of, inputs_of
from freshet_serving.models.evaluation.generation_scorer import GenerationScorer
from freshet_serving.models.evaluation.quality import ScoredRows
from freshet_serving.models.evaluation.row_layers import RowLayers
from freshet_serving.models.publishing.key_ids import as_ids
from freshet_serving.models.training.newest_events import NewestEvents, RankedEvents
from freshet_serving.models.training.newest_pairs import NewestPairs
from freshet_serving.models.training.package_shift import REPORTED_SHIFT, compared, package_shift
from freshet_serving.models.training.repeated_rows import repeated_share
from freshet_serving.models.training.version_gate import (
    AUC,
    LEAST_ROWS,
    HeldOut,
    Judgement,
    ServedVersion,
    Verdict,
    VersionFigures,
    moves_from_notes,
)
from freshet_serving.models.training.window_guard import auc_error
from freshet_serving.processor.columns import Column, Ragged, Strings
from freshet_serving.processor.errors import BadInput, FreshetError, NotReady, Refused
from freshet_serving.processor.package import Manifest
from freshet_serving.processor.repository import ChangeLog, VersionContents, VersionReader
from freshet_serving.processor.watching.input_histogram import NOTE_OF_INPUTS, input_histograms

NEWEST_ROWS = 1 << 16
NOTE_OF_GATE = "gate"
"""Key of the notes in a manifest."""
PASSED, WARNED, REFUSED = "passed", "warned", "refused"
MOST_REASONS = 20

Floats = NDArray[np.float32]


class VersionReview:
    """The review of one new version."""

    def __init__(
        self,
        bounds: GateConfig,
        model: str,
        rows: Sequence[Batch],
        trained_rows: int,
        held_out: HeldOut,
        before: VersionReader | None,
        trained: Callable[[Sequence[Batch]], Floats] | None = None,
        events: NewestEvents | NewestPairs | None = None,
    ) -> None:
        """Prepare the review of the newest rows trained on, or of events of a network that ranks items.

        trained() scores rows by the weights that the package was made of; None to compare nothing.
        """
        self._trained, self._events = trained, events
        self._bounds, self._model, self._rows, self._before = bounds, model, rows, before
        self._trained_rows, self._held_out = trained_rows, held_out
        labels = [batch.label.reshape(len(batch), -1)[:, 0] for batch in rows]
        self._labels: Floats = np.concatenate(labels) if labels else np.empty(0, np.float32)
        self.verdict = Verdict()

    def __call__(self, version: VersionReader) -> Review:
        """Judge a version; return what its notes say of it."""
        manifest, labels = version.manifest, self._labels
        scores, ranked, failure = labels, None, ""
        try:
            ranked = self._ranked(version)
            if self._events is None and _readable(manifest, self._rows):
                scores = self._scores(version)
            else:
                labels = scores = labels[:0]
        except NotReady:
            raise
        except FreshetError as error:
            labels, failure = labels[:0], f"it cannot score rows: {error}"
        constant, values = _columns_of(manifest, self._rows)
        figures = VersionFigures(
            self._trained_rows,
            float(labels.mean()) if len(labels) else float("nan"),
            self._held_out,
            ranked.coverage if ranked is not None and not self._rows else self._coverage(version),
            values,
            constant,
            round(repeated_share(self._rows), 6),
        )
        before = self._served() if self._before is not None else None
        judgement = Judgement(self._bounds, labels, scores[: len(labels)], figures, _features(manifest), before, ranked)
        self.verdict = verdict = judgement.verdict()
        if failure:
            verdict.refused.insert(0, failure)
        self._compare_with_weights(scores[: len(labels)])
        state = PASSED if not verdict.refused else REFUSED if self._bounds.mode == "on" else WARNED
        notes = {
            "verdict": state,
            "reasons": verdict.refused[:MOST_REASONS],
            "reported": verdict.reported[:MOST_REASONS],
            "unjudged": verdict.unjudged[:MOST_REASONS],
            "figures": figures.to_notes(),
            # A released candidate was good: its differences are usual. Nobody vouches for a warning.
            "moves": verdict.moves if state != WARNED else before.moves if before is not None else {},
        }
        return Review({NOTE_OF_GATE: notes, NOTE_OF_INPUTS: self._histograms(manifest)}, state == REFUSED)

    def _histograms(self, manifest: Manifest) -> dict[str, Any]:
        """Return histograms of the newest rows' inputs, for servers to measure drift by."""
        rows = self._rows if _readable(manifest, self._rows) else ()
        return input_histograms([inputs_of(manifest, batch) for batch in rows])

    def _served(self) -> ServedVersion:
        """Return the figures of the version before; without scores if it cannot be read."""
        assert self._before is not None
        manifest = self._before.manifest
        notes = manifest.notes.get(NOTE_OF_GATE)
        notes = notes if isinstance(notes, dict) else {}
        scores, ranked, coverage = None, None, dict[str, float]()
        try:
            if (ranked := self._ranked(self._before)) is not None:
                coverage = ranked.coverage
            if _readable(manifest, self._rows):
                coverage = self._coverage(self._before)
                scores = self._scores(self._before) if self._events is None else None
        except (FreshetError, OSError):
            # Damaged, or with inputs that the data no longer have: the gate says that it cannot compare.
            scores = ranked = None
        figures = VersionFigures.from_notes(notes.get("figures"))
        moves = moves_from_notes(notes.get("moves"))
        return ServedVersion(manifest.version, _features(manifest), figures, moves, scores, coverage, ranked)

    def _ranked(self, version: VersionReader) -> RankedEvents | None:
        return self._events.ranked(version, self._model) if self._events is not None else None

    def _compare_with_weights(self, scores: Floats) -> None:
        """Report a package whose scores are not those of the weights that it was made of."""
        if self._trained is None or not len(scores):
            return
        rows = compared(self._rows)
        trained = self._trained(rows)
        shift = package_shift(trained, scores[-len(trained) :])
        if abs(shift) > REPORTED_SHIFT:
            self.verdict.reported.append(
                f"the package's scores differ from those of the weights that it was made of: odds {math.exp(shift):.3g}"
                f" times as high over {len(trained):,} rows"
            )

    def _scores(self, version: VersionReader) -> Floats:
        """Score the rows with the first label's output."""
        with GenerationScorer(version, self._model) as scorer:
            manifest = scorer.description
            outputs = scorer.outputs(self._label_names(manifest))
            parts = [scorer.score(inputs_of(manifest, batch), len(batch), outputs[:1]) for batch in self._rows]
        return np.concatenate(parts)

    def _label_names(self, manifest: Manifest) -> list[str]:
        noted = manifest.notes.get("labels")
        return list(noted)[:1] if isinstance(noted, dict) and noted else ["label"]

    def _coverage(self, version: VersionReader) -> dict[str, float]:
        """Return the share of ids with a row that is not all 0, by feature: it reveals a lost table."""
        shares: dict[str, float] = {}
        if not self._rows:
            return shares
        change_log = ChangeLog.of(version)
        contents = VersionContents(version, change_log, change_log.history.head)
        for feature in version.manifest.features:
            ids = _ids(version.manifest, feature.name, feature.table, self._rows)
            if ids is None or not len(ids):
                continue
            distinct, counts = np.unique(ids, return_counts=True)
            present, rows = RowLayers.of(contents, feature.table).rows(distinct)
            alive = present & rows.any(axis=1)
            shares[feature.name] = round(float(counts[alive].sum() / counts.sum()), 6)
        return shares


def refusal(candidate: VersionReader) -> Refused:
    """Return the error that explains a refusal and says what to do."""
    manifest = candidate.root_manifest
    notes = manifest.notes.get(NOTE_OF_GATE)
    reasons = notes.get("reasons") if isinstance(notes, dict) else None
    first, *others = map(str, reasons if isinstance(reasons, list) and reasons else ["no reason is noted"])
    more = f" (and {len(others)} more)" if others else ""
    which = f"{manifest.model} {manifest.version}"
    return Refused(
        f"version {manifest.version} of {manifest.model!r} was refused by the gate: {first[:500]}{more}; it is a"
        f" candidate and not served: `freshet version release {which}` serves it, `freshet version reject {which}`"
        " removes it"
    )


def newest_rows(source: Source, stop: int, rows: int, batch_rows: int) -> list[Batch]:
    """Read the newest `rows` rows before row `stop`; raise BadInput if they cannot be read."""
    return list(rows_between(source, batch_rows, max(0, stop - rows), stop))


def held_out_auc(scored: ScoredRows) -> HeldOut:
    """Return the AUC of held-out rows."""
    counts = scored.tally.counts()
    positive, weight = float(counts.positive.sum()), float(counts.weight.sum())
    auc = scored.auc()
    return HeldOut(AUC, auc, auc_error(auc, positive, weight - positive))


def _readable(manifest: Manifest, rows: Sequence[Batch]) -> bool:
    """Return True if there are rows with all columns that a version reads."""
    try:
        return bool(rows) and {field.name for field in fields_of(manifest)} <= rows[0].columns.keys()
    except BadInput:
        return False


def _features(manifest: Manifest) -> frozenset[str]:
    return frozenset(feature.name for feature in manifest.features)


def _column(rows: Sequence[Batch], name: str) -> list[Column]:
    """Return the values of a column, lists flattened; none if the data have no such column."""
    columns = [batch.columns[name] for batch in rows if name in batch.columns]
    return [column.values if isinstance(column, Ragged) else column for column in columns]


def _ids(manifest: Manifest, name: str, table: str, rows: Sequence[Batch]) -> NDArray[np.int64] | None:
    """Return the ids of a column as its table has them; None for a derived feature."""
    if not table or not any(spec.name == name and spec.dtype != "float32" for spec in manifest.inputs):
        return None
    try:
        return np.concatenate([as_ids(manifest, table, values) for values in _column(rows, name)])
    except (FreshetError, ValueError):
        return None


def _columns_of(manifest: Manifest, rows: Sequence[Batch]) -> tuple[list[str], dict[str, tuple[float, float]]]:
    """Return the features with one value in all rows; and median and spread of numbers by feature."""
    constant, values = list[str](), dict[str, tuple[float, float]]()
    for feature in manifest.features:
        column = _column(rows, feature.name)
        if not column:
            continue
        if all(isinstance(part, np.ndarray) and part.dtype.kind == "f" for part in column):
            numbers = np.concatenate(column).astype(np.float64)  # type: ignore[arg-type]
            numbers = numbers[np.isfinite(numbers)]
            if len(numbers) >= LEAST_ROWS:
                low, median, high = np.quantile(numbers, (0.1, 0.5, 0.9))
                values[feature.name] = float(median), float(high - low)
            constant_values = not len(numbers) or numbers.min() == numbers.max()
        else:
            words: set[object] = set()
            for part in column:
                words.update(part.tolist() if isinstance(part, (Strings, np.ndarray)) else ())
                if len(words) > 1:
                    break
            constant_values = len(words) < 2
        if constant_values:
            constant.append(feature.name)
    return constant, values
