import base64
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.processor.errors import BadInput, Corrupt
from freshet_serving.processor.extensions.online_features.feast_registry import FeastRegistry, JoinKey, parse_reference
from freshet_serving.processor.extensions.online_features.value_types import VALUE_TYPES
from tests.processor.extensions.online_features.value_messages import VECTORS

DATA = base64.b64decode(VECTORS["registry"])
USER = JoinKey("user_id", "user_id", "int64")


@pytest.fixture(scope="module")
def registry():
    return FeastRegistry.parse(DATA, "shop")


def test_types_keys_and_ttl_are_those_that_feast_applied(registry):
    age, items = registry.features(["profile:age", "history:items"], "g")
    assert (age.type, age.ttl_s, age.keys, age.stored_view) == ("int64", 86400.0, (USER,), "profile")
    assert (items.type, items.ttl_s) == ("int64_list", 0.0)
    (notes,) = registry.features(["region:notes"], "g")
    assert notes.keys == (USER, JoinKey("country", "country", "string"))
    for key, kind in (("small", "int32"), ("blob", "bytes"), ("moment", "unix_timestamp")):
        assert registry.features([f"by_{key}:value"], "g")[0].keys == (JoinKey(key, key, kind),)


@pytest.mark.parametrize("kind", VALUE_TYPES)
def test_every_type_is_read_from_the_registry(registry, kind):
    assert registry.features([f"types:{kind}_0"], "g")[0].type == kind


def test_service_keeps_order_alias_and_mapped_keys(registry):
    found = registry.service("ranking", "g")
    assert [f.reference for f in found] == [
        "profile:age", "profile:spend", "home:visits", "history:items", "history:times", "history:tags",
    ]  # fmt: skip
    assert found[2].keys == (USER, JoinKey("country", "home_country", "string"))
    assert (found[2].view, found[2].stored_view) == ("region", "region")


def test_versioned_view_has_its_own_stored_name(registry):
    assert registry.features(["profile@v2:age"], "g")[0].stored_view == "profile_v2"
    assert parse_reference("profile@v0:age", "g") == ("profile", 0, "age")


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("doubled:twice", r"g: feature view 'doubled' is an on-demand feature view, which is Python code"),
        ("offline_only:secret", r"g: feature view 'offline_only' is not online"),
        ("nobody:constant", r"g: feature view 'nobody' has no entity"),
        ("strange:attributes", r"g: feature strange:attributes: type map cannot be a model's input"),
        ("profile:agee", r"g: feature view 'profile' has no feature 'agee' \(did you mean 'age'\?\)"),
        ("profil:age", r"feature view 'profil' is not in the project 'shop' \(did you mean 'profile'\?\)"),
        ("profile.age", r"g.features: expected 'view:feature' or 'view@v2:feature', got 'profile.age'"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(registry, reference, message):
    with pytest.raises(BadInput, match=message):
        registry.features([reference], "g")


def test_unknown_services_projects_and_files_are_refused_by_name(registry, tmp_path):
    with pytest.raises(BadInput, match=r"g.service: 'rankin' is not in the registry \(did you mean 'ranking'\?\)"):
        registry.service("rankin", "g")
    with pytest.raises(BadInput, match=r"project: 'shopp' has no feature views in the registry \(did you mean 'shop'"):
        FeastRegistry.parse(DATA, "shopp")
    with pytest.raises(BadInput, match=r"registry: registry.db does not exist"):
        FeastRegistry.read(tmp_path / "registry.db", "shop")
    (tmp_path / "registry.db").write_bytes(b"project: shop")
    with pytest.raises(Corrupt, match=r"registry: expected the registry.db that feast apply writes"):
        FeastRegistry.read(tmp_path / "registry.db", "shop")
    (tmp_path / "registry.db").write_bytes(DATA)
    assert FeastRegistry.read(tmp_path / "registry.db", "shop").service("ranking", "g")


@given(st.integers(0, len(DATA) - 1), st.integers(0, 255), st.integers(0, len(DATA)))
def test_a_damaged_registry_is_refused_or_read_never_worse(at, byte, length):
    damaged = bytearray(DATA)
    damaged[at] = byte
    for data in (bytes(damaged), DATA[:length]):
        with contextlib.suppress(BadInput):
            FeastRegistry.parse(data, "shop").service("ranking", "g")
