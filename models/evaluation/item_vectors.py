"""Write an output of a generation for every item of a table to Parquet, for nearest-neighbour search.

Implements `freshet vectors`. The first row with an id defines the item. Only inputs that features of side "item" derive
from are read; the others are constant, since an output of the item tower does not depend on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from freshet_serving.compiler.progress import Reporter
from freshet_serving.models.data.entity_table import KINDS
from freshet_serving.models.data.formats import DataConfig
from freshet_serving.models.data.open_data import open_source
from freshet_serving.models.data.source import Field
from freshet_serving.models.evaluation.generation_scorer import REQUEST_ROWS, GenerationScorer
from freshet_serving.processor.errors import BadInput, nearest
from freshet_serving.processor.extras import needed
from freshet_serving.processor.features.input_reader import blank_inputs
from freshet_serving.processor.package import Input, Manifest, atomic_file

VECTOR = "vector"


def write_vectors(
    scorer: GenerationScorer, data: DataConfig, output: str, id_name: str, path: Path, reporter: Reporter
) -> int:
    """Write one row per item in data order, its id and `vector`, a list of float32; return how many. Appears whole.

    Without id_name the id is the only item column with one id or string a row. Raises BadInput.
    """
    with needed("a Parquet file"):
        import pyarrow as pa
        import pyarrow.parquet as pq
    manifest = scorer.description
    columns = next((o.columns for o in manifest.outputs if o.name == output), 0)
    if not columns:
        names = [o.name for o in manifest.outputs]
        raise BadInput(f"output: expected one of {', '.join(names)}, got {output[:64]!r}{nearest(output, names)}")
    inputs = item_inputs(manifest)
    fields = [Field(spec.name, KINDS[spec.dtype, spec.ragged], f"column {spec.name!r}") for spec in inputs]
    key = _key(fields, id_name)
    source = open_source(data, fields)
    schema = pa.schema([(key.name, pa.int64() if key.kind == "id" else pa.string()), (VECTOR, pa.list_(pa.float32()))])
    # Of one row for all items.
    others = {name: column for name, column in blank_inputs(manifest).items() if manifest.input(name) not in inputs}
    written, seen = 0, set[Any]()
    reporter.begin(f"{output} by {scorer.model} {scorer.generation}", source.count_rows())
    try:
        with atomic_file(path) as file, pq.ParquetWriter(file, schema) as writer:
            for batch in source.batches(REQUEST_ROWS):
                ids: list[Any] = batch.columns[key.name].tolist()  # type: ignore[union-attr]
                first = [i for i, key_ in enumerate(ids) if not (key_ in seen or seen.add(key_))]  # type: ignore[func-returns-value]
                if first:
                    rows = scorer.score(others | batch.columns, len(batch), [output]).reshape(-1, columns)[first]
                    splits = pa.array(np.arange(len(first) + 1, dtype=np.int32) * columns)
                    vectors = pa.ListArray.from_arrays(splits, pa.array(rows.reshape(-1)))
                    writer.write(pa.table([pa.array([ids[i] for i in first], schema.types[0]), vectors], schema))
                written += len(first)
                reporter.advance(len(batch))
    except OSError as error:
        raise BadInput(f"out: cannot write {path.name!r}: {error.strerror}") from None
    return written


def item_inputs(manifest: Manifest) -> list[Input]:
    """Return the inputs that features of side "item" derive from, directly or through transforms. Raises BadInput."""
    names = manifest.origins(f.input for f in manifest.features if f.side == "item")
    inputs = [spec for spec in manifest.inputs if spec.name in names]
    if not inputs:
        raise BadInput(f"model: {manifest.model!r} has no features of side 'item'")
    for spec in inputs:
        if spec.columns or (spec.dtype, spec.ragged) not in KINDS:
            raise BadInput(f"input {spec.name[:64]!r}: expected one value or list a row, got {spec.columns} columns")
    return inputs


def _key(fields: Sequence[Field], name: str) -> Field:
    keys = [field for field in fields if field.kind in ("id", "string")]
    chosen = [field for field in keys if field.name == name] if name else keys
    if len(chosen) != 1:
        names = ", ".join(field.name for field in keys) or "none: the items have no id"
        raise BadInput(f"id: expected the column that identifies items ({names}), got {name[:64] or 'nothing'}")
    return chosen[0]
