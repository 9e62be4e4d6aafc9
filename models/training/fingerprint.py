"""Compute which settings of a training file shape tables and network, and so which checkpoints it can continue."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from freshet_serving.models.config.feature_sections import FeatureConfig
from freshet_serving.models.config.model_section import LOG_LOSS
from freshet_serving.models.config.retrieval_rules import learns_to_retrieve
from freshet_serving.models.config.table_sections import TableConfig
from freshet_serving.models.config.train_config import TrainConfig
from freshet_serving.processor.package import HASHES

ADMISSION = ("admit_after", "admit_by", "admit_ids")
HASHING = ("hash", "hash_rows", "hash_codes")

MADE_OF = (
    *("from_", "boundaries", "cross", "buckets", "unsigned", "column_kind", "sequence", "padding"),
    *("take", "where", "decay", "equal", "window", "wide", "counts"),
)
SOFTMAX = "softmax"
"""What a checkpoint calls the loss of towers that learn to retrieve."""
SERVED = ("side", "dtype", "unsigned")
"""Settings of features that only requests and published files depend on."""


def fingerprint(config: TrainConfig) -> str:
    """Return a digest of settings(): files with the same digest continue each other's checkpoints."""
    features = [replace(f, side="context", dtype="", unsigned=False) for f in config.features]
    train = config.train
    parts: list[Any] = [_model(config), [_feature(f) for f in features], train.optimizer, train.known_seed]
    if len(config.data.labels) > 1:
        parts.append(list(config.data.labels))
    if config.fusion:
        parts.append(dict(config.fusion))
    if tables := _tables(config):
        parts.append(tables)
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def settings(config: TrainConfig) -> dict[str, Any]:
    """Return the settings behind the fingerprint, by section.key, as after a JSON round trip."""
    by_key: dict[str, Any] = {f"model.{key}": value for key, value in _model(config).items()}
    for feature in config.features:
        values = {key: value for key, value in _feature(feature).items() if key != "name" and key not in SERVED}
        by_key |= {f"features.{feature.name}.{key}": value for key, value in values.items()}
    by_key |= {"features": [f.name for f in config.features]}
    by_key |= {"train.optimizer": config.train.optimizer, "train.seed": config.train.known_seed}
    if len(config.data.labels) > 1:
        by_key |= {"data.label": list(config.data.labels)}
    by_key |= {f"fusion.{output}": text for output, text in config.fusion.items()}
    for name, values in _tables(config).items():
        by_key |= {f"tables.{name}.{key}": value for key, value in values.items()}
    as_json: dict[str, Any] = json.loads(json.dumps(by_key))
    return as_json


def _model(config: TrainConfig) -> dict[str, Any]:
    model = config.model
    values: dict[str, Any] = {"name": model.name, "arch": model.arch, "hidden": (), **model.options}
    if not values.get("popularity", True):
        # As in checkpoints older than counts.
        values = {key: value for key, value in values.items() if key not in ("popularity", "successors")}
    # As in checkpoints older than other losses.
    loss = SOFTMAX if learns_to_retrieve(model) else "" if model.loss == LOG_LOSS else model.loss
    learned = {"loss": loss, "label_weights": model.label_weights}
    return values | {key: value for key, value in learned.items() if value}


def _feature(feature: FeatureConfig) -> dict[str, Any]:
    """Return a feature's settings; derivation from other columns only if set, as in older checkpoints."""
    whole = asdict(feature)
    unset = {key for key in MADE_OF if not whole[key]} - (set() if feature.padding is None else {"padding"})
    values = {key.rstrip("_"): value for key, value in whole.items() if key not in unset}
    # As in checkpoints older than these settings.
    if feature.sequence is not None and not feature.sequence.floats:
        del values["sequence"]["floats"]
    if feature.sequence is not None:
        unset_keys = [key for key in ("padding", "guest") if getattr(feature.sequence, key) is None]
        unset_keys += [] if feature.sequence.ttl_s else ["ttl_s"]
        # Where events are stored changes nothing that is learned.
        for key in (*unset_keys, "memory_mb", "store"):
            del values["sequence"][key]
    return values


def _tables(config: TrainConfig) -> dict[str, dict[str, Any]]:
    """Return each table's non-default settings that decide which ids have rows and how many slots."""
    tables = {}
    for name, table in sorted(config.tables.items()):
        keys = (*ADMISSION, *HASHING) if table.hash in HASHES else ADMISSION
        changed_settings = {
            key: getattr(table, key) for key in keys if getattr(table, key) != getattr(TableConfig(), key)
        }
        optimizer = table.train.get("optimizer", config.train.optimizer)
        if optimizer != config.train.optimizer:
            changed_settings["optimizer"] = optimizer
        if changed_settings:
            tables[name] = changed_settings
    return tables


def changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Describe the differences between two settings(); `before` is {} for a checkpoint older than settings."""
    if not before:
        return "[model], [features], [fusion], train.optimizer or train.seed has changed"
    changes, columns = [], (set(before.get("features", ())), set(now.get("features", ())))
    for name in sorted(columns[0] ^ columns[1]):
        changes.append(f"features.{name} {'was removed' if name in columns[0] else 'was added'}")
    for key in [*before, *(key for key in now if key not in before)]:
        column = key.removeprefix("features.").rpartition(".")[0] if key.startswith("features.") else ""
        if before.get(key) == now.get(key) or (column and not (column in columns[0] and column in columns[1])):
            continue
        if key == "features":
            if columns[0] == columns[1]:
                changes.append("the order of the features has changed")
            continue
        changes += _differences(key, before, now)
    return ", ".join(dict.fromkeys(changes))


def _differences(key: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return what differs in a setting; for a feature's sequence, by its keys, so that others' lines are equal."""
    old, new = before.get(key), now.get(key)
    if not (key.endswith(".sequence") and isinstance(old, dict) and isinstance(new, dict)):
        return [f"{key} was {_shown(before, key)} and is {_shown(now, key)}"]
    keys = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return [f"sequences.{new['name']}.{name} was {_shown(old, name)} and is {_shown(new, name)}" for name in keys]


def _shown(settings: Mapping[str, Any], key: str) -> str:
    return repr(settings[key])[:80] if key in settings else "not set"
