import base64
import json

import pytest

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.extensions.online_features.group_sections import parse_group
from freshet_serving.processor.extensions.online_features.section import KeyColumn, dump, parse
from tests.processor.extensions.online_features.value_messages import VECTORS

DECLARED = {
    "key": "user_id",
    "store": "main",
    "project": "shop",
    "features": ["profile:age", "history:items"],
    "types": {"profile:age": "int64", "history:items": "int64_list"},
    "ttl_s": {"profile": 86400},
    "timeout_ms": 5,
}
HASHES = {"key": ["user_id", "country"], "format": "hash", "features": ["age"], "types": {"age": "int64"}}
PLAIN = dump([parse_group("user", HASHES)])[0]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "registry.db").write_bytes(base64.b64decode(VECTORS["registry"]))
    return tmp_path


def registered(**section):
    return {"key": "user_id", "project": "shop", "registry": "registry.db"} | section


def test_a_group_says_all_that_feast_would_without_a_registry():
    group = parse_group("user", DECLARED)
    age, items = group.features
    assert (group.store, group.format, group.project, group.timeout_ms) == ("main", "feast", "shop", 5.0)
    assert (age.input, age.view, age.type, age.ttl_s) == ("age", "profile", "int64", 86400.0)
    assert (items.type, items.ttl_s, items.keys) == ("int64_list", 0.0, (KeyColumn("user_id", "user_id", "int64"),))


def test_a_registry_says_types_keys_and_ttl(folder):
    section = registered(key=["user_id", "country"], features=["profile:age", "region:visits"])
    group = parse_group("user", section, folder)
    assert [(f.type, f.ttl_s, len(f.keys)) for f in group.features] == [("int64", 86400.0, 1), ("int64", 86400.0, 2)]
    group = parse_group("user", section | {"ttl_s": {"profile": 0}}, folder)
    assert [f.ttl_s for f in group.features] == [0.0, 86400.0]
    group = parse_group("user", registered(key=["user_id", "home_country"], service="ranking"), folder)
    assert [f.input for f in group.features] == ["age", "spend", "visits", "items", "times", "tags"]
    assert group.features[2].keys[1] == KeyColumn("country", "home_country", "string")


def test_a_plain_hash_has_its_key_by_a_template():
    assert parse_group("user", HASHES).key_template == "user:{user_id}:{country}"
    group = parse_group("user", HASHES | {"key_template": "f/{country}/{user_id}", "key_types": {"country": "string"}})
    assert group.key_template == "f/{country}/{user_id}"
    assert [key.type for key in group.features[0].keys] == ["int64", "string"]


@pytest.mark.parametrize("section", [DECLARED, HASHES])
def test_a_package_holds_a_group_as_json(section):
    group = parse_group("user", section)
    assert parse(json.loads(json.dumps(dump([group])))) == [group]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, r"online_features\[0\]: expected an object, got null"),
        ([], r"online_features\[0\]: expected an object, got a list"),
        ({}, r"online_features\[0\]: 'name' is missing"),
        ({"title": "user"}, r"online_features\[0\]: unknown key 'title'"),
        (PLAIN | {"features": [7]}, r"online_features\[0\].features\[0\]: expected an object, got a number"),
        (PLAIN | {"store": 7}, r"online_features\[0\].store: expected a string, got a number"),
    ],
)
def test_a_package_with_something_else_is_refused(value, message):
    with pytest.raises(BadInput, match=message):
        parse([value])


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (DECLARED | {"keys": "a"}, r"online_features.user.keys: there is no such option \(did you mean 'key'\?\)"),
        (DECLARED | {"key": 7}, r"user.key: expected a string or a list, got an integer"),
        (DECLARED | {"key": []}, r"user.key: expected the input that holds the key"),
        (DECLARED | {"store": "a/b"}, r"user.store: expected letters, digits"),
        (DECLARED | {"format": "fest"}, r"user.format: expected one of feast, hash, got 'fest'"),
        (DECLARED | {"project": ""}, r"user.project: expected the project of feature_store.yaml, got nothing"),
        (DECLARED | {"features": [], "types": {}, "ttl_s": {}}, r"user.features: expected 1 to 1000 features, got 0"),
        (DECLARED | {"features": ["profile.age"]}, r"user.features: expected 'view:feature' or"),
        (DECLARED | {"types": {}}, r"user.types: expected a type for 'profile:age', or a registry"),
        (DECLARED | {"service": "ranking"}, r"user.service: expected a registry too"),
        (
            DECLARED | {"ttl_s": {"profil": 1}},
            r"user.ttl_s: 'profil' is not read by this group \(did you mean 'profile'",
        ),
        (DECLARED | {"ttl_s": {"profile": "1d"}}, r"user.ttl_s.profile: expected seconds, got a string"),
        (DECLARED | {"ttl_s": {"profile": -1}}, r"feature 'age': expected a key, and a ttl_s of 0 or more"),
        (
            DECLARED | {"names": {"history:items": "age"}},
            r"two features fill the input 'age'; give one of them another",
        ),
        (DECLARED | {"names": {"history:item": "a"}}, r"user.names: 'history:item' is not read by this group"),
        (DECLARED | {"key_types": {"user_id": "float"}}, r"key 'user_id': expected one of bytes, string, int32"),
        (DECLARED | {"timeout_ms": 0}, r"user.timeout_ms: expected 0.1 to 10000, got 0"),
        (DECLARED | {"key_template": "{user_id}"}, r"user.key_template: expected only with format = 'hash'"),
        (HASHES | {"registry": "r"}, r"user.registry: expected only with format = 'feast'"),
        (HASHES | {"types": {}}, r"user.types: expected a type for 'age'"),
        (HASHES | {"key_template": "u:{user_id}"}, r"user.key_template: expected each input of key once in braces"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(section, message):
    with pytest.raises(BadInput, match=message):
        parse_group("user", section)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (registered(), r"online_features.user: expected either features or service"),
        (registered(features=["region:visits"]), r"user.key: view 'region' needs the join keys country as well"),
        (registered(features=["doubled:twice"]), r"online_features.user: feature view 'doubled' is an on-demand"),
        (registered(features=["profile:age"], types={}), r"user.types: expected only without a registry"),
        (registered(features=["profile:age"], ttl_s={"region": 1}), r"user.ttl_s: 'region' is not read by this group"),
    ],
)
def test_what_the_registry_cannot_give_is_refused_by_name(folder, section, message):
    with pytest.raises(BadInput, match=message):
        parse_group("user", section, folder)
