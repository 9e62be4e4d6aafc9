import logging

import numpy as np
import pytest

from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.extensions.online_features.damaged_values import INTERVAL_S
from freshet_serving.processor.extensions.online_features.feature_lookup import FeatureLookup
from freshet_serving.processor.extensions.online_features.online_store import Loss
from tests.processor.extensions.online_features.stores import MemoryStore, opened
from tests.support.counters import damaged
from tests.support.looked_up import manifest


@pytest.fixture
def store():
    return MemoryStore()


def ask(lookup, user):
    return lookup.fill({"user_id": np.array([user])})


def test_log_names_feature_reason_and_sample_once_a_minute(store, caplog):
    clock = FakeClock()
    lookup = FeatureLookup(manifest(), opened(store), clock)
    store.hashes = {b"user:%d" % n: {b"f0": b"1.5", b"f1": b"4711 roubles" * 9, b"tags": b"[]"} for n in range(90, 99)}
    with caplog.at_level(logging.WARNING, "freshet.features"):
        ask(lookup, 91)
        ask(lookup, 92)
        clock.advance(INTERVAL_S)
        ask(lookup, 93)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert lines[0] == lines[1]
    assert lines[0].startswith("small version 1: online feature 'f1' cannot be read and gets its default: expected")
    assert "got b'4711 roubles" in lines[0]
    assert "..." in lines[0]
    assert "user:" not in caplog.text
    assert damaged(lookup) == {"tags": 0, "f0": 0, "f1": 3}


@pytest.mark.parametrize("f0", [b"1e300", b"nonsense", b"[1]"])
def test_each_damaged_feature_has_a_line(store, caplog, f0):
    lookup = FeatureLookup(manifest(), opened(store), FakeClock())
    store.hashes = {b"user:7": {b"f0": f0, b"f1": b"x", b"tags": b"7"}}
    with caplog.at_level(logging.WARNING, "freshet.features"):
        ask(lookup, 7)
    assert [name for name in ("tags", "f0", "f1") if f"online feature {name!r}" in caplog.text] == ["tags", "f0", "f1"]


def test_key_that_holds_no_hash_is_said_too(store, caplog):
    lookup = FeatureLookup(manifest(), opened(store), FakeClock())
    store.down = Loss.WRONG_TYPE
    with caplog.at_level(logging.WARNING, "freshet.features"):
        ask(lookup, 7)
    assert caplog.text.count("the store has something other than a hash under the key") == 3


def test_values_that_are_only_missing_are_not_damaged(store, caplog):
    lookup = FeatureLookup(manifest(), opened(store), FakeClock())
    with caplog.at_level(logging.WARNING, "freshet.features"):
        ask(lookup, 7)
    assert not caplog.records
    assert damaged(lookup) == {"tags": 0, "f0": 0, "f1": 0}
