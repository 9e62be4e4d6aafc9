"""Read and validate [publish]: where versions are published, and when deltas are."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from freshet_serving.models.config.gate_section import GateConfig, read_gate
from freshet_serving.models.config.toml_sections import (
    parse_section,
    require,
    require_between,
    require_one_of,
    section_field,
)
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.options import option
from freshet_serving.processor.package import ROW_TYPES
from freshet_serving.processor.repository import is_address, storage_of

PRECISIONS = ("float32", "int8", "auto")
DELTAS = ("delta_rows", "delta_seconds")
LEAST_KEPT = 2
"""Fewest versions that are kept: the newest, and the one that servers use until they have loaded it."""
FOLLOWED_SECONDS = 10.0
"""Longest time between deltas of a followed stream without another rule."""


@dataclass(frozen=True, slots=True)
class PublishConfig:
    """The section [publish].

    Attributes:
        precision: "int8" where it keeps within max_error and max_auc_change on the last learned rows
            (compiler.building.calibrate); "auto": the faster of both.
        keep_versions: Versions that a label or a kept policy names are kept as well.
        trainer_folder: "" if models.streams.open_rows chooses it.
    """

    repository: str = option(
        "repository",
        "the folder of models, or an address such as `s3://bucket/prefix` "
        "([object_stores.md](../extensions/object_stores.md))",
    )
    full_rows: int = option(
        0, "train the full version on this many rows, in order; 0: all, of a followed stream those that exist"
    )
    delta_rows: int = option(0, "then publish a delta after every this many rows; 0: never")
    delta_seconds: float = option(0.0, "publish a delta at the latest this many seconds after the last one; 0: never")
    table_dtype: str = option(
        "float32", "row type in which tables are published: `float32`, `float16`, `bfloat16`, `int8`"
    )
    snapshot_after: int = option(1000, "write a snapshot after this many deltas; 0: never")
    dense_every: int = option(
        0,
        "publish the network's weights with every this many deltas only, others have rows alone "
        "([continuous-training.md](../how-to/continuous-training.md)); 0, 1: with each",
    )
    version_rows: int = option(0, "publish a new full version after this many rows of deltas; 0: never")
    version_seconds: float = option(0.0, "publish a new full version after this many seconds; 0: never")
    keep_versions: int = option(
        0,
        "number of full versions of this model to keep; older ones are deleted "
        "([continuous-training.md](../how-to/continuous-training.md)); 0: all",
    )
    precision: str = option(
        "float32",
        "precision in which servers compute the network: `float32`, `int8`, `auto` "
        "([backends.md](../how-to/backends.md#precision))",
    )
    max_error: float = option(2e-3, "largest error of scores in int8")
    max_auc_change: float = option(1e-4, "largest change of the AUC in int8")
    trainer_folder: str = option(
        "",
        "folder of the trainer's own files: checkpoints, stream journal, run reports",
        empty="`repository`; if that is an address, `trainer/<bucket>/<prefix>`",
    )
    key: str = option(
        "",
        "private key that signs what is published ([access.md](../how-to/access.md#sign-models-and-deltas)); "
        "empty: `FRESHET_KEY`; without either, versions are not signed",
    )
    gate: GateConfig = section_field(
        GateConfig(),
        "When a full version is refused before it is served "
        "([continuous-training.md](../how-to/continuous-training.md#the-gate)). "
        '`gate = "warn"` in [publish] sets `mode` alone.',
    )


def read_publish(raw: dict[str, Any], follow: bool = False) -> PublishConfig:
    """Read and validate [publish]. Raises BadInput.

    Args:
        follow: The data is an endless stream: full_rows 0 means the rows present when the run begins, and deltas are
            always published.
    """
    keys = {key: value for key, value in raw.items() if key != "gate"}
    publish = parse_section(PublishConfig, keys, "publish", gate=read_gate(raw.get("gate", {})))
    require(publish.repository != "", "publish.repository", "a folder", "")
    if is_address(publish.repository):
        storage_of(publish.repository, "publish.repository")
    folder = publish.trainer_folder
    require(not is_address(folder), "publish.trainer_folder", "a folder of this machine's disk", folder[:200])
    require_one_of(publish.table_dtype, ROW_TYPES, "publish.table_dtype")
    require_between(publish.full_rows, 0, 2**63 - 1, "publish.full_rows")
    require_between(publish.delta_rows, 0, 2**63 - 1, "publish.delta_rows")
    require_between(publish.snapshot_after, 0, 2**63 - 1, "publish.snapshot_after")
    require_one_of(publish.precision, PRECISIONS, "publish.precision")
    for name in ("max_error", "max_auc_change"):
        require_between(getattr(publish, name), 0.0, 1.0, f"publish.{name}")
    require_between(publish.dense_every, 0, 2**63 - 1, "publish.dense_every")
    require_between(publish.version_rows, 0, 2**63 - 1, "publish.version_rows")
    keep = publish.keep_versions
    require(keep == 0 or LEAST_KEPT <= keep < 2**63, "publish.keep_versions", f"0, or {LEAST_KEPT} or more", keep)
    for name in ("delta_seconds", "version_seconds"):
        if not (getattr(publish, name) >= 0 and math.isfinite(getattr(publish, name))):
            raise BadInput(f"publish.{name}: expected 0 or more, got {getattr(publish, name)}")
    rules = [(key, getattr(publish, key)) for key in DELTAS if getattr(publish, key)]
    if follow and not rules:
        return dataclasses.replace(publish, delta_seconds=FOLLOWED_SECONDS)
    if (publish.version_rows or publish.version_seconds) and not rules:
        raise BadInput(f"publish.version_rows, version_seconds: only with one of {', '.join(DELTAS)}")
    if publish.dense_every > 1 and not rules:
        raise BadInput(f"publish.dense_every: only with one of {', '.join(DELTAS)}, got {publish.dense_every}")
    if publish.full_rows == 0 and not follow and rules:
        key, value = rules[0]
        raise BadInput(f"publish.{key}: expected 0 while publish.full_rows is 0 (all rows), got {value}")
    return publish
