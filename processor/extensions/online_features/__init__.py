"""Online features: what a request's keys lead to in a feature store's Redis (Feast's layout, or plain hashes).

section          groups of features as a manifest holds them
feature_lookup   fills the inputs that a request leaves out
reader           reads the features of a request's rows: deadline, defaults
feature_counters  counts the lookups of one version
online_columns   columns as a read returns them: each value with the outcome of looking it up
group_sections   makes groups of features of a training configuration
store_settings   where a store is and how to log in to it: the server's part
opening          opens the stores that a server is configured with
online_store     the interface of a store: fields of hashes by key, within a deadline
damaged_values   says in the log which values cannot be read
redis_store      a store in Redis: a server, a cluster, a master named by sentinels
redis_connector  connections to it: TLS, login, sentinels, nodes
redis_writer     pipelined writes to it, by one thread
list_writer      writes lists of entities as lookups read them
entity_keys      keys of entities, for who reads and who writes
entity_cache     cache of what was read, and one read for all that ask at the same time
feast_keys       keys and fields under which Feast stores features
feast_values     Feast's serialized values
feast_registry   feature views and services of Feast's registry.db
plain_values     values of plain hashes
protobuf_fields  the fields of a protobuf message, without its definition
value_types      types of features, and the column that each becomes
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from freshet_serving.processor.ports import Extension, InputStores, Section

__all__ = ["section"]


def _section() -> Section:
    from freshet_serving.processor.extensions.online_features.section import SECTION

    return SECTION


def _stores() -> InputStores:
    from freshet_serving.processor.extensions.online_features.opening import STORES

    return STORES


def _group(name: str, subsection: Mapping[str, Any], folder: Path) -> Any:
    from freshet_serving.processor.extensions.online_features.group_sections import parse_group

    return parse_group(name, subsection, folder)


REQUIRES = ("redis",)
EXTENSION = Extension(
    sections={"online_features": _section},
    input_stores={"online_stores": _stores},
    training_sections={"online_features": _group},
)
