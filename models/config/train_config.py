"""Read and validate the training file of `freshet train --config FILE.toml`: what to read, learn and publish.

Sections: the fields of TrainConfig; docs/how-to/train.md shows them. Every error is one line that names section.key,
the expected and the actual value, and for a misspelling the nearest valid key.
"""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from freshet_serving.compiler.dense.expression import parse as parse_expression
from freshet_serving.models.config.data_section import read_data
from freshet_serving.models.config.entity_sections import EntityConfig, read_entities
from freshet_serving.models.config.evaluate_section import EvaluateConfig, read_evaluate
from freshet_serving.models.config.feature_sections import FeatureConfig, read_features
from freshet_serving.models.config.guard_section import GuardConfig, read_guard
from freshet_serving.models.config.history_features import (
    check_history_kinds,
    history_columns,
    network_columns,
    with_history_features,
)
from freshet_serving.models.config.memorised_features import memorised_tables, with_memorised_features
from freshet_serving.models.config.model_section import ModelConfig, NetworkConfig, read_model
from freshet_serving.models.config.network_rules import check_fusion, check_network
from freshet_serving.models.config.next_item_rules import check_next_item
from freshet_serving.models.config.online_sections import read_online_features, with_stored_histories
from freshet_serving.models.config.publish_section import PublishConfig, read_publish
from freshet_serving.models.config.retrieval_rules import check_retrieval, learns_to_retrieve, tower_keys
from freshet_serving.models.config.sequence_defaults import with_sequence_defaults
from freshet_serving.models.config.sequence_sections import read_sequences, with_item_sides
from freshet_serving.models.config.table_sections import TableConfig, read_tables
from freshet_serving.models.config.toml_sections import about, section_field
from freshet_serving.models.config.train_section import TrainSettings, read_train
from freshet_serving.models.config.user_table_sections import (
    UserTableConfig,
    bound_user_tables,
    read_user_tables,
    with_user_columns,
)
from freshet_serving.models.data.formats import DataConfig, label_names
from freshet_serving.models.data.sequence_columns import SequenceConfig
from freshet_serving.models.zoo.architectures import NEXT_ITEM
from freshet_serving.processor.errors import BadInput, nearest, nearest_file
from freshet_serving.processor.features.input_lookup import parse_stores
from freshet_serving.processor.options import type_name

_MAX_CONFIG_NBYTES = 4 << 20
NAMED_SECTIONS = ("tables", "online_features", "online_stores", "sequences", "user_table")
"""Sections of subsections whose names have no dots of their own."""


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """The whole file. Each field describes its section; the keys are described in the section's class."""

    model: ModelConfig = field(
        metadata=about(
            "The options of the network are set here too: see [architectures.md](architectures.md#options), or your "
            "own function's parameters."
        )
    )
    data: DataConfig = field(metadata=about("What to read, and how: [data.md](data.md)."))
    features: list[FeatureConfig] = field(
        metadata=about(
            "One section per feature, named after its column. Formats with known columns need none.", named="COLUMN"
        )
    )
    train: TrainSettings = section_field(
        TrainSettings(),
        "How rows and network are trained. Optimizer, rates and batch size that are left out are chosen by "
        "features and rows, and printed.",
    )
    publish: PublishConfig = section_field(
        PublishConfig(),
        "Where to publish versions, and when deltas. One of the two rules for deltas is enough; a followed "
        "stream without any uses `delta_seconds = 10`.",
    )
    fusion: Mapping[str, str] = section_field(
        {},
        "Additional outputs, each a name and an expression over the network's outputs and float "
        'features: `final = "score ** 0.9 * price"`. A delta may change the numbers in it '
        "([graph-optimization.md](../concepts/graph-optimization.md)).",
    )
    # Of the extension's type, FeatureGroup, which is imported only if there is a section.
    online_features: Mapping[str, Any] = section_field(
        {},
        "Inputs that a request may leave out, because a server looks them up by a key, in Feast's Redis or in "
        "plain hashes. The keys of a section: "
        "[online_features.md](../extensions/online_features.md#what-to-read-part-of-the-model).",
        named="NAME",
    )
    # Of the extension's type, OnlineStoreSettings.
    online_stores: Mapping[str, Any] = section_field(
        {},
        "Where the stores are that [sequences.NAME] writes histories to; `freshet train --online-store NAME=URL` "
        "says it as well. The keys are those of a server's file: "
        "[online_features.md](../extensions/online_features.md#where-it-is-part-of-the-server).",
        named="NAME",
    )
    sequences: Mapping[str, SequenceConfig] = section_field(
        {},
        "Histories of users, one section each, for the networks that read them "
        "([sequences.md](../how-to/sequences.md)). A request sends each column as `NAME.COLUMN`.",
        named="NAME",
    )
    tables: Mapping[str, TableConfig] = section_field(
        {},
        "Settings of a single table, explained in [table-memory.md](../how-to/table-memory.md). Also `optimizer`, "
        "`learning_rate` and the optimizer's keys of [train], for this table alone; another `optimizer` without a "
        "`learning_rate` uses that of [train]; adam and adamw use a tenth of what the others use.",
        named="NAME",
    )
    evaluate: EvaluateConfig = section_field(
        EvaluateConfig(),
        "What to measure on held-out rows, and with `freshet evaluate` ([evaluation.md](../how-to/evaluation.md)).",
    )
    entities: list[EntityConfig] = section_field(
        [],
        "Features by key, which become part of the package: a request may leave them out "
        "([entities.md](../how-to/entities.md)).",
        named="NAME",
    )
    user_table: list[UserTableConfig] = section_field(
        [],
        "Columns of users that are joined to the data, as features of the user "
        "([entities.md](../how-to/entities.md#a-table-of-users)).",
        named="NAME",
    )
    guard: GuardConfig = section_field(
        GuardConfig(),
        "When a followed run holds back its deltas "
        "([continuous-training.md](../how-to/continuous-training.md#the-guard)).",
    )

    @property
    def shown(self) -> TrainConfig:
        """The configuration without the passwords of URLs, for journals."""
        entities = [dataclasses.replace(entity, path=entity.data.shown) for entity in self.entities]
        data = dataclasses.replace(self.data, path=self.data.shown)
        return dataclasses.replace(self, data=data, entities=entities, online_stores={})

    @property
    def joined(self) -> list[EntityConfig | UserTableConfig]:
        return [*self.entities, *self.user_table]

    @property
    def network(self) -> NetworkConfig:
        model = self.model
        wide, counts = ([f.name for f in self.features if getattr(f, kind)] for kind in ("wide", "counts"))
        keys = tower_keys(self.features, self.entities) if learns_to_retrieve(model) else None
        return NetworkConfig(
            model.options, label_names(self.data), model.loss, model.label_weights, tuple(wide), tuple(counts), keys
        )


@dataclass(frozen=True, slots=True)
class StartOptions:
    """Options of how a run starts, given on the command line; raises BadInput if they do not fit together.

    Attributes:
        replay: Learn rows of undone deltas again instead of skipping them.
        new_version: First publish the existing weights as a new full version.
        from_scratch: Only with new_version: train new weights for it, as for the first version.
        repeat: Folder of a followed run's checkpoints; new weights learn what it says in the same steps.
    """

    replay: bool = False
    new_version: bool = False
    from_scratch: bool = False
    repeat: Path | None = None

    def __post_init__(self) -> None:
        if self.from_scratch and not self.new_version:
            raise BadInput("--from-scratch: only allowed with --new-version")
        if self.repeat is not None and (self.replay or self.new_version):
            raise BadInput("--repeat: not allowed with --replay or --new-version")


def load_config(path: str | Path, overrides: Sequence[str] = (), publishes: bool = True) -> TrainConfig:
    """Read and validate a configuration file. Raises BadInput, in one line.

    Reads the data only if format or [features] are left out and must be derived from the path or the first line.

    Args:
        overrides: "section.key=value" each, as if the file said so; the value in TOML.
        publishes: The rules of [publish] for deltas must suit a run without --follow.
    """
    name = Path(path).name
    try:
        with open(path, "rb") as file:
            raw = file.read(_MAX_CONFIG_NBYTES + 1)
        if len(raw) > _MAX_CONFIG_NBYTES:
            raise BadInput(f"{name}: expected at most {_MAX_CONFIG_NBYTES} bytes")
        text = tomllib.loads(raw.decode())
    except OSError as error:
        raise BadInput(f"{name}: cannot read the file: {error.strerror}{nearest_file(path)}") from None
    except UnicodeDecodeError:
        kind = "a Parquet file" if raw.startswith(b"PAR1") else "bytes that are not UTF-8"
        raise BadInput(f"{name}: expected a TOML file, got {kind}") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        hint = "; text must be in quotes" if str(error).startswith("Invalid value") else ""
        raise BadInput(f"{name}: not valid TOML: {error}{hint}") from None
    for override in overrides:
        _override(text, override)
    return parse_config(text, publishes, Path(path).parent)


def _override(raw: dict[str, Any], override: str) -> None:
    """Apply "section.key=value" to a parsed file; unknown keys are left for parse_config to refuse."""
    path, equals, text = override.partition("=")
    section, *names, key = path.strip().split(".") if "." in path else ("", "")
    if not (equals and section and key):
        raise BadInput(f"--set: expected section.key=value, got {override[:80]!r}")
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError):
        parsed = {}
    if list(parsed) != ["value"]:
        raise BadInput(
            f"--set {path.strip()}: expected a TOML value, with a string in quotes"
            f" ('{path.strip()}={json.dumps(text.strip()[:40])}'), got {text.strip()[:80]!r}"
        )
    at = raw.setdefault(section, {})
    if section == "features":
        # A column's name may contain dots.
        names = [".".join(names)]
        if not isinstance(at, dict) or names[0] not in at:
            columns = ", ".join(at) or "none, as the file has no [features]"
            raise BadInput(f"--set {path.strip()}: expected a feature of the file: {columns}")
        at = at[names[0]]
    elif section == "online_stores" and isinstance(at, dict) and isinstance(at.get(key), dict):
        # An address beside the options of its section.
        at, key = at[key], "url"
    elif section in NAMED_SECTIONS and names and isinstance(at, dict):
        at = at.setdefault(".".join(names), {})
    elif names:
        raise BadInput(f"--set: expected section.key=value, got {override[:80]!r}")
    if isinstance(at, dict):
        at[key] = parsed["value"]


def parse_config(raw: dict[str, Any], publishes: bool = True, folder: Path = Path()) -> TrainConfig:
    """Validate the sections of a parsed file, as load_config does; relative paths of registries start in `folder`."""
    sections = [f.name for f in dataclasses.fields(TrainConfig)]
    for section, value in raw.items():
        if section not in sections:
            raise BadInput(
                f"{section}: unknown section; expected one of {', '.join(sections)}{nearest(section, sections)}"
            )
        if not isinstance(value, dict):
            raise BadInput(f"{section}: expected a section [{section}], got {type_name(value)}")
    for section in ("model", "data"):
        if section not in raw:
            raise BadInput(f"{section}: expected a section [{section}], got none")
    data = read_data(raw["data"])
    user_tables = read_user_tables(raw.get("user_table", {}), data)
    raw = with_user_columns(raw, user_tables, data)
    raw = with_sequence_defaults(raw, label_names(data))
    model = read_model(raw["model"], label_names(data))
    train = read_train(raw.get("train", {}))
    publish = read_publish(raw.get("publish", {}), data.follow or not publishes)
    histories = history_columns(raw.get("sequences", {}))
    features = read_features(raw.get("features", {}), data, histories)
    features = with_history_features(features, raw.get("features", {}), histories)
    features = with_memorised_features(features, raw.get("features", {}), model.arch, label_names(data), model.loss)
    entities = read_entities(raw.get("entities", {}), features, data)
    sequences, columns = read_sequences(raw.get("sequences", {}), features, data)
    check_history_kinds(features, columns)
    features = with_item_sides(features, columns, raw.get("features", {}))
    online = read_online_features(raw.get("online_features", {}), features, folder, columns)
    user_tables = bound_user_tables(user_tables, features, online, entities)
    online = with_stored_histories(online, sequences, columns, features, model.name)
    stores = {store.name: store for store in parse_stores(raw.get("online_stores", {}))}
    tables = read_tables(raw.get("tables", {}), [*features, *columns], train)
    tables = memorised_tables(features, tables, raw.get("tables", {}), train)
    evaluate = read_evaluate(raw.get("evaluate", {}), features)
    guard = read_guard(raw.get("guard", {}))
    fusion = _fusion(raw.get("fusion", {}))
    features += network_columns(columns, features, model.arch)
    check_network(model.arch, label_names(data), features)
    check_fusion(model.arch, label_names(data), features, fusion)
    if model.arch in NEXT_ITEM:
        check_next_item(model, data, features, sequences, train, publish, tables, online, raw)
    if learns_to_retrieve(model):
        check_retrieval(model, features, entities, train, tables, raw)
    return TrainConfig(
        model, data, features, train, publish, fusion, online, stores, sequences, tables, evaluate, entities,
        user_tables, guard,
    )  # fmt: skip


def _fusion(raw: dict[str, Any]) -> dict[str, str]:
    for output, text in raw.items():
        if not isinstance(text, str):
            raise BadInput(f"fusion.{output}: expected an expression in quotes, got {type_name(text)}")
        parse_expression(text, f"fusion.{output}")
    return raw
