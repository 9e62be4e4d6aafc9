"""Lookups are counted by what came of them, in slots that name their metrics."""

from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.extensions.online_features.feature_counters import COUNTERS, DAMAGED, FeatureCounters
from freshet_serving.processor.extensions.online_features.feature_lookup import FeatureLookup
from freshet_serving.processor.extensions.online_features.online_store import Loss
from tests.processor.extensions.online_features.stores import MemoryStore, opened, users
from tests.support.looked_up import manifest


def samples(snapshot):
    return {(slot.metric, slot.value): number for slot, number in snapshot.items()}


def test_lookups_are_counted_by_outcome_and_reason():
    store = MemoryStore()
    store.hashes = {b"user:7": {b"f0": b"1.5", b"f1": b"x"}}
    lookup = FeatureLookup(manifest(), opened(store), FakeClock())
    lookup.fill(users(7))
    counted = samples(lookup.counted())
    assert counted["model_feature_reads", ""] == counted["model_feature_store_reads", ""] == 1
    values = "model_feature_values"
    assert [counted[values, status] for status in ("present", "damaged", "not_found", "late")] == [1, 1, 1, 0]
    assert counted["model_feature_losses", "late"] == 0
    assert [counted["model_feature_damaged", name] for name in ("f0", "f1")] == [0, 1]
    assert counted["model_feature_cache_bytes", ""] > 0


def test_each_counter_has_its_slot():
    counters = FeatureCounters(["age"])
    counters.read(store_asked=True, seconds=0.5)
    counters.keys(5, cached=2, joined=1, losses=[Loss.LATE, Loss.LATE])
    counters.damaged("age", 4)
    counted = {slot.name: number for slot, number in counters.snapshot(99).items() if number}
    assert counted == {
        "reads": 1, "store_reads": 1, "read_s": 0.5, "entities": 5, "cached": 2, "joined": 1, "cache_nbytes": 99,
        f"losses.{Loss.LATE.name.lower()}": 2, "damaged.age": 4,
    }  # fmt: skip


def test_every_counter_is_a_metric():
    assert all(slot.metric and slot.text for slot in (*COUNTERS, DAMAGED))
