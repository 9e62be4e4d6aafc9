"""[publish]: where versions go, and when deltas."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from models.config.toml_sections import section_of, want, want_between, want_one_of
from processor.errors import BadInput
from processor.package.rowtypes import ROW_TYPES

PRECISIONS = ("float32", "int8", "auto")


@dataclass(frozen=True, slots=True)
class PublishConfig:
    """[publish]. repository: a folder; table_dtype: what tables are published as, where their features do not say;
    full_rows: these many rows, in order, make the full version (0: all);
    delta_rows: then one delta every so many rows (0: none); delta_seconds: and at the latest so many seconds
    after the last one (0: rows alone decide). snapshot_after: after so many deltas the chain is folded into a
    snapshot (0: never). precision: what a server computes the network in: "float32", "int8" where that keeps within
    max_error and max_auc_change (compiler.building.calibrate) of the last rows that were learned, or "auto": whichever
    is faster of both."""

    repository: str = "repository"
    full_rows: int = 0
    delta_rows: int = 0
    delta_seconds: float = 0.0
    table_dtype: str = "float32"
    snapshot_after: int = 1000
    precision: str = "float32"
    max_error: float = 2e-3
    max_auc_change: float = 1e-4


def read_publish(raw: dict[str, Any]) -> PublishConfig:
    """[publish], checked; raises BadInput."""
    publish = section_of(PublishConfig, raw, "publish")
    want(publish.repository != "", "publish.repository", "a folder", "")
    want_one_of(publish.table_dtype, ROW_TYPES, "publish.table_dtype")
    want_between(publish.full_rows, 0, 2**63 - 1, "publish.full_rows")
    want_between(publish.delta_rows, 0, 2**63 - 1, "publish.delta_rows")
    want_between(publish.snapshot_after, 0, 2**63 - 1, "publish.snapshot_after")
    want_one_of(publish.precision, PRECISIONS, "publish.precision")
    for name in ("max_error", "max_auc_change"):
        want_between(getattr(publish, name), 0.0, 1.0, f"publish.{name}")
    if not (publish.delta_seconds >= 0 and math.isfinite(publish.delta_seconds)):
        raise BadInput(f"publish.delta_seconds: 0 or more wanted, got {publish.delta_seconds}")
    if publish.full_rows == 0 and (publish.delta_rows or publish.delta_seconds):
        key = "delta_rows" if publish.delta_rows else "delta_seconds"
        raise BadInput(f"publish.{key}: 0 wanted while publish.full_rows is 0 (all rows), got {getattr(publish, key)}")
    return publish
