"""Refusals: who waits, what is said, and when it is tried again; and how long a version stays after it was replaced."""

import logging
import os
import shutil

import pytest

from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.errors import BadInput, NotReady
from freshet_serving.processor.repository.version import VersionReader
from freshet_serving.processor.versions.changes import FailureMessage, WarningMessage, report
from freshet_serving.processor.versions.host import REST_S
from freshet_serving.processor.versions.policy import ModelPolicy
from freshet_serving.processor.versions.routes import VersionStatus
from freshet_serving.processor.versions.version_selection import (
    FIRST_WAIT_S,
    LOOK_S,
    MOST_WAIT_S,
    BakeTime,
    FailedVersions,
)
from tests.processor.engines import USERS, assert_reply, damage, processors, publish, request, scores
from tests.support.packages import write_package

LONG_AGO_S = 1_600_000_000
BROKEN = "dense.safetensors: does not match its checksum"


@pytest.fixture
def open_processor(root):
    with processors(root) as build:
        yield lambda **config: build(**{"strict": False, "sessions": 1} | config)


def mend(folder):
    """Makes good again what damage() did, and nothing else: the manifest stays as it was."""
    path = folder / "dense.safetensors"
    name = path.name
    data = path.read_bytes()
    for last in range(256):
        path.write_bytes(data[:-1] + bytes([last]))
        try:
            VersionReader(folder).verify([name])
        except BadInput:
            continue
        return


def test_unreadable_model_at_start_is_logged_and_the_rest_served(root, open_processor, caplog):
    damage(write_package(root, users=USERS, model="broken"))
    damage(write_package(root, 2, users=USERS))
    processor = open_processor()
    assert processor.host.ready
    assert_reply(processor.process(request([1])), "1.0", scores([1]))
    assert processor.host.status("broken") == [VersionStatus(1, "END", BROKEN)]
    assert processor.info()["models"]["broken"]["versions"][0]["error"] == BROKEN
    told = [(r.levelname, r.getMessage()) for r in caplog.records if "refused" in r.getMessage()]
    assert told == [("ERROR", f"broken version 1 refused: {BROKEN}"), ("ERROR", f"small version 2 refused: {BROKEN}")]
    with pytest.raises(NotReady, match=f"no version of model 'broken' is loaded: version 1: {BROKEN}"):
        processor.process(request([1], model="broken"))


def test_strict_start_fails_naming_every_unservable_model_in_one_line(root, open_processor):
    for name in ("other", "third"):
        damage(write_package(root, users=USERS, model=name))
    damage(write_package(root, 2, users=USERS))
    with pytest.raises(BadInput) as refused:
        open_processor(strict=True)
    assert str(refused.value) == f"model 'other' version 1: {BROKEN}; model 'third' version 1: {BROKEN}"


def test_only_missing_named_models_block_readiness(root, open_processor):
    damage(write_package(root, users=USERS, model="broken"))
    assert open_processor(models=["small", "broken"]).host.ready
    processor = open_processor(models=["small", "later", "other"])
    assert (processor.host.ready, processor.host.missing) == (False, "waiting for models later, other")
    assert processor.host.readiness.pending == ["later", "other"]
    assert_reply(processor.process(request([1])), "1.0", scores([1]))
    for model in ("later", "other"):
        write_package(root, users=USERS, model=model)
    processor.poll()
    assert processor.host.ready


def test_repaired_version_is_served_once_its_files_settle(root, open_processor):
    folder, clock = write_package(root, users=USERS, model="broken"), FakeClock()
    damage(folder)
    processor = open_processor(clock=clock)
    processor.poll()
    mend(folder)
    events = []
    for _ in range(4):
        clock.advance(LOOK_S)
        events += processor.poll()
    assert events == ["broken 1.0 loaded"]
    assert_reply(processor.process(request([1], model="broken")), "1.0", scores([1]))


def test_retry_of_a_failed_version_does_not_reset_readiness(root, open_processor):
    write_package(root, users=USERS, model="broken")
    damage(root / "broken" / "1")
    processor = open_processor()
    processor.host.tell("broken", VersionStatus(2, "LOADING"))
    assert processor.host.ready
    processor.host.tell("broken", VersionStatus(2, "END", "source: variables are missing"))
    assert processor.host.ready


def test_readiness_waits_for_a_running_import_until_it_is_refused(root, open_processor):
    (root / "keras" / "1").mkdir(parents=True)
    (root / "keras" / "1" / "model.keras").write_text("zip")
    processor = open_processor()
    processor.host.expect(["keras"])
    assert (processor.host.ready, processor.host.readiness.pending) == (False, ["keras"])
    processor.host.tell("keras", VersionStatus(1, "LOADING"))
    assert not processor.host.ready
    processor.host.tell("keras", VersionStatus(1, "END", "the file is no zip"))
    assert processor.host.ready


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("gone", ["keras", "keras/1"])
def test_readiness_does_not_wait_for_a_deleted_model(root, open_processor, gone, told):
    (root / "keras" / "1").mkdir(parents=True)
    processor = open_processor()
    if told:
        processor.host.tell("keras", VersionStatus(1, "LOADING"))
    processor.host.expect(["keras"])
    assert not processor.host.ready
    shutil.rmtree(root / gone)
    processor.poll()
    assert processor.host.ready


def test_readiness_waits_for_an_import_after_an_older_refused_package(root, open_processor):
    damage(write_package(root, users=USERS, model="mixed"))
    (root / "mixed" / "2").mkdir()
    processor = open_processor()
    assert processor.host.ready
    processor.host.tell("mixed", VersionStatus(2, "LOADING"))
    processor.host.expect(["mixed"])
    assert processor.host.readiness.pending == ["mixed"]
    processor.host.tell("mixed", VersionStatus(2, "END", "source: variables are missing"))
    assert processor.host.ready


def test_refused_model_whose_folder_is_deleted_is_forgotten(root, open_processor):
    damage(write_package(root, users=USERS, model="broken"))
    processor = open_processor()
    shutil.rmtree(root / "broken")
    processor.poll()
    assert processor.host.models() == ["small"]
    assert processor.host.ready


def test_refused_version_is_forgotten_once_deleted_or_superseded(root, open_processor):
    damage(write_package(root, 2, users=USERS))
    processor = open_processor()
    write_package(root, 3, users=USERS)
    processor.poll()
    assert [s.version for s in processor.host.status("small") if s.error] == []
    damage(write_package(root, 4, users=USERS))
    processor.poll()
    assert [s.version for s in processor.host.status("small") if s.error] == [4]
    shutil.rmtree(root / "small" / "4")
    processor.poll()
    assert [s.version for s in processor.host.status("small") if s.error] == []


def test_status_lists_requested_versions_that_are_missing(root, open_processor):
    policy = ModelPolicy.parse({"versions": [1, 9], "labels": {"stable": 7}}, "model.small")
    processor = open_processor(policies={"small": policy})
    why = "it is not in the repository, which holds 1"
    assert processor.host.status("small") == [
        VersionStatus(9, "END", why),
        VersionStatus(7, "END", why),
        VersionStatus(1, "AVAILABLE"),
    ]
    assert processor.poll() == []
    assert processor.host.ready
    (root / "small" / "9").mkdir()
    processor.host.tell("small", VersionStatus(9, "LOADING"))
    assert processor.poll() == []
    assert processor.host.status("small")[0] == VersionStatus(9, "LOADING")
    write_package(root, 7, users=USERS)
    assert "small 7.0 loaded" in processor.poll()


def test_policy_for_a_missing_model_is_logged(root, open_processor, caplog):
    open_processor(policies={"nope": ModelPolicy()})
    assert "model.nope: the repository does not contain this model yet" in caplog.text


def test_model_with_read_errors_backs_off_and_the_others_continue(root, open_processor, monkeypatch):
    write_package(root, users=USERS, model="a-stuck")
    clock = FakeClock()
    processor = open_processor(clock=clock)
    stuck = processor.host.catalogue["a-stuck"]

    def fail():
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(stuck, "poll", fail)
    publish(root, 1, [1], tag=1)
    told = "a-stuck: OSError: [Errno 5] Input/output error; trying again in 5 s"
    assert processor.poll() == [told, "small 1.1 served"]
    assert processor.poll() == []
    clock.advance(REST_S)
    assert processor.poll() == [told]


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (
            PermissionError(13, "Permission denied", "/somewhere/secret/user.safetensors"),
            "user.safetensors: Permission",
        ),
        (OSError(5, "Input/output error"), "Input/output error"),
        (MemoryError("of 9 GiB"), "not enough memory"),
    ],
)
def test_system_error_is_reported_in_one_line_without_a_path(root, open_processor, monkeypatch, caplog, error, why):
    def fail(self, names=None):
        raise error

    monkeypatch.setattr(VersionReader, "verify", fail)
    (status,) = open_processor().host.status("small")
    assert status.error.startswith(why)
    assert "secret" not in caplog.text
    assert "Traceback" not in caplog.text


def test_file_still_being_copied_is_not_loaded(tmp_path):
    clock, folder = FakeClock(), tmp_path / "1"
    folder.mkdir()
    (folder / "model.json").write_text("{}")
    refusals = FailedVersions(lambda number: tmp_path / str(number), clock)
    refusals.note(1, refusals.worth_a_try(1))
    assert refusals.worth_a_try(1) is None
    for size in (1, 2, 3):
        (folder / "table").write_text("x" * size)
        clock.advance(LOOK_S)
        assert not refusals.changed()
    clock.advance(LOOK_S)
    assert refusals.changed()
    assert refusals.worth_a_try(1) is not None
    (folder / "table").unlink()
    for name in ("chain", "deltas", ".hidden"):
        (folder / name).mkdir()
        (folder / name / "1").write_text("one more")
    for _ in range(3):
        clock.advance(LOOK_S)
        assert not refusals.changed()


def test_waiting_version_is_retried_with_backoff_that_resets_once_served(tmp_path):
    clock, folder = FakeClock(), tmp_path / "1"
    folder.mkdir()
    (folder / "model.json").write_text("{}")
    refusals = FailedVersions(lambda number: tmp_path / str(number), clock)
    waited = []
    for _ in range(12):
        refusals.wait(1)
        assert refusals.rests(1)
        assert refusals.worth_a_try(1) is None
        assert not refusals.changed()
        began_s = clock.now_s()
        while not refusals.changed():
            clock.advance(FIRST_WAIT_S / 4)
        assert refusals.worth_a_try(1) is not None
        assert not refusals.changed(), "whoever does not try it is not told again"
        waited.append(round(clock.now_s() - began_s, 3))
    assert waited[:3] == pytest.approx([FIRST_WAIT_S, 2 * FIRST_WAIT_S, 4 * FIRST_WAIT_S], abs=FIRST_WAIT_S / 2)
    assert waited == sorted(waited)
    assert waited[-1] == pytest.approx(MOST_WAIT_S, abs=FIRST_WAIT_S / 2)
    refusals.forget(1)
    refusals.wait(1)
    clock.advance(FIRST_WAIT_S)
    assert refusals.changed()


@pytest.mark.parametrize("error", [MemoryError(), OSError(12, "Cannot allocate memory"), OSError(24, "Too many")])
def test_version_refused_for_lack_of_resources_is_served_later(root, open_processor, monkeypatch, error):
    clock = FakeClock()
    processor = open_processor(clock=clock)
    real, tried = VersionReader.verify, []

    def fail(self, names=None):
        tried.append(1)
        if len(tried) < 4:
            raise error
        real(self, names)

    monkeypatch.setattr(VersionReader, "verify", fail)
    write_package(root, 2, users=USERS)
    os.utime(root / "small", (LONG_AGO_S, LONG_AGO_S))
    processor.poll()
    assert processor.host.status("small")[0].state == "END"
    assert_reply(processor.process(request([1])), "1.0", scores([1]))
    for _ in range(3):
        processor.poll()
        clock.advance(MOST_WAIT_S)
        processor.poll()
    assert len(tried) == 4
    assert_reply(processor.process(request([1])), "2.0", scores([1]))


def test_refusals_are_logged_as_errors_and_divergence_as_a_warning(caplog):
    caplog.set_level(logging.INFO)
    lines = ["ctr 1.0 loaded", FailureMessage("ctr version 2 refused: why"), WarningMessage("ctr DIVERGED: damaged")]
    report(logging.getLogger("freshet.test"), lines)
    assert [r.levelname for r in caplog.records] == ["INFO", "ERROR", "WARNING"]


def test_repository_without_a_model_is_not_ready_and_says_why(tmp_path):
    (tmp_path / "empty").mkdir()
    with processors(tmp_path / "empty") as build:
        host = build(sessions=1).host
        assert (host.ready, host.missing) == (False, "the repository has no model")
        write_package(tmp_path / "empty", users=USERS)
        host.poll()
        assert (host.ready, host.missing) == (True, "")


def test_empty_repository_is_ready_on_request(tmp_path):
    (tmp_path / "empty").mkdir()
    with processors(tmp_path / "empty") as build:
        host = build(sessions=1, ready_when_empty=True).host
        assert host.ready
        damage(write_package(tmp_path / "empty", users=USERS))
        host.poll()
        assert (host.ready, host.missing) == (False, "no model can be served: the server's log has the reasons")


def test_folder_of_one_model_is_named_as_such(root):
    with processors(root / "small") as build:
        host = build(sessions=1).host
        assert not host.ready
        assert host.missing.startswith("the repository is the folder of one model")


@pytest.fixture
def clock():
    return FakeClock()


def test_version_stays_for_the_bake_time_and_ends_once(clock):
    bake = BakeTime(clock, lambda: 0.5)
    bake.begin(3)
    assert not bake.end_if_due(60.0)
    clock.advance(59.9)
    assert not bake.end_if_due(60.0)
    assert bake.number == 3
    clock.advance(0.1)
    assert bake.end_if_due(60.0)
    assert bake.number == 0
    assert not bake.end_if_due(60.0)


def test_lack_of_memory_ends_it_early(clock):
    free = [0.5, 0.19]
    bake = BakeTime(clock, lambda: free.pop(0))
    bake.begin(3)
    assert not bake.end_if_due(60.0)
    # Memory is read once a second at most.
    assert not bake.end_if_due(60.0)
    clock.advance(LOOK_S)
    assert bake.end_if_due(60.0)


def test_next_replaced_version_takes_the_place_of_the_last(clock):
    bake = BakeTime(clock, lambda: 0.5)
    bake.begin(3)
    clock.advance(50.0)
    bake.begin(4)
    clock.advance(50.0)
    assert not bake.end_if_due(60.0)
    assert bake.number == 4


def test_bake_time_of_zero_keeps_nothing(clock):
    bake = BakeTime(clock, lambda: 1.0)
    bake.begin(3)
    assert bake.end_if_due(0.0)
