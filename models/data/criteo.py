"""Read Criteo's display advertising logs: 13 counts I1..I13 and 26 categories C1..C26 a row, in time order.

Rows have no time column. Two layouts, distinguished by their first line:
- the challenge's own: TAB between fields, no header: label, 13 integers, 26 hashes of 8 hex digits; empty = missing.
- recoded: CSV with header `Id,Label,I1,..,C26`; the categories are indices into a vocabulary.
Missing counts are NaN, missing hashes the empty string. Either may be gzipped; a folder or glob is read in name order.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from typing import Any

from freshet_serving.models.data.files import CsvFile, find_files
from freshet_serving.models.data.object_files import DataPath, open_bytes
from freshet_serving.models.data.source import Field, Schema, choose
from freshet_serving.models.data.tabular import TableSource
from freshet_serving.processor.errors import BadInput

COUNTS = [f"I{i}" for i in range(1, 14)]
CATEGORIES = [f"C{i}" for i in range(1, 27)]

_MAX_LINE_NBYTES = 1 << 16


def open_criteo(path: str, wanted: Sequence[Field] = (), threads: int = 0) -> TableSource:
    """Open files of either layout; all 39 columns if none are named. Raises BadInput for any other layout."""
    paths = find_files(path)
    recoded = is_recoded(paths[0])
    fields = [Field(name, "float") for name in COUNTS]
    fields += [Field(name, "id" if recoded else "string") for name in CATEGORIES]
    label = "Label" if recoded else "label"
    schema = Schema(choose(fields, wanted), label)
    if recoded:
        return TableSource([CsvFile(p) for p in paths], schema, csv=True, threads=threads)
    names = [label, *COUNTS, *CATEGORIES]
    return TableSource([CsvFile(p, "\t", names, quoted=False) for p in paths], schema, csv=True, threads=threads)


def default_features(path: str) -> dict[str, dict[str, Any]]:
    """Return sections [features.*] for a file of either layout: every column, counts under log1p."""
    kind = "id" if is_recoded(find_files(path)[0]) else "string"
    sections: dict[str, dict[str, Any]] = {name: {"kind": "float", "transform": "log1p"} for name in COUNTS}
    return sections | {name: {"kind": kind, "dim": 16} for name in CATEGORIES}


def is_recoded(path: DataPath) -> bool:
    """Return True for the recoded CSV and False for the challenge's layout; raise BadInput for any other first line."""
    line = _first_line(path)
    if line.split(",")[:3] == ["Id", "Label", "I1"]:
        return True
    fields = len(line.split("\t"))
    if fields == 1 + len(COUNTS) + len(CATEGORIES):
        return False
    hint = " (the test set has no label; use the training set)" if fields == 39 else ""
    raise BadInput(
        f"{path.name}: expected 40 fields between TABs, or a CSV header Id,Label,I1,..., got {fields} field(s){hint}"
    )


def _first_line(path: DataPath) -> str:
    try:
        with open_bytes(path) as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            line = (gzip.GzipFile(fileobj=raw) if packed else raw).readline(_MAX_LINE_NBYTES)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or "damaged gzip"
        raise BadInput(f"{path.name}: cannot be read as a Criteo file: {reason}") from None
    return line.decode("utf-8", "replace").rstrip("\r\n")
