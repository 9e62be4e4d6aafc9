"""Workers and a fleet without processes: what is said to them is kept, what they answer is set."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future

from freshet_serving.processor.memory import attach
from freshet_serving.processor.versions.control import IDLE, PINS, WORDS, ControlWords
from freshet_serving.serving.workers.channel import ChannelClosed


class FakeWorker:
    """fleet.WorkerProcess. refuse: an error for every frame. dies_at: the op at which it dies. answers: by op, a reply
    or an error. control: by version."""

    def __init__(self, slot=0):
        self.slot, self.pid, self.handed, self.signal = slot, 1000 + slot, 0, ""
        self.gone, self.killed = threading.Event(), False
        self.said, self.control = [], {}
        self.answers = {"kept": {"kept": ""}}
        self.refuse, self.dies_at, self.full = None, None, False

    def tell(self, op, message=None, fds=()):
        if self.gone.is_set():
            raise ChannelClosed("gone")
        self.said.append((op, message or {}))

    def ask(self, op, message=None, fds=()):
        self.tell(op, message, fds)
        answer = Future()
        if op == self.dies_at:
            self.gone.set()
            answer.set_exception(ChannelClosed("gone"))
        elif op == "frame" and self.refuse is not None:
            answer.set_exception(self.refuse)
        elif isinstance(self.answers.get(op), Exception):
            answer.set_exception(self.answers[op])
        else:
            if op == "open":
                self.control[message["version"]] = self._map(message["control"], fds)
            answer.set_result(self.answers.get(op, {}))
        return answer

    def hand_off(self, connection):
        if self.full or self.gone.is_set():
            return False
        self.handed += 1
        connection.sendall(b"%d" % self.slot)
        return True

    def pin(self, version, publish_seq):
        """Pins as a session of this worker would."""
        self.control[version].words[PINS + self.slot * WORDS] = publish_seq

    def pinned(self, version):
        return self.control[version].words[PINS + self.slot * WORDS] != IDLE

    def ops(self, *wanted):
        return [(op, m.get("version"), m.get("frame")) for op, m in self.said if op in wanted]

    def _map(self, packed, fds):
        import mmap

        import numpy as np

        place, offset, dtype, shape, _ = packed
        fd = fds[place]
        return ControlWords(attach(np.frombuffer(mmap.mmap(fd, os.fstat(fd).st_size), np.uint8), offset, dtype, shape))


class FakeFleet:
    """fleet.WorkerPool: its workers are introduced when a test says so."""

    class settings:
        sessions = 1

    def __init__(self, count=2):
        self.count, self.owner, self.workers, self.complete = count, None, [], True
        self.unbalanced, self.silent = False, []

    def __len__(self):
        return self.count

    def start(self, owner):
        self.owner = owner

    def wait_complete(self):
        pass

    def mark_available(self, worker):
        self.workers.append(worker)

    def available(self):
        return list(self.workers)

    def responsive(self):
        return [worker for worker in self.workers if worker.slot not in self.silent]

    def suspects(self):
        return list(self.silent)

    def info(self):
        return [{"worker": w.slot, "pid": w.pid, "up": True, "connections": 0, "restarts": 0} for w in self.workers]

    def reap(self, worker):
        if not worker.killed:
            worker.killed = True
            worker.gone.set()
            self.workers = [w for w in self.workers if w is not worker]
            self.owner.on_exit(worker)
