"""The models of a repository: versions and deltas that come and go, and who is told what of them."""

import os
import threading
import weakref
from types import SimpleNamespace

import pytest

from freshet_serving.processor.engine import PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.errors import BadInput, Conflict, Corrupt, NotFound, NotReady, TooLarge
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.package.delta import write_delta
from freshet_serving.processor.repository import model_repository as repository_module
from freshet_serving.processor.versions.policy import ModelPolicy
from freshet_serving.processor.versions.routes import VersionStatus
from freshet_serving.processor.versions.served_version import ServedVersion
from freshet_serving.processor.versions.upkeep import Upkeep
from tests.processor.engines import TIMEOUT_S, USERS, Replies, assert_reply, damage, publish, request, scores
from tests.processor.extensions.object_stores import sides
from tests.processor.extensions.object_stores.bucket import Bucket
from tests.processor.versions.models import AT_ONCE
from tests.support.leases import unleased
from tests.support.packages import make_delta, tag_id, write_package
from tests.support.waiting import until

LONG_AGO_S = 1_600_000_000


def test_delta_in_the_folder_is_served_after_a_poll(root, open_processor):
    processor = open_processor()
    publish(root, 1, [1, 500], removed=[2], tags=["zz"], tag=3, dense_seed=4)
    assert processor.poll() == ["small 1.1 served"]
    wanted = scores([0, 1, 2, 500], {1: 3, 500: 3, 2: None}, dense_seed=4, tags={tag_id("zz"): 3})
    assert_reply(processor.process(request([0, 1, 2, 500])), "1.1", wanted)
    assert processor.poll() == []


def test_delta_given_by_relative_or_absolute_path_is_served(root, open_processor):
    processor = open_processor()
    publish(root, 1, [1], tag=1)
    publish(root, 2, [2], tag=2).rename(root / "upload")
    assert processor.apply_delta("small", path="small/1/deltas/1.safetensors").generation == Generation(1, 1)
    assert processor.apply_delta("small", path="small/1/deltas/1.safetensors").generation == Generation(1, 1)
    assert processor.apply_delta("small", path=str(root / "upload")).generation == Generation(1, 2)
    (root / "upload").unlink()
    for opened in (processor, open_processor()):
        assert_reply(opened.process(request([1, 2])), "1.2", scores([1, 2], {1: 1, 2: 2}))


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "small/../../secret", "nowhere", "small", "", "a" * 300])
def test_path_outside_the_repository_is_not_found(root, open_processor, path):
    write_delta(root.parent / "secret", make_delta(1, [1]))
    processor = open_processor()
    with pytest.raises(NotFound, match="expected a file inside the repository"):
        processor.apply_delta("small", path=path)
    assert_reply(processor.process(request([1])), "1.0", scores([1]))


def test_refused_delta_gives_its_reason_and_changes_nothing(root, open_processor):
    processor = open_processor()
    data = publish(root, 2, [1]).read_bytes()
    for arguments, error, message in [
        (dict(model="nobody", data=data), NotFound, "model 'nobody' is not in the repository"),
        (dict(model="small"), BadInput, "expected either the file itself or a path"),
        (dict(model="small", data=data, path="x"), BadInput, "expected either the file itself or a path"),
        (dict(model="small", data=data), Conflict, "continues step 1, the served generation is 1.0"),
        (dict(model="small", data=data[:-1]), Corrupt, "delta: "),
        (dict(model="small", path="small/1/model.json"), Corrupt, "delta: "),
    ]:
        with pytest.raises(error, match=message):
            processor.apply_delta(**arguments)
    assert_reply(processor.process(request([1])), "1.0", scores([1]))


def test_requests_queued_for_a_replaced_version_are_still_answered(root, open_processor):
    processor, replies = open_processor(sessions=1, policies={"small": AT_ONCE}), Replies()
    replies.hold(processor)
    processor.predictor.submit(request([1]), replies.done("old"))
    write_package(root, 2, users=USERS, seed=2)
    assert processor.poll() == ["small 2.0 loaded", "small version 1 unloaded"]
    processor.predictor.submit(request([1]), replies.done("new"))
    replies.release()
    got = replies.wait(2)
    assert_reply(got["old"], "1.0", scores([1]))
    assert_reply(got["new"], "2.0", scores([1], dense_seed=2))


def test_unserved_version_is_freed_after_its_last_batch(root, open_processor):
    processor, gone = open_processor(policies={"small": AT_ONCE}), threading.Event()
    processor.batch_process([request([n]) for n in range(20)])
    weakref.finalize(processor.host.catalogue["small"].pick(), gone.set)
    write_package(root, 2, users=USERS)
    processor.poll()
    assert gone.wait(TIMEOUT_S)
    assert_reply(processor.process(request([1])), "2.0", scores([1]))


def test_requests_may_name_a_version_or_a_label(root, open_processor):
    write_package(root, 2, users=USERS, seed=2)
    processor = open_processor()
    processor.host.load("small", 1)
    processor.host.set_label("small", "stable", 1)
    processor.host.set_label("small", "canary", 2)
    assert_reply(processor.process(request([1], version=1)), "1.0", scores([1]))
    assert_reply(processor.process(request([1], label="canary")), "2.0", scores([1], dense_seed=2))
    assert_reply(processor.process(request([1])), "2.0", scores([1], dense_seed=2))
    with pytest.raises(Conflict, match="held by label stable"):
        processor.host.unload("small", 1)
    reopened = open_processor()
    assert_reply(reopened.process(request([1], label="stable")), "1.0", scores([1]))
    processor.host.set_label("small", "stable", 2)
    processor.host.unload("small", 1)
    with pytest.raises(NotFound, match="version 1 of model 'small' is not loaded"):
        processor.process(request([1], version=1))


def test_policy_and_labels_choose_versions_of_models_yet_to_come(root, open_processor):
    policies = {"later": ModelPolicy.parse({"versions": [2, 9], "labels": {"old": 1}}, "model.later")}
    host = open_processor(policies=policies).host
    assert host.chosen("later", {1, 2, 3}) == {1, 2}
    assert host.chosen("other", {1, 2, 3}) == {3}
    assert host.chosen("small", {1, 2}) == {2}
    host.set_label("small", "kept", 1)
    assert host.chosen("small", {1, 2}) == {1, 2}


def test_model_with_an_initially_empty_folder_is_served_later(root, open_processor):
    (root / "late").mkdir()
    for folder in (root, root / "late"):
        os.utime(folder, (LONG_AGO_S, LONG_AGO_S))
    processor = open_processor()
    assert processor.poll() == []
    write_package(root, users=USERS, model="late", seed=5)
    os.utime(root, (LONG_AGO_S, LONG_AGO_S))
    assert processor.poll() == ["late 1.0 loaded"]
    assert_reply(processor.process(request([1], model="late")), "1.0", scores([1], dense_seed=5))
    assert processor.poll() == []


def test_new_model_is_served_and_an_unloadable_one_ignored(root, open_processor):
    processor = open_processor()
    damage(write_package(root, users=USERS, model="a-broken"))
    write_package(root, users=USERS, model="good", seed=5)
    publish(root, 1, [1], tag=1)
    assert sorted(processor.poll()) == [
        "a-broken version 1 refused: dense.safetensors: does not match its checksum",
        "good 1.0 loaded",
        "small 1.1 served",
    ]
    assert processor.host.ready
    assert_reply(processor.process(request([1], model="good")), "1.0", scores([1], dense_seed=5))
    with pytest.raises(NotReady, match="no version of model 'a-broken' is loaded"):
        processor.process(request([1], model="a-broken"))


def test_model_linked_from_outside_harms_no_other(root, open_processor):
    outside = write_package(root.parent / "outside", users=USERS, model="evil").parent
    processor = open_processor()
    (root / "evil").symlink_to(outside)
    publish(root, 1, [1], tag=1)
    refused, served = sorted(processor.poll())
    assert refused.startswith("evil version 1 refused: evil/1: is a link, or lies behind one, whose target is outside")
    assert served == "small 1.1 served"


def test_poll_lists_no_folder_while_nothing_changes(root, open_processor, monkeypatch):
    (root / "empty").mkdir()
    processor = open_processor()
    for folder in (root, root / "empty", root / "small", root / "small" / "1" / "deltas"):
        os.utime(folder, (LONG_AGO_S, LONG_AGO_S))
    processor.poll()
    monkeypatch.setattr(repository_module.os, "scandir", lambda path: pytest.fail("a folder was listed"))
    assert processor.poll() == []


def test_only_requested_models_are_served(root, open_processor):
    write_package(root, users=USERS, model="other")
    damage(write_package(root, users=USERS, model="third"))
    processor = open_processor(models=["other"])
    assert processor.host.models() == ["other"]
    with pytest.raises(NotFound):
        processor.process(request([1]))


def test_candidate_of_a_model_without_a_version_is_listed_and_decided(tmp_path):
    """The first version was refused, and the server said that there is no such model."""
    refused = tmp_path / "small" / "candidates"
    refused.mkdir(parents=True)
    for number in (1, 2):
        write_package(tmp_path / "made", number, users=USERS).rename(refused / str(number))
    with Processor.initialize(ProcessorConfig(str(tmp_path), sessions=1)) as processor:
        host = processor.host
        assert [(one["version"], one["state"]) for one in host.versions("small")] == [
            (2, "candidate"),
            (1, "candidate"),
        ]
        assert host.reject_version("small", 1) == host.release_version("small", 2) == []
        assert processor.poll() == ["small 2.0 loaded"]
        with pytest.raises(NotFound):
            host.release_version("other", 1)


def test_announced_version_is_listed_by_its_state_until_it_loads(root, open_processor):
    processor = open_processor()
    processor.host.tell("small", VersionStatus(7, "LOADING"))
    processor.host.tell("new", VersionStatus(1, "END", "source: variables are missing"))

    assert processor.host.status("small")[0] == VersionStatus(7, "LOADING")
    assert processor.host.status("new") == [VersionStatus(1, "END", "source: variables are missing")]
    assert processor.host.ready
    with pytest.raises(NotReady):
        processor.process(PredictRequest("new", {}))

    processor.host.tell("small", VersionStatus(1, "LOADING"))
    assert processor.host.status("small")[-1] == VersionStatus(1, "AVAILABLE")
    write_package(root, version=1, model="new")
    assert processor.poll() == ["new 1.0 loaded"]
    assert processor.host.status("new") == [VersionStatus(1, "AVAILABLE")]


def test_examine_error_of_one_model_does_not_stop_the_others(root, open_processor, monkeypatch, caplog):
    write_package(root, users=USERS, model="a-stuck")
    table = root / "small" / "1" / "tables" / "user.safetensors"
    with unleased(table):
        processor = open_processor()
    monkeypatch.setattr(processor.host.catalogue["a-stuck"], "examine", lambda effort: 1 / 0)
    os.truncate(table, 100)
    (line,) = processor.host.examine()
    assert line.startswith("small version 1 is no longer served: tables/user.safetensors: was truncated")
    assert "cannot check the files of a-stuck" in caplog.text
    with pytest.raises(NotReady, match="was truncated while being served"):
        processor.process(request([1]))
    processor.poll()
    assert processor.host.ready, "one that cannot be read keeps nobody waiting"


def test_loading_model_does_not_delay_deltas_of_others(root, open_processor, monkeypatch):
    write_package(root, users=USERS, model="other")
    processor = open_processor(policies={"other": AT_ONCE})
    other = processor.host.catalogue["other"]
    loading, gate, load = threading.Event(), threading.Event(), other._loader.load

    def held(files):
        loading.set()
        assert gate.wait(TIMEOUT_S)
        return load(files)

    monkeypatch.setattr(other._loader, "load", held)
    write_package(root, 2, users=USERS, model="other")
    events = processor.poll(0.01)
    assert loading.wait(TIMEOUT_S)
    # On a busy machine it is left behind as well.
    until(lambda: not processor.host._rounds.at_work("small"))
    for step in (1, 2):
        publish(root, step, [1], tag=step)
        events += processor.poll(TIMEOUT_S)
    processor.host.tell("other", VersionStatus(3, "LOADING"))
    assert events == ["small 1.1 served", "small 1.2 served"]
    assert [(s.version, s.state) for s in processor.host.status("other")] == [
        (3, "LOADING"),
        (2, "LOADING"),
        (1, "AVAILABLE"),
    ]
    assert processor.host.ready
    gate.set()
    until(lambda: "other 2.0 loaded" in events, lambda: events.extend(processor.poll(TIMEOUT_S)))
    assert events[2:] == ["other 2.0 loaded", "other version 1 unloaded"]
    assert_reply(processor.process(request([1], model="other")), "2.0", scores([1]))


@pytest.mark.parametrize("error", [RuntimeError("out of order"), NotReady("no room"), OSError(28, "No space left")])
def test_maintenance_error_of_one_model_does_not_stop_the_others(root, open_processor, monkeypatch, caplog, error):
    write_package(root, model="able", users=USERS)
    processor = open_processor()

    def maintain(version):
        if version.manifest.model == "able":
            raise error
        return True

    monkeypatch.setattr(ServedVersion, "maintain", maintain)
    assert processor.host.upkeep.maintain()
    assert "cannot maintain the tables of able" in caplog.text


@pytest.mark.parametrize("error", [NotReady("a reader stands still"), TooLarge("the arena is full")])
def test_table_maintenance_error_does_not_stop_other_tables(error, caplog):
    tended = []

    def fail():
        raise error

    def maintain():
        tended.append(True)
        return True

    versions = {"a": SimpleNamespace(maintain=fail), "b": SimpleNamespace(maintain=maintain)}
    models = {
        name: SimpleNamespace(name=name, routes=SimpleNamespace(served={1: version}))
        for name, version in versions.items()
    }
    assert Upkeep(SimpleNamespace(catalogue=models)).maintain() is True
    assert tended == [True]
    assert f"cannot maintain the tables of a: {error}" in caplog.text


def test_start_without_its_store_waits_for_the_store(tmp_path, monkeypatch):
    bucket = Bucket()
    sides.publish(sides.opened(bucket, tmp_path / "trainer"), tmp_path, users=USERS)
    repository = sides.opened(bucket, tmp_path / "server", serving=True)
    monkeypatch.setattr("freshet_serving.processor.engine.open_repository", lambda *_, **__: repository)
    # Beats are the test's.
    monkeypatch.setattr(repository.mirror, "follow", lambda: setattr(repository.mirror, "following", True))
    bucket.down = True
    with Processor.initialize(ProcessorConfig("s3://bucket/prod")) as processor:
        assert not processor.host.ready
        with pytest.raises(NotReady):
            processor.poll()
        assert not processor.host.ready
        bucket.down = False
        repository.mirror.list_all()
        until(lambda: processor.poll() or processor.host.ready)
        until(lambda: processor.host.ready, processor.poll)
        assert processor.host.readiness.pending == []
        assert processor.process(request([0])).generation == Generation(1, 0)


def test_kept_requests_survive_a_restart_in_the_scratch_folder(root, open_processor, tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    first = open_processor(scratch=str(scratch))
    first.process(request([1, 2, 3]))
    kept = first.host.model("small").pick().replicas.kept()
    for _ in range(2):
        first.host.upkeep.keep()
    first.close()
    again = open_processor(scratch=str(scratch))
    assert again.host.model("small").pick().replicas.kept() == kept
    assert open_processor().host.model("small").pick().replicas.kept() == b""
