"""Read and validate [data], the location of the rows (models.data.formats.DataConfig)."""

from __future__ import annotations

import dataclasses
from typing import Any

from freshet_serving.models.config.toml_sections import parse_section, require, require_one_of
from freshet_serving.models.data.formats import FORMATS, RATED, STREAMS, TABLES, DataConfig, format_of
from freshet_serving.models.data.source import LIST_SEPARATOR
from freshet_serving.processor.errors import BadInput

MAX_SEPARATOR = 8


def read_data(raw: dict[str, Any]) -> DataConfig:
    """Read [data] and fill in its format; raise BadInput if it is invalid."""
    data = parse_section(DataConfig, raw, "data")
    require(data.path != "", "data.path", "a file, folder or glob", "")
    if data.format:
        require_one_of(data.format, (*FORMATS, *STREAMS), "data.format")
    else:
        folder = data.follow and "://" not in data.path
        data = dataclasses.replace(data, format="parquet" if folder else format_of(data.path))
    table, labels = data.format in (*TABLES, *STREAMS), data.labels
    if data.follow and data.format not in ("parquet", *STREAMS):
        raise BadInput(f"data.follow: expected a folder of Parquet files, Redis or Kafka, got format {data.format}")
    if data.format == "movielens":
        for label in labels:
            require_one_of(label, RATED, "data.label")
    for role in ("label", "time", "weight"):
        if not table and getattr(data, role) and (role, data.format) != ("label", "movielens"):
            tables = f"{', '.join(TABLES[:-1])} and {TABLES[-1]}"
            raise BadInput(f"data.{role}: allowed only for {tables}; format {data.format} has its own")
    if table and not (labels and all(labels)):
        raise BadInput("data.label: expected the name of the label column, got nothing")
    separator = data.list_separator
    require(0 < len(separator) <= MAX_SEPARATOR, "data.list_separator", f"1 to {MAX_SEPARATOR} characters", separator)
    require(table or separator == LIST_SEPARATOR, "data.list_separator", "it for tables and streams only", separator)
    require(len(set(labels)) == len(labels), "data.label", "different columns", ", ".join(labels))
    for role in ("time", "weight"):
        column = getattr(data, role)
        require(not column or column not in labels, f"data.{role}", "a column other than data.label", column)
    require(not data.weight or data.weight != data.time, "data.weight", "a column other than data.time", data.weight)
    return data
