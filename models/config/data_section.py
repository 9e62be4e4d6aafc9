"""[data]: where the rows lie (models.data.formats.DataConfig), checked."""

from __future__ import annotations

import dataclasses
from typing import Any

from models.config.toml_sections import section_of, want, want_one_of
from models.data.formats import FORMATS, RATED, DataConfig, format_of, label_names
from processor.errors import BadInput


def read_data(raw: dict[str, Any]) -> DataConfig:
    """[data] with its format filled in; raises BadInput."""
    data = section_of(DataConfig, raw, "data")
    want(data.path != "", "data.path", "a file, folder or glob", "")
    if data.format:
        want_one_of(data.format, FORMATS, "data.format")
    else:
        data = dataclasses.replace(data, format=format_of(data.path))
    table = data.format in ("parquet", "csv")
    if table and not data.label:
        raise BadInput("data.label: the name of the column with the labels wanted, got nothing")
    if data.format == "movielens" and data.label:
        for label in label_names(data):
            want_one_of(label, RATED, "data.label")
    for role in ("label", "time"):
        if not table and getattr(data, role) and (role, data.format) != ("label", "movielens"):
            raise BadInput(f"data.{role}: wanted only for parquet and csv; format {data.format} has its own")
    labels = label_names(data)
    want(len(set(labels)) == len(labels), "data.label", "different columns", ", ".join(labels))
    want(not data.time or data.time not in labels, "data.time", "a column other than data.label", data.time)
    return data
