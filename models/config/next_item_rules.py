"""Check a training file whose network learns which item comes next."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from freshet_serving.models.config import guard_section
from freshet_serving.models.config.feature_sections import FeatureConfig
from freshet_serving.models.config.model_section import ModelConfig
from freshet_serving.models.config.publish_section import PublishConfig
from freshet_serving.models.config.table_sections import TableConfig
from freshet_serving.models.config.toml_sections import require, require_one_of
from freshet_serving.models.config.train_section import TrainSettings
from freshet_serving.models.config.user_table_sections import ONLINE
from freshet_serving.models.data.formats import DataConfig, label_names
from freshet_serving.models.data.sequence_columns import SequenceConfig
from freshet_serving.models.zoo.architectures import NEXT_ITEM
from freshet_serving.processor.errors import BadInput

OF_LABELS = {
    "gate": ("auc_drop", "loss_rise", "calibration"),
    "evaluate": ("by", "group"),
    "guard": guard_section.OF_LABELS,
}
"""Keys about the scores of labelled rows."""


def check_next_item(
    model: ModelConfig,
    data: DataConfig,
    features: Sequence[FeatureConfig],
    sequences: Mapping[str, SequenceConfig],
    train: TrainSettings,
    publish: PublishConfig,
    tables: Mapping[str, TableConfig],
    online: Mapping[str, Any],
    named: Mapping[str, Any],
) -> None:
    """Raise BadInput unless the file, whose sections are `named`, describes a next-item network."""
    of = f"for {model.arch}"
    require(len(sequences) == 1, "sequences", f"one section [sequences.<name>] {of}", ", ".join(sequences) or "none")
    (sequence,) = sequences.values()
    where = f"sequences.{sequence.name}"
    require(bool(sequence.from_events), f"{where}.from_events", f"the column of the user {of}", "")
    require(
        sequence.ties == "file",
        f"{where}.ties",
        f"'file' {of}, because each event follows the one before it",
        "exclude",
    )
    require(sequence.keep == "newest", f"{where}.keep", f"'newest' {of}", sequence.keep)
    plain = [f for f in features if f.sequence is None]
    for f in plain:
        made = "cross" if f.cross else "from" if f.window else ""
        require(not made, f"features.{f.name}.{made}", f"no feature that is made of others {of}: leave it out", f.name)
    items = [f for f in plain if f.side == "item"]
    shared = {f.table for f in features if f.sequence is not None}
    if len(items) != 1 or items[0].kind not in ("id", "string") or items[0].table not in shared:
        raise BadInput(
            f"features: expected one feature of side item {of}, an id or string whose table is in {where}.tables,"
            f" got {', '.join(f.name for f in items) or 'none'}{_remedy(plain, shared)}"
        )
    allowed = {sequence.from_events, sequence.where, *sequence.columns.values(), *sequence.floats.values()}
    for f in plain:
        if f is not items[0] and f.column not in allowed:
            raise BadInput(
                f"features.{f.name}: expected only columns that {where} reads {of}, got {f.column!r}: leave it out, or"
                f" name it in {where}.columns"
            )
    for name in named.get("tables", {}):
        require_one_of(name, sorted(shared - {""}), f"tables.{name}", f", tables that {where} reads {of}")
    table = tables.get(items[0].table, TableConfig())
    for key in ("memory_mb", "hash", "hash_rows"):
        if getattr(table, key) != getattr(TableConfig(), key):
            raise BadInput(f"tables.{items[0].table}.{key}: not {of}: every item has a row of its own, in memory")
    require(len(label_names(data)) == 1, "data.label", f"at most one label {of}", ", ".join(label_names(data)))
    for key, value in (("loss", model.loss), ("label_weights", model.label_weights)):
        require(not value, f"model.{key}", f"nothing {of}, which learns no labels", str(value))
    require(train.patience == 0, "train.patience", f"0 {of}", str(train.patience))
    timed = train.schedule == "constant" or train.schedule_steps > 0
    require(timed, "train.schedule_steps", f"a number of steps {of}", "0")
    sent = [items[0].column, *(f.name for f in features if f.sequence is not None)]
    for name, group in online.items():
        by_requests = named.get("user_table", {}).get(name, {}).get("serve") != ONLINE
        require(by_requests, f"user_table.{name}.serve", f"'requests' {of}, which reads histories alone", ONLINE)
        for feature in group.features:
            require_one_of(feature.input, sent, f"online_features.{name}.features", f", inputs {of}")
    check_judges(named, of)
    require(publish.precision == "float32", "publish.precision", f"'float32' {of}", publish.precision)


def check_one_process(arch: str, processes: int) -> None:
    """Raise BadInput if several processes are to train a network that one process trains."""
    allowed = processes == 1 or arch not in NEXT_ITEM
    require(allowed, "--processes", "1 for a next-item network, which is trained by one process", processes)


def check_judges(named: Mapping[str, Any], of: str) -> None:
    """Raise BadInput for a setting about the scores of labelled rows, which would have no effect `of` a network."""
    gate = named.get("publish", {}).get("gate", {})
    unread = [f"publish.gate.{key}" for key in OF_LABELS["gate"] if isinstance(gate, dict) and key in gate]
    unread += [f"evaluate.{key}" for key in OF_LABELS["evaluate"] if key in named.get("evaluate", {})]
    unread += [f"guard.{key}" for key in OF_LABELS["guard"] if key in named.get("guard", {})]
    if unread:
        raise BadInput(f"{unread[0]}: expected nothing {of}, which has no scores of labelled rows: leave it out")


def _remedy(features: Sequence[FeatureConfig], shared: Collection[str]) -> str:
    """Say how a feature that reads one of the sequence's tables becomes the item."""
    for f in features:
        if f.table in shared and f.side != "item":
            return f'; set side = "item" in [features.{f.name}]'
    return ""
