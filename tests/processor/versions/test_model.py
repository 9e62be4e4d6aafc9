"""One model's life against its folder: versions come and go, by hand, by label and by policy."""

import os
import shutil
import threading

import pytest

from freshet_serving.processor.clock import FakeClock, SystemClock
from freshet_serving.processor.errors import Corrupt, NotFound, NotReady
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.repository import BYTES, CHANGES, SIZES, Repository
from freshet_serving.processor.versions.model import ServedModel
from freshet_serving.processor.versions.replica import Replica
from freshet_serving.processor.versions.served_version import ServedVersion
from freshet_serving.processor.versions.version_selection import FIRST_WAIT_S
from tests.processor.versions.models import (
    AT_ONCE,
    USERS,
    assert_serves,
    open_model,
    open_with,
    publish,
    refuse_to_write,
)
from tests.support.descriptors import few_descriptors
from tests.support.extensions import needs
from tests.support.leases import unleased
from tests.support.packages import delta_bytes, make_delta, write_package
from tests.support.waiting import held_elsewhere

LONG_AGO_S = 1_600_000_000


@pytest.fixture
def root(tmp_path):
    write_package(tmp_path, users=USERS)
    return tmp_path


def test_newest_version_is_served_and_older_ones_stay_on_disk(root):
    write_package(root, 2, users=USERS)
    write_package(root, 10, users=USERS)
    model = open_model(root)
    assert list(model.routes.served) == [10]
    assert [(s.version, s.state) for s in model.routes.status()] == [(10, "AVAILABLE")]
    with pytest.raises(NotFound, match="version 2 of model 'small' is not loaded"):
        model.pick(2)


def test_model_without_a_version_is_not_ready(tmp_path):
    (tmp_path / "small").mkdir()
    model = open_model(tmp_path)
    assert not model.routes.served
    with pytest.raises(NotReady, match="no version of model 'small' is loaded"):
        model.pick()


def test_new_version_with_deltas_replaces_and_unloads_the_old_one(root):
    model = open_model(root)
    publish(root, 1)
    model.poll()
    write_package(root, 2, users=USERS)
    publish(root, 1, [1], version=2, tag=7)
    assert model.poll() == ["small 2.1 loaded", "small version 1 unloaded"]
    assert_serves(model, "2.1", {1: 7})
    assert [(s.version, s.state) for s in model.routes.status()] == [(2, "AVAILABLE"), (1, "END")]
    assert model.poll() == []


def test_older_version_that_appears_later_is_not_loaded(root):
    write_package(root, 3, users=USERS)
    model = open_model(root)
    write_package(root, 2, users=USERS)
    assert model.poll() == []
    assert list(model.routes.served) == [3]


def damage(folder):
    path = folder / "dense.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")


def test_broken_version_is_refused_once_and_the_served_one_continues(root, monkeypatch):
    model = open_model(root)
    damage(write_package(root, 2, users=USERS))
    (line,) = model.poll()
    assert line == "small version 2 refused: dense.safetensors: does not match its checksum"
    assert_serves(model, "1.0")
    assert [(s.version, s.state, s.error) for s in model.routes.status()] == [
        (2, "END", "dense.safetensors: does not match its checksum"),
        (1, "AVAILABLE", ""),
    ]
    monkeypatch.setattr(model._loader, "load", lambda reader: pytest.fail("a refused version was tried again"))
    for _ in range(3):
        assert model.poll() == []


def test_broken_version_is_served_once_republished(root):
    model = open_model(root)
    folder = write_package(root, 2, users=USERS)
    damage(folder)
    model.poll()
    shutil.rmtree(folder)
    write_package(root, 2, users=USERS)
    assert model.poll() == ["small 2.0 loaded", "small version 1 unloaded"]
    assert_serves(model, "2.0")


def test_incomplete_version_is_never_touched(root, monkeypatch):
    model = open_model(root)
    shutil.copytree(root / "small" / "1", root / "small" / ".2.abcd.tmp")
    (root / "small" / "3").mkdir()
    monkeypatch.setattr(model._loader, "load", lambda reader: pytest.fail("an unfinished version was opened"))
    assert model.poll() == []


def test_version_failing_unexpectedly_is_refused_without_internal_details(root, monkeypatch, caplog):
    model = open_model(root)
    caplog.set_level("CRITICAL", logger="freshet.model")

    def explode(reader):
        raise ZeroDivisionError("/secret")

    monkeypatch.setattr(model._loader, "load", explode)
    write_package(root, 2, users=USERS)
    assert model.poll() == ["small version 2 refused: the version cannot be loaded; see the server's log"]
    assert_serves(model, "1.0")


@pytest.mark.parametrize(("loaded", "unloaded"), [(1, ["small version 2 unloaded"]), (2, [])], ids=["older", "newest"])
def test_manually_loaded_version_stays_next_to_the_newest(root, loaded, unloaded):
    write_package(root, 2, users=USERS)
    model = open_model(root)
    model.load(loaded)
    write_package(root, 3, users=USERS)
    assert model.poll() == ["small 3.0 loaded", *unloaded]
    assert sorted(model.routes.served) == [loaded, 3]
    assert model.pick().generation == Generation(3, 0)


def test_deltas_reach_every_loaded_version(root):
    write_package(root, 2, users=USERS)
    model = open_model(root)
    model.load(1)
    publish(root, 1, [1], tag=5)
    publish(root, 1, [2], version=2, tag=6)
    assert model.poll() == ["small 1.1 served", "small 2.1 served"]
    assert_serves(model, "1.1", {1: 5}, version=1)
    assert_serves(model, "2.1", {2: 6}, version=2)


def test_loading_a_missing_or_broken_version_is_refused(root):
    model = open_model(root)
    with pytest.raises(NotFound, match="version 9 of model 'small' is not in the repository"):
        model.load(9)
    write_package(root, 3, users=USERS)
    damage(write_package(root, 2, users=USERS))
    with pytest.raises(Corrupt, match="checksum"):
        model.load(2)
    assert sorted(model.routes.served) == [1]


def test_unloaded_version_is_reloaded_only_on_request(root):
    write_package(root, 2, users=USERS)
    model = open_model(root)
    model.load(1)
    model.unload(2)
    assert model.poll() == []
    assert model.pick().generation == Generation(1, 0)
    with pytest.raises(NotFound, match="version 2 of model 'small' is not loaded"):
        model.unload(2)
    model.load(2)
    assert model.pick().generation == Generation(2, 0)


class Absent(Replica):
    """Replicas that are not there for a while, as when every worker process is being replaced."""

    there = True

    def prepare(self, change):
        if not Absent.there:
            raise NotReady("nobody is there")
        super().prepare(change)


def test_version_without_a_worker_is_retried_and_not_refused(root, monkeypatch):
    def attach(version):
        return Absent(version.files, version.control, 0, 1, SystemClock())

    def load(reader):
        return ServedVersion(reader, 4, SystemClock())

    told, clock = [], FakeClock()
    model = ServedModel("small", Repository(root), load, attach, clock, lambda: told.append(model.routes), AT_ONCE)
    model.poll()
    assert told[-1].pick().generation == Generation(1, 0)
    monkeypatch.setattr(Absent, "there", False)
    publish(root, 1, dense_seed=1)
    write_package(root, version=2, users=USERS)
    # By its age alone the folder is not looked at again: what waits has to see to that.
    os.utime(root / "small", (LONG_AGO_S, LONG_AGO_S))
    assert sorted(e.split(":")[0] for e in model.poll()) == ["small delta 1 waits", "small version 2 waits"]
    assert [model.poll() for _ in range(2)] == [[], []]
    assert model.chain(1).state == "WAITING"
    with pytest.raises(NotReady):
        model.apply_bytes(delta_bytes(1, (0,), dense_seed=1))
    assert model.pick().generation == Generation(1, 0)
    monkeypatch.setattr(Absent, "there", True)
    publish(root, 1)
    clock.advance(FIRST_WAIT_S)
    assert model.poll() == ["small 2.0 loaded", "small version 1 unloaded"]
    assert told[-1].pick().generation == Generation(2, 0)


def test_version_published_while_folders_are_unlistable_is_served_later(root):
    model = open_model(root)
    write_package(root, version=2, users=USERS)
    os.utime(root / "small", (LONG_AGO_S, LONG_AGO_S))
    with few_descriptors():
        for _ in range(3):
            with pytest.raises(NotReady):
                model.poll()
        assert str(model.pick().generation) == "1.0"
    assert "small 2.0 loaded" in model.poll()


@pytest.fixture
def three(root):
    for number in (2, 3):
        write_package(root, number, users=USERS)
    return root


def test_newest_version_of_a_policy_replaces_the_oldest(three):
    model = open_with(three, versions="latest:2")
    write_package(three, 4, users=USERS)
    assert model.poll() == ["small 4.0 loaded", "small version 2 unloaded"]
    assert sorted(model.routes.served) == [3, 4]


def test_missing_version_of_a_list_is_reported_once_and_served_when_it_comes(three):
    model = open_with(three, versions=[7])
    assert not model.routes.served
    model.set_policy({"versions": [7, 8]})
    assert any("version 8 refused: it is not in the repository" in str(event) for event in model.poll())
    assert model.routes.states[8].state == "END"
    assert model.poll() == []
    write_package(three, 7, users=USERS)
    model.poll()
    assert sorted(model.routes.served) == [7]


def test_configured_labels_are_loaded_and_saved_ones_override_them(three):
    model = open_with(three, labels={"stable": 1, "canary": 2})
    assert sorted(model.routes.served) == [1, 2, 3]
    model.set_label("canary", 3)
    again = open_with(three, labels={"stable": 2, "canary": 2})
    assert again.routes.labels == {"stable": 2, "canary": 3}


@needs("trials")
def test_saved_policy_persists_and_keeps_every_sticky_key_in_place(three):
    model = open_with(three, labels={"stable": 2, "canary": 3}, split={"stable": 95, "canary": 5})
    model.set_policy({"split": {"stable": 80, "canary": 20}, "versions": "all"})
    assert sorted(model.routes.served) == [2, 3]
    model.poll()
    assert sorted(model.routes.served) == [1, 2, 3]
    again = open_with(three, labels={"stable": 2, "canary": 3}, split={"stable": 95, "canary": 5})
    assert again.routes.traffic.split == model.routes.traffic.split
    assert again.routes.shares() == {2: pytest.approx(0.8), 3: pytest.approx(0.2)}
    again.set_policy({"split": None, "versions": None})
    assert again.routes.shares() == {2: pytest.approx(0.95), 3: pytest.approx(0.05)}
    assert again.policy.versions.spelled == "latest:1"


@needs("trials")
def test_ejected_version_stays_out_until_readmitted(three):
    model = open_with(three, labels={"stable": 2, "canary": 3}, split={"stable": 1, "canary": 1})
    model.eject(3, "nonfinite: all of them")
    assert model.routes.shares() == {2: 1.0}
    again = open_with(three, labels={"stable": 2, "canary": 3}, split={"stable": 1, "canary": 1})
    assert again.routes.shares() == {2: 1.0}
    assert again.routes.traffic.out[3].reason == "nonfinite: all of them"
    again.readmit(3)
    assert again.routes.shares() == {2: 0.5, 3: 0.5}
    with pytest.raises(NotFound, match="version 3 of model 'small' is not excluded from traffic"):
        again.readmit(3)


@needs("trials")
def test_version_is_ejected_during_a_load_and_without_write_access(three, monkeypatch, caplog):
    model = open_with(three, labels={"stable": 2, "canary": 3}, split={"stable": 1, "canary": 1})
    monkeypatch.setattr(model._repository, "keep_traffic", refuse_to_write)
    with model._lock:
        thread = threading.Thread(target=model.eject, args=(3, "errors: too many"))
        thread.start()
        thread.join(30)
        assert not thread.is_alive()
    assert model.routes.shares() == {2: 1.0}
    assert "only until a restart" in caplog.text


def test_malformed_traffic_file_is_logged_and_left_unchanged(three, caplog):
    (three / "small" / "traffic.json").write_text('{"policy": {"nonsense": 1}, "out": 7}')
    assert open_with(three).routes.shares() == {3: 1.0}
    assert "cannot read the saved traffic policy" in caplog.text


def users_of(root, version=1):
    return root / "small" / str(version) / "tables" / "user.safetensors"


def open_unleased(root, version=1):
    """A model whose served table this process can damage without waiting for itself."""
    with unleased(users_of(root, version)):
        return open_model(root)


def cut(root, version=1):
    """Cuts a served table short; returns what is said of it, when it is noticed and when it is read anew."""
    path = users_of(root, version)
    sizes = f"expected {path.stat().st_size} bytes, got 100"
    os.truncate(path, 100)
    name = "tables/user.safetensors"
    return [
        f"small version {version} is no longer served: {name}: was truncated while being served: {sizes}",
        f"small version {version} refused: {name}: {sizes}",
    ]


def test_version_with_a_truncated_mapped_file_is_unloaded_at_once(root):
    write_package(root, 2, users=USERS)
    publish(root, 1, [1], tag=5)
    model = open_unleased(root, 2)
    assert model.examine(CHANGES) == []
    noticed, refused = cut(root, 2)
    assert model.examine(SIZES) == [noticed]
    with pytest.raises(NotReady, match=r"version 2: .* was truncated"):
        model.pick()
    assert model.damaged == {"tables/user.safetensors": 1}
    # Nothing of the folder itself tells that it is worth a look.
    os.utime(root / "small", (LONG_AGO_S, LONG_AGO_S))
    assert model.poll() == [refused, "small 1.1 loaded"]
    assert_serves(model, "1.1", {1: 5})
    assert model.examine(SIZES) == model.poll() == []


def test_version_overwritten_in_place_is_not_served_unverified(root):
    model = open_unleased(root)
    path = users_of(root)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"!")
    assert model.examine(SIZES) == []
    (line,) = model.examine(CHANGES)
    assert line.endswith("tables/user.safetensors: was overwritten while being served: does not match its checksum")
    assert model.poll() == ["small version 1 refused: tables/user.safetensors: does not match its checksum"]
    assert not model.routes.served


def test_version_whose_file_is_restored_is_served_again(root):
    model = open_unleased(root)
    publish(root, 1, [1], tag=5)
    model.poll()
    path = users_of(root)
    path.with_name("copy").write_bytes(path.read_bytes())
    cut(root)
    assert len(model.examine(SIZES)) == 1
    os.replace(path.with_name("copy"), path)
    assert model.poll() == ["small 1.1 loaded"]
    assert_serves(model, "1.1", {1: 5})


def test_damaged_version_is_unloaded_while_the_model_lock_is_held(root):
    model = open_unleased(root)
    with held_elsewhere(model._lock):
        noticed, _ = cut(root)
        assert model.examine(SIZES) == [noticed]
        assert not model.routes.served


def test_delta_on_an_unserved_version_is_refused(root):
    model = open_unleased(root)
    version = model.pick()
    cut(root)
    model.examine(SIZES)
    with pytest.raises(NotReady, match="version 1 is no longer served"):
        version.apply(make_delta(1, [1]))


def test_loaded_deltas_and_dense_weights_survive_truncated_files(root):
    publish(root, 1, [1, 2], tag=5, dense_seed=3)
    model = open_model(root)
    for name in ("dense.safetensors", "deltas/1.safetensors", "compiled/onnxruntime-cpu/b1.onnx"):
        os.truncate(root / "small" / "1" / name, 0)
    assert model.examine(BYTES) == []
    assert_serves(model, "1.1", {1: 5, 2: 5}, dense_seed=3)


@pytest.mark.parametrize(
    "name", ["model.json", "chain/0000000001.json", "chain/0000000002.json", "deltas/1.safetensors"]
)
def test_pipe_replacing_a_served_file_does_not_block_polling(root, name):
    publish(root, 1, [1], tag=5)
    model = open_model(root)
    path = root / "small" / "1" / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    for _ in range(4):
        model.poll()
    assert model.chain(1).state == "DIVERGED"
    assert_serves(model, "1.1", {1: 5})


def test_pipes_replacing_model_state_do_not_block_a_start(root):
    for name in ("labels.json", "traffic.json"):
        os.mkfifo(root / "small" / name)
    write_package(root, 2, users=USERS)
    (root / "small" / "2" / "model.json").unlink()
    os.mkfifo(root / "small" / "2" / "model.json")
    assert list(open_model(root).routes.served) == [1]


@needs("trials")
def test_policy_that_cannot_be_saved_changes_nothing(three, monkeypatch):
    model = open_with(three, labels={"stable": 2, "canary": 3}, split={"stable": 95, "canary": 5})
    policy, shares = model.policy, model.routes.shares()
    monkeypatch.setattr(model._repository, "keep_traffic", refuse_to_write)
    with pytest.raises(NotReady):
        model.set_policy({"split": {"stable": 1, "canary": 1}, "versions": "all"})
    assert model.policy == policy
    assert model.routes.shares() == shares
    model.poll()
    assert sorted(model.routes.served) == [2, 3]
