"""Deltas, rollbacks and kills of workers, which trials do to a live server in random turn; and in which order."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter

import numpy as np

from freshet_serving.processor.package.delta import write_delta

UNDO_DEPTH, FAR = 8, 25
ROLLBACKS, BEYOND, KILLS = "rollbacks", "of them beyond the undo log", "killed workers"


def one_of(weights, random):
    """Return a name, as often as its weight says."""
    return str(random.choice(list(weights), p=np.array(list(weights.values())) / sum(weights.values())))


class LiveChanges:
    """Changes of one server by one thread, and what it serves. Subclasses make the deltas, and know their contents.

    order: the step that is served after each change, before the change is sent. acknowledged: how many of these the
    server has acknowledged. line: steps that are served, the newest last. lock: guards these and what subclasses keep.
    done: changes by kind.
    """

    def __init__(self, live, model, folder, random, kinds):
        """kinds: weights of kinds of changes, ROLLBACKS and KILLS among them."""
        self.live, self.random, self.lock = live, random, threading.RLock()
        self._model, self._upload, self._kinds, self._killed = model, folder / "upload", kinds, 0
        self.line, self._steps, self.order, self.acknowledged, self.done = [0], [0], [0], 1, Counter()

    def delta(self, kind, step):
        """Return the delta of a step that changes line[-1], and keep what it holds."""
        raise NotImplementedError

    def before_a_loss(self):
        """Called before a rollback and before a kill, by which a server forgets what it has counted."""

    def act(self):
        """Publish, roll back or kill a worker."""
        # The server may not have noticed yet that the last one is dead. One that answers has to be left.
        running = [w for w in self.live.about().get("workers", []) if w["up"] and w["pid"] != self._killed]
        left_out = [ROLLBACKS] * (len(self.line) < 2) + [KILLS] * (len(running) < 2)
        kind = one_of({name: weight for name, weight in self._kinds.items() if name not in left_out}, self.random)
        if kind in (ROLLBACKS, KILLS):
            self.before_a_loss()
        if kind == KILLS:
            self._killed = running[self.random.integers(0, len(running))]["pid"]
            os.kill(self._killed, signal.SIGKILL)
        elif kind == ROLLBACKS:
            self._roll_back()
        else:
            self._publish(kind)
        self.done[kind] += 1

    def is_stale(self, step, acknowledged):
        """Report whether a step is older than the last of so many acknowledged changes."""
        with self.lock:
            return step not in self.order[acknowledged - 1 :]

    def forgotten(self, kept_steps):
        """Return the steps that no reply can name any more, but for the newest so many."""
        return set(self._steps[:-kept_steps]) - set(self.line[-2 * FAR :])

    def _publish(self, kind):
        step = self.live.next_step(self._model)
        write_delta(self._upload, self.delta(kind, step))
        with self.lock:
            self.order.append(step)
            self._steps.append(step)
        self._answered(*self.live.upload(self._model, self._upload.read_bytes()))
        self.line.append(step)

    def _roll_back(self):
        span = FAR if self.random.random() < 0.15 else UNDO_DEPTH - 2
        at = max(0, len(self.line) - 1 - int(self.random.integers(1, span + 1)))
        with self.lock:
            self.order.append(self.line[at])
        self.done[BEYOND] += len(self.line) - 1 - at > UNDO_DEPTH
        asked = {"generation": f"1.{self.line[at]}", "reason": "worse"}
        self._answered(*self.live.post_json(f"/admin/models/{self._model}/rollback", asked))
        del self.line[at + 1 :]

    def _answered(self, status, reply):
        if status != 200:
            raise RuntimeError(f"a change was answered by {status}: {reply}")
        with self.lock:
            self.acknowledged = len(self.order)
