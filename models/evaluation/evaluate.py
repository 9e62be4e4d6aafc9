"""Evaluate one generation of a model on the rows of a table, for `freshet evaluate`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from freshet_serving.compiler.progress import Reporter
from freshet_serving.models.config.evaluate_section import GROUPED, EvaluateConfig
from freshet_serving.models.config.train_config import TrainConfig
from freshet_serving.models.data.formats import DataConfig
from freshet_serving.models.data.joined_rows import joined_rows
from freshet_serving.models.data.open_data import open_source
from freshet_serving.models.data.source import Batch, Field, Source, rows_between, wanted_fields
from freshet_serving.models.evaluation.counting_baselines import MOST_ROWS, CountingBaselines
from freshet_serving.models.evaluation.evaluation_metrics import EvaluationMetrics
from freshet_serving.models.evaluation.extra_columns import ExtraColumns
from freshet_serving.models.evaluation.generation_scorer import GenerationScorer
from freshet_serving.processor.columns import Column
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package import Input, Manifest

BATCH_ROWS = 16_384
KINDS = {"int64": ("id", "ids"), "float32": ("float", "floats"), "string": ("string", "strings")}
"""By input dtype: the column kind for one value a row, and the kind for lists."""


def evaluate(
    scorer: GenerationScorer,
    data: DataConfig,
    labels: Sequence[str],
    wanted: EvaluateConfig,
    reporter: Reporter,
    skip: int = 0,
    rows: int = 0,
    trained: TrainConfig | None = None,
) -> EvaluationMetrics:
    """Score rows [skip, skip + rows) of the data, all with rows = 0, and measure them. Raises BadInput.

    The columns read are the inputs of the model, or its features where an input packs several. With a training file,
    entities' columns and histories are made of the data as in training; rows before `skip` enter the histories, and
    baselines count the newest of them.

    Args:
        labels: Names of the data's labels, the main one first.
        wanted: Columns to slice and to group by.
    """
    manifest, outputs = scorer.description, scorer.outputs(labels)
    source = open_rows_of(manifest, data, trained)
    names = [*wanted.by, *([wanted.group] if wanted.group else [])]
    extra = ExtraColumns(names, source, data, BATCH_ROWS)
    baselines = _counted(source, skip, trained)
    evaluation_metrics = EvaluationMetrics(labels, wanted.by, wanted.group, wanted.top, baselines)
    total = source.count_rows()
    left = None if total is None else max(0, total - skip)
    reporter.begin(f"scoring by {scorer.model} {scorer.generation}", min(rows or left, left) if left else rows or None)
    for batch in rows_between(source, BATCH_ROWS, skip, skip + rows if rows else None):
        scores = scorer.score(inputs_of(manifest, batch), len(batch), outputs)
        evaluation_metrics.add(extra.of(batch), batch.label, scores, batch.weight)
        if baselines is not None:
            baselines.score(batch)
        reporter.advance(len(batch))
    if not len(evaluation_metrics):
        raise BadInput(f"data: expected more than {skip:,} rows, got {total or 0:,}")
    return evaluation_metrics


def _counted(source: Source, skip: int, trained: TrainConfig | None) -> CountingBaselines | None:
    """Return baselines that have counted the rows before `skip`; None without such rows or a training file."""
    if trained is None or not skip:
        return None
    baselines = CountingBaselines(trained.features)
    for batch in rows_between(source, BATCH_ROWS, max(0, skip - MOST_ROWS), skip) if baselines.possible else ():
        baselines.learned(batch)
    return baselines


def open_rows_of(manifest: Manifest, data: DataConfig, trained: TrainConfig | None) -> Source:
    """Open the data with a column for each input of a model, as its training file, if known, makes them."""
    fields = fields_of(manifest)
    if trained is None or not (trained.sequences or trained.joined):
        return open_source(data, fields)
    named = {f.name for f in trained.features if f.sequence} | {f.name for f in wanted_fields(trained.features)}
    more = [field for field in fields if field.name not in named]
    return joined_rows(lambda fields: open_source(data, fields), trained.features, trained.joined, more)


def fields_of(manifest: Manifest) -> list[Field]:
    """Return the columns that rows for a model have; raise BadInput if none can represent an input."""
    return [field for spec in manifest.inputs for field in _fields(manifest, spec)]


def inputs_of(manifest: Manifest, batch: Batch) -> dict[str, Column]:
    """Build a model's inputs, by name, from rows with the columns of `fields_of(manifest)`."""
    inputs: dict[str, Column] = {}
    for spec in manifest.inputs:
        columns = [batch.columns[field.name] for field in _fields(manifest, spec)]
        inputs[spec.name] = np.stack(columns, 1) if spec.columns else columns[0]  # type: ignore[assignment, arg-type]
    return inputs


def user_column(manifest: Manifest) -> str:
    """Return the default column to group AUC by: the first of side "user" with one id or string a row, or ""."""
    read = {field.name for field in fields_of(manifest)}
    return next((f.name for f in manifest.features if f.side == "user" and f.kind in GROUPED and f.name in read), "")


def _fields(manifest: Manifest, spec: Input) -> list[Field]:
    single, lists = KINDS[spec.dtype]
    if not spec.columns:
        kind = lists if spec.ragged else "seconds" if _is_clock(manifest, spec) else single
        return [Field(spec.name, kind)]
    packed = {f.column: f.name for f in manifest.features if f.input == spec.name and f.column >= 0}
    if sorted(packed) != list(range(spec.columns)) or spec.dtype == "string":
        raise BadInput(f"input {spec.name[:64]!r}: no table columns are known for its {spec.columns} columns a row")
    return [Field(packed[i], single) for i in range(spec.columns)]


def _is_clock(manifest: Manifest, spec: Input) -> bool:
    """Return whether hours or weekdays derive from an input: its column may then hold timestamps, as in training."""
    clocks = [t for t in manifest.transforms if t.inputs == [spec.name] and t.op == "floor_divide"]
    return spec.dtype == "int64" and bool(clocks)
