"""Run Feast's own server on the users and items of bench_features, in Feast's own environment.

    python feast_server_side.py FOLDER REDIS_PORT HTTP_PORT    make a feature repository, write it to Redis, serve it

FOLDER has the features as bench_feast_server.py wrote them: users.json and items.json, columns by name.
"""

# mypy: ignore-errors

import json
import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pandas as pd
from feast import Entity, FeatureStore, FeatureView, Field, FileSource, ValueType
from feast.types import Float32, Int64, String

TYPES = {"i": Int64, "u": Int64, "s": String, "x": Float32, "v": Float32}
CONFIG = """project: shop
registry: registry.db
provider: local
online_store:
  type: redis
  connection_string: 127.0.0.1:{port}
offline_store:
  type: file
entity_key_serialization_version: 3
"""


def main(folder, redis_port, http_port):
    folder = Path(folder)
    (folder / "feature_store.yaml").write_text(CONFIG.format(port=redis_port))
    store = FeatureStore(repo_path=str(folder))
    for name, key in (("users", "user_id"), ("items", "item_id")):
        frame = pd.DataFrame(json.loads((folder / f"{name}.json").read_text()))
        entity = Entity(name=key, join_keys=[key], value_type=ValueType.INT64)
        fields = [Field(name=column, dtype=TYPES[column[0]]) for column in frame.columns]
        source = FileSource(name=f"{name}_source", path=f"{name}.parquet", timestamp_field="ts")
        keyed = [Field(name=key, dtype=Int64)]
        view = FeatureView(name=name, entities=[entity], schema=keyed + fields, source=source, ttl=timedelta(0))
        store.apply([entity, view])
        frame[key], frame["ts"] = range(len(frame)), datetime.now(UTC)
        store.write_to_online_store(name, frame)
    feast = str(Path(sys.executable).with_name("feast"))
    os.execv(feast, [feast, "-c", str(folder), "serve", "-h", "127.0.0.1", "-p", http_port, "-w", "1",
                     "--no-access-log"])  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
