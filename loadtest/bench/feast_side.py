"""The half of the comparison with Feast that runs in Feast's own environment, which Freshet does not share.

    python feast_side.py write FOLDER PORT    make a feature repository, apply it, write features; print them as JSON
    python feast_side.py answer FOLDER PORT   print what get_online_features answers to the requests on stdin, as JSON
    python feast_side.py vectors              print keys, hash fields and a registry as JSON, for tests without Feast

Values are serialized `Value` messages in hexadecimal: both sides compare bits. What is written and asked is in
`features()` and below; loadtest/bench/bench_feast.py is the other half.
"""

# mypy: ignore-errors

import base64
import json
import math
import re
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
from feast import Entity, FeatureService, FeatureStore, FeatureView, Field, FileSource, RepoConfig, ValueType
from feast.infra.key_encoding_utils import serialize_entity_key
from feast.infra.online_stores.helpers import _mmh3
from feast.on_demand_feature_view import on_demand_feature_view
from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.protos.feast.types.Value_pb2 import Value
from feast.types import Array, Float64, Int64, Json, Map, Set, String, UnixTimestamp, from_value_type

PROJECT = "shop"
DAY = timedelta(days=1)
KEYS = {"user_id": 7, "country": "de", "small": -3, "blob": b"\x00\xff{x}", "moment": 1_700_000_000}
KEY_FIELDS = {"user_id": "int64_val", "country": "string_val", "small": "int32_val", "blob": "bytes_val",
              "moment": "unix_timestamp_val"}  # fmt: skip
KEY_TYPES = {"user_id": ValueType.INT64, "country": ValueType.STRING, "small": ValueType.INT32, "blob": ValueType.BYTES,
             "moment": ValueType.UNIX_TIMESTAMP}  # fmt: skip
FRAMES = {"country": "it", "small": 5, "blob": b"frame", "moment": 1_600_000_000}
INT64 = [0, 1, -1, 127, 128, 2**31, -(2**31), 2**63 - 1, -(2**63)]
INT32 = [0, 1, -1, 300, 2**31 - 1, -(2**31)]
FLOATS = [0.0, -0.0, 1.5, -math.inf, math.inf, math.nan, 1e-45, 3.4028235e38]
DOUBLES = [*FLOATS, 5e-324, 1.7976931348623157e308, 0.1]
TEXTS = ["", "a", "äöü", "\u0000", "x" * 300]
BLOBS = [b"", b"\x00\xff", b"x" * 200]
UUIDS = ["123e4567-e89b-12d3-a456-426614174000"]
NAMES = {
    "bytes": BLOBS, "string": TEXTS, "int32": INT32, "int64": INT64, "double": DOUBLES, "float": FLOATS,
    "bool": [True, False], "unix_timestamp": [0, 1_700_000_000, -1], "json": ['{"a": [1, 2]}'], "uuid": UUIDS,
    "time_uuid": UUIDS, "decimal": ["12.50", "-0.1"],
}  # fmt: skip


def type_of(name):
    return from_value_type(ValueType[name.upper()])


def values_of(name):
    """Yield (type, values) for each type that a model can read: scalars, lists, sets."""
    yield name, [Value(**{f"{name}_val": value}) for value in NAMES[name]]
    for many in ("list", "set"):
        field = f"{name}_{many}_val"
        if field not in Value.DESCRIPTOR.fields_by_name:
            continue
        found = []
        for content in ([], NAMES[name][:1], NAMES[name]):
            value = Value()
            getattr(value, field).SetInParent()
            getattr(value, field).val.extend(content)
            found.append(value)
        yield f"{name}_{many}", found


def all_values():
    return {kind: values for name in NAMES for kind, values in values_of(name)}


def store_of(folder, port):
    config = {
        "project": PROJECT,
        "registry": str(Path(folder) / "registry.db"),
        "provider": "local",
        "online_store": {"type": "redis", "connection_string": f"127.0.0.1:{port}"},
        "offline_store": {"type": "file"},
        "entity_key_serialization_version": 3,
    }
    return FeatureStore(config=RepoConfig(**config, repo_path=Path(folder)))


def definitions():
    entities = {name: Entity(name=name, join_keys=[name], value_type=kind) for name, kind in KEY_TYPES.items()}

    def view(name, keys, schema, ttl=timedelta(0), **options):
        source = FileSource(name=f"{name}_source", path=f"{name}.parquet", timestamp_field="ts")
        keyed = [Field(name=key, dtype=from_value_type(KEY_TYPES[key])) for key in keys]
        fields = [Field(name=field, dtype=kind) for field, kind in schema.items()]
        options = {"online": True} | options
        entities_of = [entities[key] for key in keys]
        return FeatureView(name=name, entities=entities_of, schema=keyed + fields, source=source, ttl=ttl, **options)

    typed = {f"{kind}_{n}": type_of(kind) for kind, values in all_values().items() for n in range(len(values))}
    views = [
        view("types", ["user_id"], typed),
        view("profile", ["user_id"], {"age": Int64, "segment": String, "spend": Float64, "unset": Int64}, ttl=DAY),
        view("history", ["user_id"], {"items": Array(Int64), "times": Array(UnixTimestamp), "tags": Set(String)}),
        view("region", ["user_id", "country"], {"visits": Int64, "notes": Json}, ttl=DAY),
        view("strange", ["user_id"], {"attributes": Map, "fine": Int64}),
        view("offline_only", ["user_id"], {"secret": Int64}, online=False),
        view("nobody", [], {"constant": Int64}),
    ]
    views += [view(f"by_{key}", [key], {"value": Int64}) for key in ("country", "small", "blob", "moment")]
    profile, region = views[1], views[3]

    @on_demand_feature_view(sources=[profile], schema=[Field(name="twice", dtype=Int64)], mode="python")
    def doubled(inputs):
        return {"twice": [2 * (age or 0) for age in inputs["age"]]}

    ranking = FeatureService(name="ranking", features=[
        profile[["age", "spend"]],
        region.with_name("home").with_join_key_map({"country": "home_country"})[["visits"]],
        views[2],
    ])  # fmt: skip
    return [*entities.values(), *views, doubled, ranking]


def entity_key(keys):
    return EntityKey(join_keys=list(keys), entity_values=[Value(**{KEY_FIELDS[k]: v}) for k, v in keys.items()])


def rows(now):
    """Yield (view, keys, values, time)."""
    user = {"user_id": 7}
    typed = {f"{kind}_{n}": value for kind, values in all_values().items() for n, value in enumerate(values)}
    yield "types", user, typed, now
    profile = {
        "age": Value(int64_val=41),
        "segment": Value(string_val="a"),
        "spend": Value(double_val=0.1),
        "unset": Value(),
    }
    yield "profile", user, profile, now
    yield "profile", {"user_id": 8}, profile, now - 2 * DAY
    yield "profile", {"user_id": 9}, {"age": Value(int64_val=20)}, now
    history = {"items": Value(), "times": Value(), "tags": Value()}
    history["items"].int64_list_val.val.extend(range(10**9, 10**9 + 256))
    history["times"].unix_timestamp_list_val.val.extend(range(256))
    history["tags"].string_set_val.val.extend(["b", "a"])
    yield "history", user, history, now - 400 * DAY
    yield "region", {"user_id": 7, "country": "de"}, {"visits": Value(int64_val=5), "notes": Value(json_val="[]")}, now
    yield "region", {"country": "fr", "user_id": 7}, {"visits": Value(int64_val=6)}, now
    for key in ("country", "small", "blob", "moment"):
        yield f"by_{key}", {key: KEYS[key]}, {"value": Value(int64_val=len(key))}, now


def write(folder, port):
    store = store_of(folder, port)
    store.apply(definitions())
    written = []
    for view, keys, values, at in rows(datetime.now(UTC)):
        table = store.get_feature_view(view)
        store._get_provider().online_write_batch(store.config, table, [(entity_key(keys), values, at, None)], None)
        plain = {k: v.hex() if isinstance(v, bytes) else v for k, v in keys.items()}
        written.append(
            {"view": view, "keys": plain, "values": {n: v.SerializeToString().hex() for n, v in values.items()}}
        )
    # As a program of Feast's users writes: from a table, with the types of the registry.
    for key, value in FRAMES.items():
        frame = pd.DataFrame({key: [value], "value": [len(key)], "ts": [datetime.now(UTC)]})
        store.write_to_online_store(f"by_{key}", frame)
    print(json.dumps(written))


DTYPES = {"int32": "<i4", "int64": "<i8", "double": "<f8", "float": "<f4", "bool": "?", "unix_timestamp": "<i8"}


def raw_of(value):
    """Return a value as protobuf's own runtime has it: null, bytes of numbers or of a string, or a list of strings."""
    field = value.WhichOneof("val")
    if field in (None, "null_val"):
        return None
    content = getattr(value, field)
    kind, many = re.fullmatch(r"(.*?)(_list|_set)?_val", field).groups()
    if kind in DTYPES:
        return np.asarray(list(content.val) if many else content, DTYPES[kind]).tobytes().hex()
    texts = [text.encode() if isinstance(text, str) else text for text in (content.val if many else [content])]
    return [text.hex() for text in texts] if many else texts[0].hex()


def answer(folder, port):
    """Answer [{"features": [...] or "service": name, "entities": {key: [...]}, "times": n}, ...] of stdin."""
    store = store_of(folder, port)
    answers = []
    for request in json.load(sys.stdin):
        entities = request["entities"].items()
        rows = {key: [bytes.fromhex(v) if key == "blob" else v for v in values] for key, values in entities}
        features = store.get_feature_service(request["service"]) if "service" in request else request["features"]
        times_s = []
        for _ in range(request.get("times", 1)):
            began = time.perf_counter()
            reply = store.get_online_features(features=features, entity_rows=rows, full_feature_names=True).proto
            times_s.append(time.perf_counter() - began)
        answers.append({
            "names": list(reply.metadata.feature_names.val),
            "values": [[raw_of(value) for value in column.values] for column in reply.results],
            "statuses": [list(column.statuses) for column in reply.results],
            "times_s": times_s,
        })  # fmt: skip
    print(json.dumps(answers))


def vectors():
    import tempfile

    combinations = [["user_id"], ["country"], ["small"], ["blob"], ["moment"], ["user_id", "country"], list(KEYS)]
    keys = [
        {"names": names, "types": [KEY_TYPES[n].name.lower() for n in names],
         "values": [KEYS[n].hex() if isinstance(KEYS[n], bytes) else KEYS[n] for n in names],
         "key": (serialize_entity_key(entity_key({n: KEYS[n] for n in names}), 3) + PROJECT.encode()).hex()}
        for names in combinations
    ]  # fmt: skip
    fields = {name: _mmh3(name).hex() for name in ("profile:age", "a:", "ä:ö", "view:feature", "x" * 99)}
    with tempfile.TemporaryDirectory() as folder:
        store = store_of(folder, 6379)
        from feast.infra.registry.registry import Registry

        registry = Registry(PROJECT, store.config.registry, Path(folder))
        for one in definitions():
            if isinstance(one, Entity):
                registry.apply_entity(one, PROJECT)
            elif isinstance(one, FeatureService):
                registry.apply_feature_service(one, PROJECT)
            else:
                registry.apply_feature_view(one, PROJECT)
        from feast.protos.feast.core.Registry_pb2 import Registry as RegistryMessage

        message = RegistryMessage()
        message.ParseFromString((Path(folder) / "registry.db").read_bytes())
        message.ClearField("feature_view_version_history")
        for one in message.on_demand_feature_views:
            # Pickled code, with the path of this file.
            one.spec.ClearField("feature_transformation")
            one.spec.ClearField("user_defined_function")
        data = message.SerializeToString()
    values = {k: [[v.SerializeToString().hex(), raw_of(v)] for v in found] for k, found in all_values().items()}
    print(json.dumps({"keys": keys, "fields": fields, "values": values, "registry": base64.b64encode(data).decode()}))


if __name__ == "__main__":
    {"write": write, "answer": answer, "vectors": vectors}[sys.argv[1]](*sys.argv[2:])
