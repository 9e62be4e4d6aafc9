"""What people and gates decide about versions, as a server chooses by it."""

import json
import shutil

import pytest

from freshet_serving.processor.errors import Conflict, NotFound, NotReady
from freshet_serving.processor.repository import WITHDRAW, Repository, VersionRecord
from freshet_serving.processor.repository.log.chain_record import HOLD
from freshet_serving.processor.versions.policy import ModelPolicy
from freshet_serving.processor.versions.version_actions import (
    describe_served,
    describe_versions,
    reject_version,
    release_version,
)
from freshet_serving.processor.versions.version_decisions import VersionDecisions
from freshet_serving.serving.codecs.wire import dump_json
from tests.processor.versions.models import USERS, open_model
from tests.support.extensions import needs
from tests.support.packages import write_package
from tests.support.signing import reads, writes


@pytest.fixture
def root(tmp_path):
    for version in (1, 2):
        write_package(tmp_path, version, users=USERS, seed=version)
    return tmp_path


def policy(**keys):
    return ModelPolicy.parse(keys, "model.small")


def test_withdrawn_version_serves_until_another_can(root):
    model = open_model(root)
    (root / "small" / "1" / "dense.safetensors").write_bytes(b"x")
    records = Repository(root).version_records("small")
    records.add(2, Repository(root).root_of("small", 2), WITHDRAW)
    model.poll()
    assert list(model.routes.served) == [2]
    with pytest.raises(NotReady, match="no version"):
        open_model(root).pick()


def test_held_version_is_never_chosen_at_a_start(root):
    records = Repository(root).version_records("small")
    for number in (1, 2):
        records.add(number, Repository(root).root_of("small", number), HOLD, "constant scores", "gate")
    model = open_model(root)
    assert not model.routes.served
    assert "held by gate: constant scores" in model.routes.refused


def test_rejecting_the_only_version_is_refused(root):
    repository = Repository(root)
    reject_version(repository, "small", 1)
    with pytest.raises(Conflict, match="the only one that can be served"):
        reject_version(repository, "small", 2)
    reject_version(repository, "small", 1)
    with pytest.raises(NotFound):
        reject_version(repository, "small", 9)
    with pytest.raises(NotFound):
        release_version(repository, "small", 9)


@needs("trials")
def test_withdrawn_canary_takes_no_share_of_traffic(root):
    model = open_model(root, policy=policy(labels={"stable": 1, "canary": 2}, split={"stable": 1, "canary": 1}))
    assert model.routes.shares() == {1: 0.5, 2: 0.5}
    reject_version(Repository(root), "small", 2)
    model.poll()
    assert model.routes.shares() == {1: 1.0}
    assert model.routes.trials() == []


def test_no_other_version_steps_in_while_the_chosen_one_loads(root, monkeypatch):
    write_package(root, 3, users=USERS, seed=3)
    model = open_model(root, policy=policy(labels={"archive": 1}))
    assert sorted(model.routes.served) == [1, 3]
    monkeypatch.setattr(model._repository, "ready", lambda name, number: False)
    reject_version(Repository(root), "small", 3)
    model.poll()
    assert str(model.pick().generation) == "3.0"
    monkeypatch.undo()
    model.poll()
    assert str(model.pick().generation) == "2.0"
    assert sorted(model.routes.served) == [1, 2]


def test_unsigned_withdrawal_moves_no_server_that_trusts_a_key(tmp_path):
    root = tmp_path / "repository"
    for version in (1, 2):
        write_package(root, version, users=USERS, keyring=writes())
    Repository(root).version_records("small").add(2, Repository(root).root_of("small", 2), WITHDRAW)
    assert list(open_model(root, keyring=reads(memory=tmp_path / "memory")).routes.served) == [2]


def test_released_version_is_served_again(root):
    model = open_model(root)
    reject_version(Repository(root), "small", 2)
    model.poll()
    assert list(model.routes.served) == [1]
    release_version(Repository(root), "small", 2, by="ann")
    model.poll()
    assert list(model.routes.served) == [2]
    assert list(open_model(root).routes.served) == [2]


def test_candidate_is_listed_released_and_rejected_like_a_version(root):
    made = root / "made"
    write_package(made, 3, users=range(3))
    calls = []

    class WithCandidates(Repository):
        def candidates(self, model):
            return [3, 4]

        def candidate(self, model, number):
            return Repository(made).version("small", 3)

        def release_candidate(self, model, number):
            calls.append(("release", number))

        def reject_candidate(self, model, number):
            calls.append(("reject", number))

    repository = WithCandidates(root)
    states = [(one["version"], one["state"]) for one in describe_versions(repository, "small")]
    assert states == [(4, "candidate"), (3, "candidate"), (2, "available"), (1, "available")]
    release_version(repository, "small", 3)
    reject_version(repository, "small", 4)
    assert calls == [("release", 3), ("reject", 4)]
    released = Repository(root).version_records("small").all()
    assert [(one.version, one.action, one.manifest) for one in released] == [
        (3, "release", Repository(made).root_of("small", 3))
    ]


def test_server_lists_what_it_does_with_each_version(root):
    model = open_model(root, policy=policy(labels={"old": 1}))
    reject_version(Repository(root), "small", 2, "labels were all 0", "ann")
    model.poll()
    newest, oldest = describe_served(Repository(root), model.routes)
    assert (newest["version"], newest["state"], newest["reason"], newest["by"]) == (
        2, "withdrawn", "labels were all 0", "ann"
    )  # fmt: skip
    assert (newest["generation"], newest["default"], newest["labels"]) == ("", False, [])
    assert (oldest["version"], oldest["state"], oldest["generation"]) == (1, "available", "1.0")
    assert (oldest["default"], oldest["labels"], oldest["unjudged"]) == (True, ["old"], "")
    verdicts = {str(number): {"unjudged": "start"} for number in (1, 2)}
    newest, oldest = describe_served(Repository(root), model.routes, verdicts)
    assert (newest["unjudged"], oldest["unjudged"]) == ("", "start")


def candidate(root, number, notes=None):
    """Writes version 1 as a candidate of another number."""
    folder = root / "small" / "candidates" / str(number)
    shutil.copytree(root / "small" / "1", folder)
    document = json.loads((folder / "model.json").read_bytes())
    (folder / "model.json").write_text(json.dumps({**document, "version": number, "notes": notes or {}}))


@pytest.mark.parametrize(
    ("gate", "lines"),
    [
        ({"reasons": ["\ud800\n"] * 50}, ["\\ud800\\n"] * 20),
        ({"reasons": ["x" * 9999, 2**70, None, {}]}, ["x" * 500]),
        ({"reasons": {"a": 1}, "verdict": [1]}, []),
        ({"figures": 2**70}, []),
    ],
)
def test_hostile_notes_are_listed_as_bounded_lines(root, gate, lines):
    candidate(root, 3, {"gate": gate})
    listed = describe_versions(Repository(root), "small")
    assert listed[0]["gate"]["reasons"] == lines
    dump_json(listed)


def test_hostile_record_is_listed(root):
    root_of_2 = Repository(root).root_of("small", 2)
    record = VersionRecord("small", 2, 1, WITHDRAW, root_of_2, "\ud800", "\udfff\x1b", 1e11)
    (root / "small" / "withdrawn").mkdir()
    (root / "small" / "withdrawn" / "2-1.json").write_bytes(record.to_bytes())
    entry = describe_versions(Repository(root), "small")[0]
    assert (entry["reason"], entry["by"]) == ("\\ud800", "\\udfff\\x1b")
    dump_json(entry)


def test_rejecting_a_candidate_leaves_another_version_of_its_number(root):
    candidate(root, 2)
    repository = Repository(root)
    with pytest.raises(Conflict, match="reject it"):
        release_version(repository, "small", 2)
    reject_version(repository, "small", 2)
    assert not repository.candidates("small")
    assert not repository.standing("small", [2])
    reject_version(repository, "small", 2)
    assert repository.standing("small", [2])[2].binds


def test_rejecting_a_half_released_candidate_withdraws_its_version(root):
    shutil.copytree(root / "small" / "2", root / "small" / "candidates" / "2")
    reject_version(Repository(root), "small", 2)
    assert not Repository(root).candidates("small")
    assert Repository(root).standing("small", [2])[2].binds


@pytest.fixture
def repository(root):
    return Repository(root)


@pytest.fixture
def decisions(repository):
    return VersionDecisions("small", repository)


def refuse(repository, monkeypatch, error):
    """No record can be added."""

    def add(*args):
        raise error

    monkeypatch.setattr(repository.version_records("small"), "add", add)


def test_hold_is_recorded_and_bars_at_once(repository, decisions):
    assert decisions.hold(2, "the order would change") == "held by gate: the order would change"
    assert decisions.barred == {2: "held by gate: the order would change"}
    assert decisions.held.keys() == {2}
    other = VersionDecisions("small", repository)
    assert other.read([1, 2]) == {2}
    assert other.held.keys() == {2}
    assert not other.released(2)


def test_released_version_is_not_held(repository, decisions):
    decisions.hold(2, "why")
    release_version(repository, "small", 2)
    assert decisions.released(2)
    decisions.read([1, 2])
    assert not decisions.barred


def test_withdrawn_version_waits_for_nobody(repository, decisions):
    decisions.withdraw([2], "labels were all 0")
    decisions.read([1, 2])
    assert decisions.barred.keys() == {2}
    assert not decisions.held


@pytest.mark.parametrize(("first", "why"), [("release", ""), ("hold", "held by gate: theirs")])
def test_decision_of_another_server_at_the_same_time_stands(repository, decisions, monkeypatch, first, why):
    records = repository.version_records("small")
    records.add(2, repository.root_of("small", 2), first, "theirs", "gate")
    refuse(repository, monkeypatch, Conflict("another decision"))
    assert decisions.hold(2, "mine") == why


def test_hold_without_a_record_ends_with_a_release_or_another_version(repository, decisions, monkeypatch, caplog):
    with monkeypatch.context() as patched:
        refuse(repository, patched, NotReady("read-only"))
        assert decisions.hold(2, "why") == "held by gate, on this server alone: why"
    assert "held by this server alone: read-only" in caplog.text
    decisions.read([1, 2])
    assert decisions.barred == {2: "held by gate, on this server alone: why"}
    assert decisions.held.keys() == {2}
    decisions.read([1])
    assert not decisions.held
    release_version(repository, "small", 2)
    decisions.read([1, 2])
    assert not decisions.barred
