"""The report on user states: rates, ages and saved work by version, of counters that are read by name."""

from types import SimpleNamespace

import pytest

from freshet_serving.processor.counter_block import Slot
from freshet_serving.processor.errors import NotFound
from freshet_serving.processor.extensions.user_state import state_arena as arena
from freshet_serving.processor.extensions.user_state.state_counters import BLOCK, KEPT, StateCounters
from freshet_serving.processor.extensions.user_state.state_report import user_state_report
from freshet_serving.processor.extensions.user_state.user_counters import UserCounters
from freshet_serving.processor.features.user_bounds import OldestUsers
from freshet_serving.processor.features.user_calls import APPEND
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.package import FLOPS


def host_of(users=None, **counted):
    """A host with a model "m" of versions 1 (with states) and 2 (without)."""
    manifest = {
        n: SimpleNamespace(
            version=n, notes={FLOPS: {"user": 1000, "score": 7}}, graphs={"user": None, "score": None, "user_32": None},
            inputs=[], features=[], transforms=[], entities=[], fillers={},
        )
        for n in (1, 2)
    }  # fmt: skip
    versions = {n: SimpleNamespace(manifest=manifest[n], generation=Generation(n, 5)) for n in (1, 2)}
    routes = SimpleNamespace(served=versions, traffic=SimpleNamespace(users=users))
    model = SimpleNamespace(routes=routes, pick=lambda number: versions[1])
    return SimpleNamespace(catalogue={"m": model}, counted=lambda version: counted if version is versions[1] else {})


def test_rates_ages_and_saved_work_are_of_hits_and_looks():
    counters = StateCounters()
    for outcome, age_s in ((arena.HIT, 3.0), (arena.HIT, 5.0), (arena.OTHER_ROWS, 0.0), (arena.ABSENT, 0.0)):
        counters.looked(outcome, 0.001, age_s, 1000)
    counters.add(KEPT)
    host = host_of()
    snapshot = {**counters.snapshot(4096), Slot(BLOCK, "repaired"): 9}
    host.counted = lambda version: snapshot if version.manifest.version == 1 else {}
    (one,) = user_state_report(host, "m")["versions"]
    assert (one["version"], one["generation"], one["looks"], one["hit_rate"]) == (1, "1.5", 4, 0.5)
    assert (one["mean_age_s"], one["mean_look_s"]) == (4.0, pytest.approx(0.001))
    assert one["misses"] == {"absent": 1, "evicted": 0, "torn": 0, "expired": 0, "dense": 0, "rows": 1}
    assert (one["user_flops"], one["saved_flops"]) == (1000, 2000)
    assert one["counters"]["repaired"] == 9
    assert one["counters"]["nbytes"] == 4096


@pytest.mark.parametrize(
    ("users", "dtype"), [(None, "float32"), (OldestUsers(5), "float32"), (OldestUsers(dtype="float16"), "float16")]
)
def test_type_of_what_is_kept_is_reported(users, dtype):
    host, snapshot = host_of(users), StateCounters().snapshot(0)
    host.counted = lambda version: snapshot if version.manifest.version == 1 else {}
    assert [one["dtype"] for one in user_state_report(host, "m")["versions"]] == [dtype]


def test_version_that_nobody_has_asked_has_no_rates():
    host, snapshot = host_of(), StateCounters().snapshot(0)
    host.counted = lambda version: snapshot if version.manifest.version == 1 else {}
    (one,) = user_state_report(host, "m")["versions"]
    assert (one["looks"], one["hit_rate"], one["mean_age_s"], one["mean_look_s"]) == (0, None, None, None)


def test_kept_users_are_reported_once_for_all_versions():
    host, users = host_of(), UserCounters()
    users.changed(APPEND)
    users.gone(arena.EXPIRED)
    host.counted = lambda version: users.snapshot(5, 4096)
    report = user_state_report(host, "m")
    assert report["versions"] == []
    assert {name: count for name, count in report["users"].items() if count} == {
        "changes.append": 1, "gone.expired": 1, "users": 5, "nbytes": 4096,
    }  # fmt: skip


def test_server_that_keeps_nothing_has_no_versions_to_report():
    assert user_state_report(host_of(), "m") == {"model": "m", "users": None, "versions": []}
    with pytest.raises(NotFound):
        user_state_report(host_of(), "none")
