"""Rounds over many names: nobody waits for the slow, and nothing of what happened is lost or told twice."""

import threading

import pytest

from freshet_serving.processor.versions import poll_rounds as rounds_module
from freshet_serving.processor.versions.poll_rounds import PollRounds

PATIENT_S, IMPATIENT_S, WAIT_S = 30.0, 0.01, 30


class Looked:
    """Looks that can be held; what was looked at, in order."""

    def __init__(self):
        self.names, self.gates, self.at_work = [], {}, set()
        self._lock = threading.Lock()

    def hold(self, name):
        self.gates[name] = threading.Event()
        return self.gates[name]

    def __call__(self, name):
        with self._lock:
            assert name not in self.at_work, "two looks at one name at a time"
            self.at_work.add(name)
        if name in self.gates:
            assert self.gates[name].wait(WAIT_S)
        with self._lock:
            self.at_work.discard(name)
            self.names.append(name)
        return [f"{name} looked at"]


@pytest.fixture
def looked():
    return Looked()


@pytest.fixture
def rounds(looked):
    rounds = PollRounds(looked)
    yield rounds
    for gate in looked.gates.values():
        gate.set()
    rounds.close()


def until_told(rounds, line):
    """What is told up to a line that comes when it comes."""
    told, pause = [], threading.Event()
    for _ in range(WAIT_S * 100):
        told += rounds.go([], IMPATIENT_S)
        if line in told:
            return told
        pause.wait(0.01)
    raise AssertionError(told)


def test_round_polls_every_model_in_order_on_one_thread(rounds, looked):
    assert rounds.go(["a", "b", "c"], PATIENT_S) == ["a looked at", "b looked at", "c looked at"]
    runner = rounds._runner
    assert rounds.go(["c", "a"], PATIENT_S) == ["c looked at", "a looked at"]
    assert rounds.go([], PATIENT_S) == []
    assert rounds._runner is runner


def test_slow_model_is_skipped_and_reported_once_it_ends(rounds, looked):
    gate = looked.hold("slow")
    assert rounds.go(["a", "slow", "b"], IMPATIENT_S) == ["a looked at", "b looked at"]
    assert rounds.at_work("slow")
    for _ in range(3):
        assert rounds.go(["a", "slow", "b"], PATIENT_S) == ["a looked at", "b looked at"]
    gate.set()
    assert until_told(rounds, "slow looked at") == ["slow looked at"]
    assert not rounds.at_work("slow")
    assert rounds.go(["slow", "a"], PATIENT_S) == ["slow looked at", "a looked at"]


def test_models_wait_when_too_many_are_slow(rounds, looked, monkeypatch):
    monkeypatch.setattr(rounds_module, "MOST_SLOW", 2)
    first, second = looked.hold("s1"), looked.hold("s2")
    assert rounds.go(["s1", "s2", "a"], IMPATIENT_S) == []
    assert rounds.go(["a"], IMPATIENT_S) == []
    first.set()
    assert until_told(rounds, "s1 looked at") == ["s1 looked at"]
    second.set()
    assert until_told(rounds, "s2 looked at") == ["s2 looked at"]
    assert rounds.go(["a", "s1"], PATIENT_S) == ["a looked at", "s1 looked at"]


def test_nothing_starts_after_rounds_are_closed(rounds, looked):
    rounds.close()
    assert rounds.go(["a"], PATIENT_S) == []
    assert looked.names == []
