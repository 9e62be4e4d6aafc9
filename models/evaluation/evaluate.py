"""`freshet evaluate`: one generation of a model on the rows of a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from freshet_serving.compiler.progress import Reporter
from freshet_serving.models.config.evaluate_section import GROUPED, EvaluateConfig
from freshet_serving.models.data.formats import DataConfig
from freshet_serving.models.data.open_data import open_source
from freshet_serving.models.data.source import Batch, Field, Source
from freshet_serving.models.evaluation.evaluation_metrics import EvaluationMetrics
from freshet_serving.models.evaluation.extra_columns import ExtraColumns
from freshet_serving.models.evaluation.generation_scorer import GenerationScorer
from freshet_serving.processor.columns import Column
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package import Input, Manifest

BATCH_ROWS = 16_384
KINDS = {"int64": ("id", "ids"), "float32": ("float", ""), "string": ("string", "strings")}
"""By an input's dtype: kind of a column with one value a row, and of one with lists."""


def evaluate(
    scorer: GenerationScorer,
    data: DataConfig,
    labels: Sequence[str],
    wanted: EvaluateConfig,
    reporter: Reporter,
    skip: int = 0,
    rows: int = 0,
) -> EvaluationMetrics:
    """Scores rows [skip, skip + rows) of the data (rows 0: all that follow) and measures them. labels: of the data, by
    name. The columns read are the inputs of the model, or its features where an input packs several.

    Raises BadInput where the data lack a column, or have no such rows.
    """
    manifest, outputs = scorer.description, scorer.outputs(labels)
    source = open_source(data, fields_of(manifest))
    names = [*wanted.by, *([wanted.group] if wanted.group else [])]
    extra = ExtraColumns(names, source, data, BATCH_ROWS)
    evaluation_metrics = EvaluationMetrics(labels, wanted.by, wanted.group)
    total = source.count_rows()
    left = None if total is None else max(0, total - skip)
    reporter.begin(f"scoring by {scorer.model} {scorer.generation}", min(rows or left, left) if left else rows or None)
    for batch in _batches(source, skip, rows):
        scores = scorer.score(inputs_of(manifest, batch), len(batch), outputs)
        evaluation_metrics.add(extra.of(batch), batch.label, scores, batch.weight)
        reporter.advance(len(batch))
    if not len(evaluation_metrics):
        raise BadInput(f"data: rows from row {skip:,} on wanted, got {total or 0:,} rows in all")
    return evaluation_metrics


def fields_of(manifest: Manifest) -> list[Field]:
    """The columns that rows for a model have; raises BadInput for an input that no column can be."""
    return [field for spec in manifest.inputs for field in _fields(manifest, spec)]


def inputs_of(manifest: Manifest, batch: Batch) -> dict[str, Column]:
    """A model's inputs out of a batch of fields_of()."""
    made: dict[str, Column] = {}
    for spec in manifest.inputs:
        columns = [batch.columns[field.name] for field in _fields(manifest, spec)]
        made[spec.name] = np.stack(columns, 1) if spec.columns else columns[0]  # type: ignore[assignment, arg-type]
    return made


def user_column(manifest: Manifest) -> str:
    """The column that AUC is grouped by where nobody says: the first feature of side "user" that has one id or string a
    row; "" where there is none."""
    read = {field.name for field in fields_of(manifest)}
    return next((f.name for f in manifest.features if f.side == "user" and f.kind in GROUPED and f.name in read), "")


def _fields(manifest: Manifest, spec: Input) -> list[Field]:
    one, lists = KINDS[spec.dtype]
    if not spec.columns:
        kind = lists if spec.ragged else "seconds" if _is_clock(manifest, spec) else one
        if not kind:
            raise BadInput(f"input {spec.name[:64]!r}: lists of numbers cannot be read from a table")
        return [Field(spec.name, kind)]
    packed = {f.column: f.name for f in manifest.features if f.input == spec.name and f.column >= 0}
    if sorted(packed) != list(range(spec.columns)) or spec.dtype == "string":
        raise BadInput(
            f"input {spec.name[:64]!r}: {spec.columns} columns a row, which no columns of a table are known for"
        )
    return [Field(packed[i], one) for i in range(spec.columns)]


def _is_clock(manifest: Manifest, spec: Input) -> bool:
    """Whether an input is a time that hours or weekdays are made of: its column may hold timestamps, as in training."""
    clocks = [t for t in manifest.transforms if t.inputs == [spec.name] and t.op == "floor_divide"]
    return spec.dtype == "int64" and bool(clocks)


def _batches(source: Source, skip: int, rows: int) -> Iterator[Batch]:
    for batch in source.batches(BATCH_ROWS, skip):
        if rows and batch.start >= skip + rows:
            return
        yield batch.slice(0, min(len(batch), skip + rows - batch.start)) if rows else batch
