"""Going back across versions: loaded, recorded, switched; never half, and never served again by itself."""

import pytest

from freshet_serving.processor.errors import BadInput, Conflict, NotFound
from freshet_serving.processor.repository import WITHDRAW, Repository
from freshet_serving.processor.repository.log.chain_record import RELEASE
from freshet_serving.processor.versions.policy import ModelPolicy
from freshet_serving.processor.versions.version_rollback import RollbackTarget, roll_back
from tests.processor.extensions.object_stores.bucket import Bucket
from tests.processor.extensions.object_stores.sides import opened
from tests.processor.extensions.object_stores.sides import publish as publish_version
from tests.processor.extensions.object_stores.test_mirrored_repository import Replica
from tests.processor.versions.models import USERS, assert_serves, open_model, publish
from tests.support.packages import write_package
from tests.support.signing import reads, writes


@pytest.fixture
def root(tmp_path):
    """Version 1 at step 2, and version 2."""
    write_package(tmp_path, users=USERS)
    for step in (1, 2):
        publish(tmp_path, step, users=[step])
    write_package(tmp_path, 2, users=USERS, seed=2)
    return tmp_path


def back(model, text="", reason=""):
    return roll_back(model, RollbackTarget.parse(text) if text else None, reason)


def decisions(root):
    return [(one.version, one.action, one.by) for one in Repository(root).version_records("small").all()]


@pytest.mark.parametrize(
    ("text", "target"), [("1.17", RollbackTarget(1, 17)), ("1", RollbackTarget(1)), ("3.0", RollbackTarget(3, 0))]
)
def test_generation_and_version_are_both_targets(text, target):
    assert RollbackTarget.parse(text) == target
    assert str(target) == text


@pytest.mark.parametrize("text", ["", "0", "x", "1.", "-1", "1.2.3", "9" * 19])
def test_anything_else_is_no_target(text):
    with pytest.raises(BadInput, match=r"expected 'version\.step' such as '3\.17', or a version such as '3'"):
        RollbackTarget.parse(text)


def test_bad_night_is_gone_back_from_and_stays_away(root):
    """Labels were all 0: the version was live at once, and the rollback said "version 1 is not loaded"."""
    model, other = open_model(root), open_model(root)
    assert list(model.routes.served) == [2]
    done = back(model, "1", "labels were all 0")
    assert_serves(model, "1.2", {1: 1, 2: 2})
    assert (str(done.generation), [*map(str, done.undone)], done.withdrawn) == ("1.2", ["2.0"], (2,))
    assert done.recorded
    assert done.next_step == 3
    assert list(model.routes.served) == [1]
    assert decisions(root) == [(1, RELEASE, "rollback"), (2, WITHDRAW, "rollback")]
    # Another server of the repository, and servers that start later.
    other.poll()
    for server in (other, open_model(root), open_model(root)):
        assert list(server.routes.served) == [1]
        assert server.pick().digest == model.pick().digest
        assert "labels were all 0" in {s.version: s.error for s in server.routes.status()}[2]
    # Deltas go on, and the next good night is served.
    publish(root, 3, users=[3])
    other.poll()
    assert str(other.pick().generation) == "1.3"
    write_package(root, 3, users=USERS, seed=3)
    for server in (model, other):
        server.poll()
        assert list(server.routes.served) == [3]


def test_new_content_under_an_old_number_is_not_bound(root):
    model = open_model(root)
    back(model)
    Repository(root).storage("small", 2).end()
    model.poll()
    write_package(root, 2, users=range(3), seed=7)
    model.poll()
    assert list(model.routes.served) == [2]


def test_step_of_an_earlier_version_is_reached_in_its_own_log(root):
    model = open_model(root)
    done = back(model, "1.1")
    assert_serves(model, "1.1", {1: 1})
    assert [*map(str, done.undone)] == ["1.2", "2.0"]
    assert_serves(open_model(root), "1.1", {1: 1})


def test_without_a_generation_the_one_before_is_served(root):
    model = open_model(root)
    publish(root, 1, users=[5], version=2)
    model.poll()
    assert str(back(model).generation) == "2.0"
    assert decisions(root) == []
    assert str(back(model).generation) == "1.2"
    assert str(back(model).generation) == "1.1"
    assert str(back(model).generation) == "1.0"
    with pytest.raises(Conflict, match=r"nothing was served before 1\.0"):
        back(model)


def test_versions_in_between_are_withdrawn_too(root):
    write_package(root, 3, users=USERS, seed=3)
    assert back(open_model(root), "1").withdrawn == (2, 3)
    assert list(open_model(root).routes.served) == [1]


def test_newer_version_is_not_a_rollback(root):
    model = open_model(root)
    back(model, "1")
    with pytest.raises(Conflict, match="freshet version release small 2"):
        back(model, "2")
    with pytest.raises(NotFound, match="version 7"):
        open_model(root).prepare(7)


@pytest.mark.parametrize(
    ("place", "advice"),
    [
        ("", "it is not in the repository, which holds 2, 1$"),
        ("9", "nothing bars it; `freshet version list small` and"),
        ("candidates/9", "it is a candidate that the gate refused; `freshet version release small 9` makes it"),
    ],
)
def test_advice_for_a_newer_version_says_why_it_is_not_served(root, tmp_path_factory, place, advice):
    model = open_model(root)
    if place:
        made = write_package(tmp_path_factory.mktemp("made"), 9, users=USERS)
        (root / "small" / place).parent.mkdir(exist_ok=True)
        made.rename(root / "small" / place)
    with pytest.raises(Conflict, match=rf"expected a generation before 2\.0, got 9: {advice}"):
        back(model, "9")


def test_file_in_the_place_of_the_records_stops_no_poll(root):
    (root / "small" / "withdrawn").write_bytes(b"")
    model = open_model(root)
    write_package(root, 3, users=USERS, seed=3)
    assert model.poll() == ["small 3.0 loaded", "small version 2 unloaded"]
    assert not back(model, "2").recorded
    assert str(model.pick().generation) == "2.0"


def test_served_version_alone_undoes_nothing(root):
    assert back(open_model(root), "2").undone == []
    assert decisions(root) == []


@pytest.mark.parametrize("stage", ["release", "withdraw", "choose"])
def test_kill_at_any_stage_leaves_one_version_or_the_other(root, monkeypatch, stage):
    class Kill(BaseException):
        pass

    model = open_model(root)
    owner = model if stage == "choose" else model.decisions

    def kill(*args, **options):
        raise Kill

    monkeypatch.setattr(owner, stage, kill)
    with pytest.raises(Kill):
        back(model, "1")
    restarted = open_model(root)
    assert list(restarted.routes.served) == ([1] if stage == "choose" else [2])
    if stage != "choose":
        assert str(back(restarted, "1").generation) == "1.2"
        assert list(open_model(root).routes.served) == [1]


def test_version_that_cannot_be_loaded_is_not_gone_back_to(root):
    (root / "small" / "1" / "dense.safetensors").write_bytes(b"x")
    model = open_model(root)
    with pytest.raises(Exception, match=r"dense\.safetensors"):
        back(model, "1")
    assert decisions(root) == []
    model.poll()
    assert list(model.routes.served) == [2]


# Policies, labels, traffic


def policy(**keys):
    return ModelPolicy.parse(keys, "model.small")


def test_two_latest_versions_are_two_that_nothing_bars(root):
    write_package(root, 3, users=USERS, seed=3)
    model = open_model(root, policy=policy(versions="latest:2"))
    assert sorted(model.routes.served) == [2, 3]
    back(model, "2")
    assert sorted(model.routes.served) == [1, 2]
    assert str(model.pick().generation) == "2.0"


def test_label_keeps_a_withdrawn_version_for_those_who_name_it(root, caplog):
    model = open_model(root, policy=policy(labels={"new": 2}))
    back(model, "1")
    assert str(model.pick().generation) == "1.2"
    assert str(model.pick(label="new").generation) == "2.0"
    for _ in range(3):
        model.poll()
    assert caplog.text.count("served because a label or the policy names it") == 1


def test_list_of_versions_names_them_by_hand(root):
    model = open_model(root, policy=policy(versions=[1, 2]))
    back(model, "1")
    assert sorted(model.routes.served) == [1, 2]
    assert str(model.pick().generation) == "1.2"
    alone = open_model(root, policy=policy(versions=[2]))
    assert list(alone.routes.served) == [2]
    with pytest.raises(Conflict, match=r"add 1 to model\.small\.versions first"):
        back(alone, "1")


def test_version_loaded_by_hand_goes_with_its_withdrawal_unless_loaded_after_it(root):
    model = open_model(root)
    model.load(2)
    back(model, "1")
    assert list(model.routes.served) == [1]
    model.load(2)
    model.poll()
    assert sorted(model.routes.served) == [1, 2]
    assert str(model.pick().generation) == "1.2"


def test_change_of_policy_keeps_what_is_barred(root):
    model = open_model(root, policy=policy(labels={"new": 2}))
    back(model, "1")
    model.set_policy({"max_rows": 10})
    assert str(model.pick().generation) == "1.2"


# Keys, places that cannot be written, object stores


def test_rollback_in_a_signed_repository_is_no_downgrade(tmp_path):
    root, memory = tmp_path / "repository", tmp_path / "memory"
    for version in (1, 2):
        write_package(root, version, users=USERS, keyring=writes())
    server = open_model(root, keyring=reads(memory=memory))
    assert list(server.routes.served) == [2]
    back(open_model(root, keyring=writes()), "1")
    server.poll()
    assert list(server.routes.served) == [1]
    Repository(root).storage("small", 2).end()
    assert list(open_model(root, keyring=reads(memory=memory)).routes.served) == [1]


def test_server_without_the_key_goes_back_alone(tmp_path):
    root = tmp_path / "repository"
    for version in (1, 2):
        write_package(root, version, users=USERS, keyring=writes())
    model = open_model(root, keyring=reads())
    assert not back(model, "1").recorded
    model.poll()
    assert list(model.routes.served) == [1]
    assert list(open_model(root, keyring=reads()).routes.served) == [2]


def test_servers_and_a_mirror_end_at_one_digest(tmp_path):
    bucket = Bucket()
    trainer = opened(bucket, tmp_path / "trainer")
    for version in (1, 2):
        publish_version(trainer, tmp_path, version, seed=version)
    first, second = (Replica(bucket, tmp_path / name) for name in ("first", "second"))
    for server in (first, second):
        server.go()
        assert list(server.model.routes.served) == [2]
    assert str(back(first.model, "1").generation) == "1.0"
    second.go()
    late = Replica(bucket, tmp_path / "late")
    late.go()
    assert {server.model.pick().digest for server in (first, second, late)} == {first.model.pick().digest}
    assert [list(server.model.routes.served) for server in (first, second, late)] == [[1], [1], [1]]
    assert trainer.standing("small", [2])[2].by == "rollback"


def test_release_that_comes_first_stops_the_rollback(root, monkeypatch):
    model = open_model(root)
    records = model._repository.version_records("small")
    add, slow = records.add, []

    def late(*args, **options):
        if args[2] == WITHDRAW and not slow:
            slow.append(True)
            Repository(root).version_records("small").add(2, args[1], RELEASE, by="ann")
        return add(*args, **options)

    monkeypatch.setattr(records, "add", late)
    with pytest.raises(Conflict, match="at the same time"):
        back(model, "1")
    model.poll()
    assert list(model.routes.served) == [2]
