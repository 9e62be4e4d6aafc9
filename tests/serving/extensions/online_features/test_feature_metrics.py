from types import SimpleNamespace

from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.extensions.online_features.feature_lookup import FeatureLookup
from freshet_serving.serving.extensions.online_features.feature_metrics import feature_families
from tests.processor.extensions.online_features.stores import MemoryStore, opened, users
from tests.support.looked_up import manifest


def test_lookups_are_counted_by_outcome_and_reason():
    store = MemoryStore()
    store.hashes = {b"user:7": {b"f0": b"1.5", b"f1": b"x"}}
    lookup = FeatureLookup(manifest(), opened(store), FakeClock())
    lookup.fill(users(7))
    stats = [SimpleNamespace(model="ctr", features=lookup.counts()), SimpleNamespace(model="cvr", features=None)]
    samples = {
        (sample.name, *list(sample.labels.values())[1:]): sample.value
        for family in feature_families(stats)
        for sample in family.samples
    }
    assert samples["freshet_model_feature_reads_total",] == samples["freshet_model_feature_store_reads_total",] == 1
    values = "freshet_model_feature_values_total"
    assert [samples[values, status] for status in ("present", "damaged", "not_found", "late")] == [1, 1, 1, 0]
    assert samples["freshet_model_feature_losses_total", "late"] == 0
    assert [samples["freshet_model_feature_damaged_total", name] for name in ("f0", "f1")] == [0, 1]


def test_models_without_online_features_have_no_such_metric():
    assert list(feature_families([SimpleNamespace(model="cvr", features=None)])) == []
