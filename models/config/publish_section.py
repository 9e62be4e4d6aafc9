"""[publish]: where versions go, and when deltas."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from freshet_serving.models.config.toml_sections import parse_section, require, require_between, require_one_of
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package.rowtypes import ROW_TYPES
from freshet_serving.processor.repository.mirror.object_store import address_parts, is_address

PRECISIONS = ("float32", "int8", "auto")
DELTAS = ("delta_rows", "delta_seconds", "delta_movement")
LEAST_KEPT = 2
"""Versions that stay, whatever the file says: the newest, and the one that servers are on until they have loaded it."""
FOLLOWED_SECONDS = 10.0
"""A delta at the latest so long after the last one, where a followed stream has no other rule."""


@dataclass(frozen=True, slots=True)
class PublishConfig:
    """[publish]. repository: a folder, or an address in an object store; table_dtype: what tables are published as,
    where their features do not say; full_rows: these many rows, in order, make the full version (0: all);
    delta_rows: then one delta every so many rows (0: none); delta_seconds: and at the latest so many seconds after
    the last one (0: never); delta_movement: and once the network's weights have moved by this share of their norm
    (0: never). snapshot_after: after so many deltas the chain is folded into a snapshot (0: never). version_rows,
    version_seconds: a new full version of the weights as they are after so many rows of deltas, or seconds (0:
    never); keep_versions: so many of the newest stay, and what labels or a kept policy name (0: all). precision:
    what a server computes the network in: "float32", "int8" where that keeps within max_error and max_auc_change
    (compiler.building.calibrate) of the last rows that were learned, or "auto": whichever is faster of both.
    trainer_folder: where the trainer keeps what is its own: checkpoints, the journal of a stream, reports of runs
    ("": chosen, models.streams.open_rows). key: the file of the
    private key that signs what is published; "" for FRESHET_KEY, or nobody."""

    repository: str = "repository"
    full_rows: int = 0
    delta_rows: int = 0
    delta_seconds: float = 0.0
    table_dtype: str = "float32"
    snapshot_after: int = 1000
    delta_movement: float = 0.0
    version_rows: int = 0
    version_seconds: float = 0.0
    keep_versions: int = 0
    precision: str = "float32"
    max_error: float = 2e-3
    max_auc_change: float = 1e-4
    trainer_folder: str = ""
    key: str = ""


def read_publish(raw: dict[str, Any], follow: bool = False) -> PublishConfig:
    """[publish], checked; raises BadInput. follow: the data go on without an end, so full_rows 0 are those that are
    there when the run begins, and there are deltas in any case."""
    publish = parse_section(PublishConfig, raw, "publish")
    require(publish.repository != "", "publish.repository", "a folder", "")
    if is_address(publish.repository):
        address_parts(publish.repository, "publish.repository")
    own = publish.trainer_folder
    require(not is_address(own), "publish.trainer_folder", "a folder of this machine's disk", own[:200])
    require_one_of(publish.table_dtype, ROW_TYPES, "publish.table_dtype")
    require_between(publish.full_rows, 0, 2**63 - 1, "publish.full_rows")
    require_between(publish.delta_rows, 0, 2**63 - 1, "publish.delta_rows")
    require_between(publish.snapshot_after, 0, 2**63 - 1, "publish.snapshot_after")
    require_one_of(publish.precision, PRECISIONS, "publish.precision")
    for name in ("max_error", "max_auc_change"):
        require_between(getattr(publish, name), 0.0, 1.0, f"publish.{name}")
    require_between(publish.delta_movement, 0.0, 1.0, "publish.delta_movement")
    require_between(publish.version_rows, 0, 2**63 - 1, "publish.version_rows")
    keep = publish.keep_versions
    require(keep == 0 or LEAST_KEPT <= keep < 2**63, "publish.keep_versions", f"0, or {LEAST_KEPT} or more", keep)
    for name in ("delta_seconds", "version_seconds"):
        if not (getattr(publish, name) >= 0 and math.isfinite(getattr(publish, name))):
            raise BadInput(f"publish.{name}: 0 or more wanted, got {getattr(publish, name)}")
    if follow and not _given(publish):
        return dataclasses.replace(publish, delta_seconds=FOLLOWED_SECONDS)
    if (publish.version_rows or publish.version_seconds) and not _given(publish):
        raise BadInput(f"publish.version_rows, version_seconds: only with one of {', '.join(DELTAS)}")
    if publish.full_rows == 0 and not follow and (given := _given(publish)):
        key, value = given[0]
        raise BadInput(f"publish.{key}: 0 wanted while publish.full_rows is 0 (all rows), got {value}")
    return publish


def _given(publish: PublishConfig) -> list[tuple[str, float]]:
    """The rules by which there are deltas."""
    return [(key, getattr(publish, key)) for key in DELTAS if getattr(publish, key)]
