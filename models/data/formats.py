"""Data formats: the [data] section, the formats' names, and their detection from a path."""

from __future__ import annotations

import glob
from dataclasses import dataclass, field
from pathlib import Path

from freshet_serving.models.data.object_files import is_object_url, stored_files
from freshet_serving.models.data.source import LIST_SEPARATOR
from freshet_serving.processor.errors import BadInput, nearest, nearest_file
from freshet_serving.processor.options import option, required

FORMATS = ("parquet", "csv", "tfrecord", "criteo", "movielens")
TABLES = ("parquet", "csv", "tfrecord")
"""Formats with columns of the user's own, so [data] names the label, the time and the weight."""
STREAMS = ("redis", "kafka")
"""Formats that are streams of external servers, with columns of the user's own."""
SCHEMES = {"redis": "redis", "rediss": "redis", "kafka": "kafka"}
"""Stream formats by URL scheme."""
STORES = ("s3", "gs", "az")
"""Object stores listed in messages."""
TEXTS = ("csv", "criteo", "movielens")
"""Formats whose strings are UTF-8 after reading."""
CLOCKS = {"movielens": "timestamp"}
"""Time columns of formats that define their own."""
OUTCOMES = {"movielens": "rating"}
"""Columns of such formats that labels are made of: only histories of earlier events have them."""
PARQUET_SUFFIXES = (".parquet", ".pq")
PACKED = ("", ".gz", ".bz2", ".zst")
CSV_SUFFIXES = tuple(name + packed for name in (".csv", ".tsv") for packed in PACKED)
TFRECORD_SUFFIXES = (".tfrecord", ".tfrecords", ".tfrecord.gz", ".tfrecords.gz")
MOVIELENS_EVENTS = ("events.csv.gz", "events.csv", "ratings.dat")
"""Event files of a MovieLens folder; the first one that exists is read."""
LABEL = "label"
"""Label of a format that defines its own."""
RATED = tuple(f"rated{stars}" for stars in range(1, 6))
"""Labels of a MovieLens folder: rated with at least so many stars."""


@dataclass(frozen=True, slots=True)
class DataConfig:
    """The [data] section. Formats other than tables and streams define their own columns for label, time and weight.

    The URL of a stream may contain a password. `format` is never empty after load_config.
    """

    path: str = field(
        repr=False,
        metadata=required(
            "file, folder or glob, relative to the working folder; for a stream its URL, `redis://...` or `kafka://...`"
        ),
    )
    format: str = option(
        "",
        "`parquet`, `csv`, `tfrecord`, `criteo`, `movielens`, `redis`, `kafka`",
        empty="determined by the suffix or the URL",
    )
    label: str | tuple[str, ...] = option(
        "", "label column, 0 to 1; a list for several labels. Required for tables and streams"
    )
    time: str = option("", "column that the rows are sorted by; for tables and streams")
    weight: str = option("", "column with the weight of a row; for tables and streams")
    list_separator: str = option(
        LIST_SEPARATOR, "what separates the values of a list that is text, as in CSV; for tables and streams"
    )
    follow: bool = option(
        False,
        "keep reading rows as they arrive, without an end: [continuous-training.md](../how-to/continuous-training.md)",
    )

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels that the section names; () if the format defines its own."""
        return (self.label,) * bool(self.label) if isinstance(self.label, str) else self.label

    @property
    def shown(self) -> str:
        """The path without a URL's user names and passwords, for messages."""
        scheme, separator, rest = self.path.partition("://")
        return f"{scheme}://{rest.rpartition('@')[2]}" if separator else self.path

    @property
    def clock(self) -> str:
        """The column that holds the time; "" if there is none."""
        return self.time or CLOCKS.get(self.format, "")


def label_names(data: DataConfig) -> tuple[str, ...]:
    """Return the names of the labels, the main one first; LABEL if the format defines its own."""
    return data.labels or (LABEL,)


def _stored_names(path: str) -> list[str]:
    """Return the path itself if its suffix determines a format, else the names below it; BadInput for other URLs."""
    suffixes = (*PARQUET_SUFFIXES, *CSV_SUFFIXES, *TFRECORD_SUFFIXES)
    if not is_object_url(path):
        scheme = path.partition("://")[0]
        expected = ", ".join((*SCHEMES, *STORES))
        hint = nearest(scheme[:40], (*SCHEMES, *STORES))
        raise BadInput(f"data.path: expected a URL with scheme {expected}, got {scheme[:40]!r}{hint}")
    return [path] if path.lower().endswith(suffixes) else [file.name for file in stored_files(path)]


def nothing_there(path: str) -> str:
    return f"data.path: {path!r} does not exist{nearest_file(path)}"


def format_of(path: str) -> str:
    """Return the one format of a path, by its scheme, its suffix, or the files in its folder; else raise BadInput."""
    scheme, separator, _ = path.partition("://")
    if scheme in SCHEMES and separator:
        return SCHEMES[scheme]
    names = [path]
    if separator:
        names = _stored_names(path)
    elif Path(path).is_dir():
        if any((Path(path) / name).is_file() for name in MOVIELENS_EVENTS):
            return "movielens"
        names = [p.name for p in Path(path).rglob("*") if p.is_file()]
    suffixes = {"parquet": PARQUET_SUFFIXES, "csv": CSV_SUFFIXES, "tfrecord": TFRECORD_SUFFIXES}
    formats = {form for form, ends in suffixes.items() if any(n.lower().endswith(ends) for n in names)}
    if len(formats) != 1 and not (separator or glob.has_magic(path) or Path(path).exists()):
        raise BadInput(nothing_there(path))
    if len(formats) != 1:
        raise BadInput(
            f"data.format: expected one of {', '.join(FORMATS)}, because the path {path!r} does not determine it"
        )
    return formats.pop()
