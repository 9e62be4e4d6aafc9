"""The gate's verdicts on versions whose scores are made up."""

import logging
from types import SimpleNamespace

import numpy as np
import pytest

from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.errors import Conflict, NotReady
from freshet_serving.processor.repository import VersionRecord, root_hash
from freshet_serving.processor.versions.kept_requests import KeptRequest, dump_requests
from freshet_serving.processor.versions.policy import ModelPolicy
from freshet_serving.processor.versions.version_gate import MOST_VERDICTS, VersionGate, VersionHeld
from freshet_serving.processor.watching import IN_LINE, OUT_OF_LINE, UNJUDGED, RequestScores
from freshet_serving.processor.watching.version_judge import LEARN
from tests.support.packages import manifest

ROWS = 128
MANIFEST = manifest(2)
ROOT = root_hash(MANIFEST)
GOOD = 1 / (1 + np.exp(2 - np.random.default_rng(0).standard_normal(ROWS)))


class Replicas:
    """Replicas of a version that scores as a test says."""

    def __init__(self, scores, kept=b"requests"):
        self._scores, self._kept, self.remembered = scores, kept, []

    def kept(self):
        return self._kept

    def remember(self, requests):
        self.remembered.append(requests)

    def score(self, requests, max_s):
        assert requests == b"requests"
        if self._scores is None:
            return None
        whole = np.ones(ROWS, bool)
        return RequestScores(whole, ~whole, {"ctr": np.asarray(self._scores, np.float32).reshape(-1, 1)})


class Version:
    """A version with such replicas."""

    def __init__(self, scores, kept=b"requests", number=2):
        self.replicas, self.manifest = Replicas(scores, kept), SimpleNamespace(version=number, inputs=["a"])
        self.files = SimpleNamespace(root_manifest=MANIFEST)


SERVED = Version(GOOD, number=1)


class Records:
    """Decisions about version 2, one after another."""

    def __init__(self, *actions, refusal=None, first=None):
        self._standing = [None, *map(record, actions)][-1]
        self._refusal, self._first, self.added = refusal, first, []

    def standing(self, version, manifest):
        assert (version, manifest) == (2, ROOT)
        return self._standing

    def add(self, version, manifest, action, reason="", by=""):
        if self._refusal is not None:
            self._standing = self._first
            raise self._refusal
        self.added.append((version, manifest, action, reason, by))
        return record(action, reason, by)


def record(action, reason="", by=""):
    return VersionRecord("small", 2, 1, action, ROOT, reason, by)


class Files:
    """Kept files of one model, in memory."""

    def __init__(self, requests=b""):
        self.requests = requests

    def read(self, model, inputs):
        assert (model, inputs) == ("small", ["a"])
        return self.requests

    def write(self, model, inputs, requests):
        assert (model, inputs) == ("small", ["a"])
        self.requests = requests


@pytest.fixture
def gate():
    return VersionGate("small", ModelPolicy, FakeClock())


def test_version_in_line_is_not_held(gate):
    gate.check(SERVED, Version(GOOD * 1.1), Records())
    assert gate.verdicts[2].outcome == IN_LINE
    assert gate.outcomes == {IN_LINE: 1}
    assert sum(gate.judge_s.counts) == 1


def test_version_out_of_line_is_held_and_logged(gate, caplog):
    records = Records()
    with pytest.raises(VersionHeld, match=r"^held by gate: the mean score of 'ctr' would change"):
        gate.check(SERVED, Version(GOOD * 1e-4), records)
    verdict = gate.verdicts[2]
    assert verdict.outcome == OUT_OF_LINE
    assert records.added == [(2, ROOT, "hold", verdict.reason, "gate")]
    assert gate.held == {2: f"held by gate: {verdict.reason}"}
    assert [(record.levelno, record.message) for record in caplog.records] == [
        (logging.ERROR, f"small version 2: out of line: {verdict.reason}")
    ]


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (Version(GOOD, kept=b""), Version(GOOD), "no requests of the served version are kept yet"),
        (SERVED, Version(None), "its rows are in a row store, or no process could score the kept requests"),
        (Version(None), Version(GOOD), "its rows are in a row store, or no process could score the kept requests"),
        (SERVED, Version(["x"]), "the kept requests could not be scored; see the server's log"),
    ],
)
def test_version_that_cannot_be_scored_is_served_unless_the_policy_holds_it(gate, before, after, reason):
    records = Records()
    gate.check(before, after, records)
    assert (gate.verdicts[2].outcome, gate.verdicts[2].reason) == (UNJUDGED, reason)
    with pytest.raises(VersionHeld, match=r"^held by gate: not judged: "):
        VersionGate("small", lambda: ModelPolicy(unjudged="hold"), FakeClock()).check(before, after, records)
    assert records.added == [(2, ROOT, "hold", f"not judged: {reason}", "gate")]


def test_released_version_is_not_judged(gate):
    gate.check(SERVED, Version(GOOD * 1e-4), Records("hold", "release"))
    assert not gate.verdicts


@pytest.mark.parametrize("action", ["hold", "withdraw"])
def test_decision_that_another_server_has_made_binds(gate, action):
    with pytest.raises(VersionHeld):
        gate.check(SERVED, Version(GOOD), Records(action))
    assert not gate.verdicts


def test_release_that_comes_at_the_same_time_lets_the_version_pass(gate):
    late = Conflict("another decision")
    gate.check(SERVED, Version(GOOD * 1e-4), Records(refusal=late, first=record("release")))
    with pytest.raises(VersionHeld, match=r"^held by gate: the same"):
        gate.check(SERVED, Version(GOOD * 1e-4), Records(refusal=late, first=record("hold", "the same", "gate")))


def test_hold_without_a_record_is_of_this_server_alone(gate, caplog):
    with pytest.raises(VersionHeld, match=r"^held by this server alone: the mean score"):
        gate.check(SERVED, Version(GOOD * 1e-4), Records(refusal=NotReady("read-only")))
    assert "held by this server alone: read-only" in caplog.text
    assert gate.settle({}, [1, 2]) == set()
    assert gate.held.keys() == {2}
    assert gate.settle({}, [1]) == {2}
    assert not gate.held


def test_held_version_is_tried_again_once_it_is_released(gate):
    held = {2: record("hold", "why", "gate")}
    assert gate.settle(held, [1, 2]) == set()
    assert gate.held == {2: "held by gate: why"}
    assert gate.settle(held | {3: record("withdraw")}, [1, 2, 3]) == set()
    assert gate.settle({2: record("release"), 3: record("withdraw")}, [1, 2, 3]) == {2}
    assert gate.held == {3: "withdrawn"}
    # Another version under the number is bound by no record.
    assert gate.settle({}, [1, 2, 3]) == {3}


def test_version_that_is_served_is_no_longer_held(gate):
    gate.settle({2: record("hold")}, [1, 2])
    gate.took_over(SERVED, Version(GOOD))
    assert not gate.held


def test_gate_is_off_with_the_delta_guard():
    policy = ModelPolicy.parse({"delta_guard": {"mode": "off"}}, "model.small")
    assert not VersionGate("small", lambda: policy, FakeClock()).judges


def test_gate_learns_from_versions_that_are_still_served_when_the_next_one_comes(gate):
    for number in range(2, 2 + LEARN):
        assert gate.judge(Version(GOOD, number=number - 1), Version(GOOD * 1.01, number=number)).outcome == IN_LINE
    # Version 1 is still served: the newest of those changes was not one for good.
    assert gate.judge(SERVED, Version(GOOD * 1.6, number=9)).outcome == IN_LINE
    assert gate.judge(Version(GOOD, number=LEARN + 1), Version(GOOD * 1.6, number=10)).outcome == OUT_OF_LINE


def test_verdicts_are_bounded(gate):
    for number in range(2, MOST_VERDICTS + 10):
        gate.judge(Version(GOOD, kept=b"", number=1), Version(GOOD, number=number))
    assert len(gate.verdicts) == MOST_VERDICTS
    assert max(gate.verdicts) == MOST_VERDICTS + 9


def test_requests_are_carried_over_to_the_version_that_takes_over(gate):
    new = Version(GOOD)
    gate.took_over(SERVED, new)
    gate.took_over(Version(GOOD, kept=b""), new)
    gate.took_over(None, new)
    assert new.replicas.remembered == [b"requests"]


def test_requests_survive_a_restart():
    files, after = Files(), Version(GOOD)
    VersionGate("small", ModelPolicy, FakeClock(), files).keep(SERVED)
    VersionGate("small", ModelPolicy, FakeClock(), files).took_over(None, after)
    assert after.replicas.remembered == [b"requests"]


def test_nothing_is_written_without_requests_or_a_folder(gate):
    files = Files(b"before")
    VersionGate("small", ModelPolicy, FakeClock(), files).keep(Version(GOOD, kept=b""))
    gate.keep(SERVED)
    assert files.requests == b"before"


def test_drift_of_inputs_is_measured_against_the_version_before(gate):
    def asked(low):
        return Version(GOOD, kept=dump_requests([KeptRequest({"a": np.arange(low, low + 8)}, 8)] * 10))

    gate.keep(asked(0))
    assert gate.input_drift == {}
    gate.took_over(asked(0), Version(GOOD))
    gate.keep(asked(0))
    assert gate.input_drift == {"a": 0.0}
    gate.keep(asked(4))
    assert gate.input_drift["a"] > 0.25


def test_kept_requests_that_cannot_be_read_are_a_line_in_the_log(gate, caplog):
    gate.took_over(SERVED, Version(GOOD))
    gate.keep(SERVED)
    assert "cannot read the kept requests of small" in caplog.text


def test_failure_to_carry_requests_is_logged(gate, caplog):
    gate.took_over(SERVED, object())
    assert "cannot give small the requests that are kept" in caplog.text
