"""Open the configured data for reading, in any format; a format's libraries are imported only on use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from freshet_serving.models.data.formats import STREAMS, DataConfig, format_of
from freshet_serving.models.data.object_files import is_object_url
from freshet_serving.models.data.sequence_columns import SequenceFeature, with_sequences
from freshet_serving.models.data.source import Field, Source, wanted_fields
from freshet_serving.processor.errors import BadInput


def default_features(form: str, path: str) -> dict[str, dict[str, Any]]:
    """Return sections [features.*] of a format with known columns (criteo, movielens); {} for any other."""
    if form == "criteo":
        from freshet_serving.models.data.criteo import default_features as criteo_features

        return criteo_features(path)
    if form == "movielens":
        from freshet_serving.models.data.movielens import default_features as movielens_features

        return movielens_features()
    return {}


def columns_of(data: DataConfig, names: Sequence[str]) -> list[Field]:
    """Return columns of a table with the kinds that its first file suggests. Raises BadInput."""
    from freshet_serving.models.data.tabular import infer_fields

    return infer_fields(data, names)


def table_columns(data: DataConfig) -> list[str]:
    from freshet_serving.models.data.tabular import infer_names

    return infer_names(data)


def open_source(data: DataConfig, features: Sequence[SequenceFeature], threads: int = 0) -> Source:
    """Open the configured data and select the columns that the features read; those of sequences are made of them.

    Raises BadInput, in one line; errors visible only in the rows (nulls, order) are raised by the source's batches.
    """
    if data.format in STREAMS or ("://" in data.path and not is_object_url(data.path)):
        raise BadInput("data.path: expected a file, folder or glob, got a URL; only freshet train reads streams")
    source = _open(replace(data, format=data.format or format_of(data.path)), wanted_fields(features), threads)
    return with_sequences(source, features)


def _open(data: DataConfig, fields: tuple[Field, ...], threads: int) -> Source:
    if data.format == "criteo":
        from freshet_serving.models.data.criteo import open_criteo

        return open_criteo(data.path, fields, threads)
    if data.format == "movielens":
        if is_object_url(data.path):
            raise BadInput("data.path: expected a local folder for format movielens, got an address in an object store")
        from freshet_serving.models.data.movielens import MovieLensSource

        return MovieLensSource(data.path, fields, data.labels)
    from freshet_serving.models.data.tabular import open_table

    return open_table(data, fields, threads)
