"""The gate's holds: recorded where that is possible, and of this server alone where it is not."""

import pytest

from freshet_serving.processor.errors import Conflict, NotReady
from freshet_serving.processor.repository import Repository
from freshet_serving.processor.versions.version_actions import release_version
from freshet_serving.processor.versions.version_decisions import VersionDecisions
from tests.processor.versions.models import USERS
from tests.support.packages import write_package


@pytest.fixture
def repository(tmp_path):
    for version in (1, 2):
        write_package(tmp_path, version, users=USERS)
    return Repository(tmp_path)


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
