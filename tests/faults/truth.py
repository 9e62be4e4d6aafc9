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

from tests.packages import make_delta, make_weights, reference, tag_id

IDS, ROWS, REQUESTS = 60, 24, 12
TAGS = ("a", "b", "c")
TOLERANCE = 2e-5
# What row a content number stands for grows with it: few enough numbers that scores stay apart.
CONTENTS = 23


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


@dataclass(frozen=True)
class State:
    """What a generation holds: content numbers of ids by table, and the seed of the dense weights."""

    users: dict = field(default_factory=dict)
    tags: dict = field(default_factory=dict)
    seed: int = 0

    def scores(self, question):
        users = {key: number for key, number in self.users.items() if key in question.users}
        return reference(users, self.tags, make_weights(self.seed), question.users, question.tags, question.floats)


def full_state(seed):
    """A full version as committer publishes it, see tests.packages.write_package."""
    return State(dict.fromkeys(range(20), 0), dict.fromkeys(map(tag_id, TAGS), 0), seed)


@dataclass(frozen=True)
class Change:
    """What delta number `step` of a version does, whatever it stands on."""

    version: int
    step: int

    def draw(self):
        draw = random.Random(self.version * 1_000_003 + self.step)
        ids = draw.sample(range(IDS), 12)
        dense = draw.randrange(1, 1000) if draw.random() < 0.2 else None
        return ids[:9], ids[9:], 1 + draw.randrange(CONTENTS), dense

    def delta(self, parent):
        """The Delta on step `parent`."""
        users, removed, number, dense = self.draw()
        return make_delta(
            self.step, users, removed, parent=parent, version=self.version, tag=number, dense_seed=dense
        )  # fmt: skip

    def after(self, state):
        """The state that it makes of another."""
        users, removed, number, dense = self.draw()
        changed = state.users | dict.fromkeys(users, number)
        for key in removed:
            changed.pop(key, None)
        return replace(state, users=changed, seed=state.seed if dense is None else dense)


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
            wanted = self._scores.get((generation, number))
        if not states:
            return f"generation {generation!r} was never published"
        if wanted is None:
            wanted = [state.scores(QUESTIONS[number]) for state in states]
            with self._lock:
                self._scores[generation, number] = wanted
        scores = np.ravel(scores)
        if scores.shape != (ROWS,):
            return f"{ROWS} scores wanted, got {scores.size}"
        if any((np.abs(scores - one) <= TOLERANCE).all() for one in wanted):
            return ""
        return f"the scores are not those of {generation}"
