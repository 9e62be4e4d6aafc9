"""The truth of a campaign: what each generation's scores must be, computed by plain numpy from what was published.

A generation is known before anybody can meet it: who publishes says what it is about to publish. One that was tried
twice, because nobody knew whether the first try was committed, may be known in two ways, and a reply has to be wholly
one of them.
"""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass, field, replace

import numpy as np

from tests.support.packages import make_delta, make_weights, reference, tag_id

IDS, ROWS, REQUESTS = 60, 24, 12
TAGS = ("a", "b", "c")
TOLERANCE = 2e-5
# What deltas of a trainer do, they do as gently, or the guard would hold them: rows move by a step for each of a few
# content numbers, and dense weights by a little of what another draw would make them. Scores still tell them apart.
CONTENTS, CONTENT_STEP = 23, 1 / 8
VERSION_SHARE, DENSE_SHARE = np.float32(0.2), np.float32(0.01)


@dataclass(frozen=True)
class Question:
    """A request: the same for every generation. users [ROWS], tags, floats float32 [ROWS, 4]."""

    users: list
    tags: list
    floats: np.ndarray

    @classmethod
    def draw(cls, seed):
        draw = random.Random(seed)
        users = [draw.randrange(IDS) for _ in range(ROWS)]
        tags = [draw.sample(["a", "zz", "b", "c"], draw.randrange(4)) for _ in users]
        return cls(
            users, tags, np.random.default_rng(seed).standard_normal((ROWS, 4)).astype(np.float32) * np.float32(0.3)
        )


QUESTIONS = [Question.draw(seed) for seed in range(REQUESTS)]


def weights_of(version, number=0):
    """Dense weights of a version, as it was published (number 0) or after a delta that moved them."""
    weights = _towards(make_weights(1), make_weights(version), VERSION_SHARE)
    return _towards(weights, make_weights(number), DENSE_SHARE) if number else weights


def _towards(weights, others, share):
    return {name: value + share * (others[name] - value) for name, value in weights.items()}


@dataclass(frozen=True)
class State:
    """What a generation holds: contents of ids by table, the version and the number of its dense weights."""

    users: dict = field(default_factory=dict)
    tags: dict = field(default_factory=dict)
    version: int = 0
    dense: int = 0

    def scores(self, question):
        users = {key: content for key, content in self.users.items() if key in question.users}
        weights = weights_of(self.version, self.dense)
        return reference(users, self.tags, weights, question.users, question.tags, question.floats)


def full_state(version):
    """A full version as committer publishes it, see tests.support.packages.write_package."""
    return State(dict.fromkeys(range(20), 0), dict.fromkeys(map(tag_id, TAGS), 0), version)


@dataclass(frozen=True)
class Change:
    """What delta number `step` of a version does, whatever it stands on."""

    version: int
    step: int

    def draw(self):
        draw = random.Random(self.version * 1_000_003 + self.step)
        ids = draw.sample(range(IDS), 12)
        dense = draw.randrange(1, 1000) if draw.random() < 0.2 else None
        return ids[:9], ids[9:], (1 + draw.randrange(CONTENTS)) * CONTENT_STEP, dense

    def delta(self, parent):
        """The Delta on step `parent`."""
        users, removed, content, dense = self.draw()
        delta = make_delta(self.step, users, removed, parent=parent, version=self.version, tag=content)
        return delta if dense is None else replace(delta, dense=weights_of(self.version, dense))

    def after(self, state):
        """The state that it makes of another."""
        users, removed, content, dense = self.draw()
        changed = state.users | dict.fromkeys(users, content)
        for key in removed:
            changed.pop(key, None)
        return replace(state, users=changed, dense=state.dense if dense is None else dense)


class Truth:
    """Thread-safe."""

    def __init__(self):
        self._lock = threading.Lock()
        self._states: dict[str, list[State]] = {}
        self._scores: dict[tuple[str, int], list[np.ndarray]] = {}

    def know(self, generation, state):
        """A generation that may be met from now on."""
        with self._lock:
            states = self._states.setdefault(generation, [])
            if state not in states:
                states.append(state)
                for n in range(REQUESTS):
                    self._scores.pop((generation, n), None)

    def state(self, generation):
        """What a generation holds, by its last try."""
        with self._lock:
            return self._states[generation][-1]

    def fault(self, generation, number, scores):
        """What is wrong with a reply to QUESTIONS[number]; "" for nothing."""
        with self._lock:
            states = list(self._states.get(generation, ()))
            expected = self._scores.get((generation, number))
        if not states:
            return f"generation {generation!r} was never published"
        if expected is None:
            expected = [state.scores(QUESTIONS[number]) for state in states]
            with self._lock:
                self._scores[generation, number] = expected
        scores = np.ravel(scores)
        if scores.shape != (ROWS,):
            return f"{ROWS} scores wanted, got {scores.size}"
        if any((np.abs(scores - each) <= TOLERANCE).all() for each in expected):
            return ""
        return f"the scores are not those of {generation}"
