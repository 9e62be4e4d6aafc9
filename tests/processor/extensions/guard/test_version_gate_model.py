"""One model whose new versions pass the gate, and are held by it."""

import gc
import weakref

import numpy as np
import pytest

from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.extensions.guard.guard import guard_of
from freshet_serving.processor.repository import Repository, VersionReader, root_hash
from freshet_serving.processor.versions.policy import ModelPolicy
from freshet_serving.processor.versions.version_actions import release_version
from freshet_serving.processor.watching import IN_LINE, OUT_OF_LINE, UNJUDGED
from tests.processor.versions.models import open_model
from tests.support.guarded import USERS, as_inputs, weights, write_guarded
from tests.support.packages import write_package

HELD = "small version 2 is held by gate: the mean score of 'score' would change by a factor of"


def write_bad(root, version=2):
    """A version as a retrain with all labels 0 makes it."""

    def far_below(seed):
        made = weights()
        made["mlp_out/kernel"][0] -= 8
        return made

    return write_package(root, version, USERS, [f"t{n}" for n in range(80)], weights=far_below)


def asked(model, requests=20, rows=8, number=None):
    """The model once it has been requested to score so many rows."""
    replica = model.pick(number).replicas
    for seed in range(requests):
        inputs = as_inputs(rows, seed)
        replica.sample.take(replica.plan.bind_inputs(inputs), inputs)
    return model


@pytest.fixture
def root(tmp_path):
    write_guarded(tmp_path)
    return tmp_path


def states(model):
    return {status.version: (status.state, status.error) for status in model.routes.status()}


def test_bad_version_is_held_and_the_old_one_goes_on(root):
    model = asked(open_model(root))
    before = model.pick()
    kept = before.replicas.kept()
    scores = before.replicas.score(kept, 60.0).outputs["score"].copy()
    write_bad(root)
    (line,) = model.poll()
    assert line.startswith(HELD)
    assert model.pick() is before
    np.testing.assert_array_equal(before.replicas.score(kept, 60.0).outputs["score"], scores)
    state, error = states(model)[2]
    cure = "; `freshet version release small 2` serves it, `freshet version reject small 2` withdraws it"
    assert (state, line) == ("END", f"small version 2 is {error}{cure}")
    assert guard_of(model).gate.verdicts[2].outcome == OUT_OF_LINE
    assert model.poll() == []


def test_good_version_takes_over_with_the_kept_requests(root):
    model = asked(open_model(root))
    write_guarded(root, 2)
    assert model.poll() == ["small 2.0 loaded", "small version 1 unloaded"]
    assert guard_of(model).gate.verdicts[2].outcome == IN_LINE
    write_bad(root, 3)
    (line,) = model.poll()
    assert "version 3 is held by gate" in line


def test_hold_is_a_record_that_binds_until_it_is_released(root):
    model = asked(open_model(root))
    folder = write_bad(root)
    model.poll()
    records = Repository(root).version_records("small")
    (record,) = records.all()
    assert (record.version, record.action, record.by) == (2, "hold", "gate")
    assert record.manifest == root_hash(VersionReader(folder).manifest)
    assert model.decisions.barred == {2: record.describe()}
    assert states(model)[2] == ("END", record.describe())
    records.add(2, record.manifest, "release", "a new campaign", "ana")
    assert "small 2.0 loaded" in model.poll()
    assert not model.decisions.barred


def test_version_waits_while_memory_to_judge_it_is_short(root, monkeypatch):
    clock = FakeClock()
    model = asked(open_model(root, clock=clock))
    write_bad(root)
    with monkeypatch.context() as patch:
        patch.setattr(model.pick().replicas, "score", lambda *_: (_ for _ in ()).throw(MemoryError))
        assert model.poll() == ["small version 2 waits: not enough memory"]
    assert list(model.routes.served) == [1]
    clock.advance(1.0)
    (line,) = model.poll()
    assert line.startswith(HELD)


def test_newer_version_is_judged_beside_a_held_one(root):
    model = asked(open_model(root))
    write_bad(root)
    model.poll()
    write_guarded(root, 3)
    assert model.poll() == ["small 3.0 loaded", "small version 1 unloaded"]


def test_version_is_unjudged_without_requests_and_served(root):
    model = open_model(root)
    write_bad(root)
    assert model.poll() == ["small 2.0 loaded", "small version 1 unloaded"]
    assert guard_of(model).gate.verdicts[2].outcome == UNJUDGED


@pytest.mark.parametrize("more", [{"versions": "latest:2"}, {"labels": {"old": 1}}])
def test_start_beside_an_older_version_holds_nothing(root, more):
    """A restart took the served version from all servers: version 1 was loaded first, and had no requests."""
    write_guarded(root, 2)
    model = open_model(root, policy=ModelPolicy.parse({"unjudged": "hold", **more}, "model"))
    assert str(model.pick().generation) == "2.0"
    assert not Repository(root).version_records("small").all()
    write_guarded(root, 3)
    model.poll()
    assert model.decisions.held.keys() == {3}


def test_version_that_comes_back_is_not_judged_again(root):
    model = asked(open_model(root, policy=ModelPolicy.parse({"versions": "latest:2"}, "model")))
    write_guarded(root, 2)
    model.poll()
    model._unload_corrupt(2, model.routes.served[2], "dense.safetensors: damaged")
    assert list(model.routes.served) == [1]
    assert model.poll() == ["small 2.0 loaded"]
    assert sum(guard_of(model).gate.outcomes.values()) == 1


def restarted(root, folder, **options):
    """The model after its server was killed while it served version 1, and a version was added meanwhile."""
    folder.mkdir()
    model = asked(open_model(root, scratch=str(folder)))
    guard_of(model).gate.keep(model.pick())
    write_bad(root)
    return open_model(root, scratch=str(folder), **options)


def test_bad_version_is_not_let_in_by_a_restart(root, tmp_path):
    model = restarted(root, tmp_path / "scratch")
    assert model.pick().manifest.version == 1
    assert model.decisions.held.keys() == {2}
    model.poll()
    assert list(model.routes.served) == [1]


def test_start_goes_on_with_the_newest_if_the_version_before_is_damaged(root, tmp_path):
    model = asked(open_model(root, scratch=str(tmp_path)))
    guard_of(model).gate.keep(model.pick())
    write_bad(root)
    for path in (root / "small" / "1").glob("*.safetensors"):
        path.unlink()
    again = open_model(root, scratch=str(tmp_path))
    assert list(again.routes.served) == [2]


def test_good_version_takes_over_at_a_restart(root, tmp_path):
    model = asked(open_model(root, scratch=str(tmp_path)))
    guard_of(model).gate.keep(model.pick())
    write_guarded(root, 2)
    again = open_model(root, scratch=str(tmp_path))
    assert list(again.routes.served) == [2]
    assert guard_of(again).gate.verdicts[2].outcome == IN_LINE


def test_version_that_a_person_names_is_not_judged(root):
    model = asked(open_model(root))
    write_bad(root)
    model.poll()
    model.load(2)
    assert model.pick().manifest.version == 2
    assert 1 in model.routes.served or model.poll() == ["small version 1 unloaded"]


def test_labelled_version_is_not_judged(root):
    model = asked(open_model(root))
    write_bad(root)
    model.set_label("canary", 2)
    assert set(model.routes.served) >= {2}
    assert not guard_of(model).gate.verdicts


@pytest.mark.parametrize("released", [False, True])
def test_held_version_stays_without_its_label_once_it_is_released(root, released):
    model = asked(open_model(root))
    write_bad(root)
    model.poll()
    assert model.decisions.held.keys() == {2}
    model.set_label("next", 2)
    model.poll()
    assert (set(model.routes.served), model.pick().manifest.version) == ({1, 2}, 1)
    if released:
        release_version(Repository(root), "small", 2, "clients ask for it")
        model.poll()
    model.remove_label("next")
    model.poll()
    assert model.pick().manifest.version == (2 if released else 1)
    assert (2 in model.routes.served) == released


def test_older_version_is_not_judged(tmp_path):
    write_guarded(tmp_path, 3)
    model = asked(open_model(tmp_path, policy=ModelPolicy.parse({"versions": "latest:2"}, "model")))
    write_bad(tmp_path)
    assert model.poll() == ["small 2.0 loaded"]
    assert not guard_of(model).gate.verdicts


@pytest.mark.unguarded("the guard's mode is what it is about")
def test_nothing_is_judged_while_the_guard_is_off(root):
    policy = ModelPolicy.parse({"delta_guard": {"mode": "off"}, "bake_s": 0}, "model.small")
    model = asked(open_model(root, policy=policy))
    write_bad(root)
    assert model.poll() == ["small 2.0 loaded", "small version 1 unloaded"]
    assert not guard_of(model).gate.verdicts


def test_held_version_is_closed_and_freed(root):
    model, loaded = asked(open_model(root)), []
    connect = model._loader.connect

    def connected(version):
        loaded.append(weakref.ref(version))
        return connect(version)

    model._loader.connect = connected
    write_bad(root)
    gc.disable()
    try:
        model.poll()
        assert [version() for version in loaded] == [None]
    finally:
        gc.enable()


def test_replaced_version_stays_for_the_bake_time(root):
    clock = FakeClock()
    model = open_model(root, policy=ModelPolicy.parse({"bake_s": 60}, "model"), clock=clock)
    model._selection.bake._free = lambda: 0.5
    write_guarded(root, 2)
    assert model.poll() == ["small 2.0 loaded"]
    assert set(model.routes.served) == {1, 2}
    assert model.pick().manifest.version == 2
    clock.advance(59.0)
    assert model.poll() == []
    clock.advance(1.0)
    assert model.poll() == ["small version 1 unloaded"]


def test_replaced_version_leaves_early_without_memory(root):
    clock = FakeClock()
    model = open_model(root, policy=ModelPolicy.parse({"bake_s": 60}, "model"), clock=clock)
    model._selection.bake._free = lambda: 0.1
    write_guarded(root, 2)
    assert model.poll() == ["small 2.0 loaded", "small version 1 unloaded"]
