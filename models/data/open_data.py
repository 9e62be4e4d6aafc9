"""A configuration's data opened for reading, whatever their format; a format's libraries are imported only here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from models.data.formats import DataConfig, format_of, label_names
from models.data.source import Source, WantedColumn


def default_features(form: str, path: str) -> dict[str, dict[str, Any]]:
    """The sections [features.*] of a format whose columns are known (criteo, movielens); {} for any other."""
    if form == "criteo":
        from models.data.criteo import default_features as criteo_features

        return criteo_features(path)
    if form == "movielens":
        from models.data.movielens import default_features as movielens_features

        return movielens_features()
    return {}


def open_source(data: DataConfig, features: Sequence[WantedColumn]) -> Source:
    """Opens the configured data for reading the named features; imports the libraries only here.

    Raises BadInput in one line for a missing, empty or unreadable file and for columns that are missing or of
    a wrong type; what only the rows can show (nulls, order) is raised by the batches.
    """
    form = data.format or format_of(data.path)
    if form == "criteo":
        from models.data.criteo import open_criteo

        return open_criteo(data.path, features)
    if form == "movielens":
        from models.data.movielens import MovieLensSource

        return MovieLensSource(data.path, features, label_names(data) if data.label else ())
    from models.data.tabular import open_table

    label = data.label if isinstance(data.label, str) else "".join(data.label[:1])
    return open_table(data.path, form, label, data.time, features)
