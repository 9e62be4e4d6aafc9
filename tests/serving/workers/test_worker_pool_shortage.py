"""A change that fails for want of memory leaves nothing behind in the layout of two workers.

Supervisor and workers are in this process, so that every point of either side can be failed: the supervisor is real,
and so are the workers' replicas and the code that changes them. Their channel is a call.
"""

import json
import shutil
from concurrent.futures import Future
from os import dup

import pytest

from freshet_serving.processor.clock import SystemClock
from freshet_serving.processor.features.input_lookup import NO_LOOKUPS
from freshet_serving.processor.sessions.session_options import GroupOptions
from freshet_serving.serving.serve_config import ServeConfig
from freshet_serving.serving.workers.channel import refusal
from freshet_serving.serving.workers.worker import Worker
from freshet_serving.serving.workers.worker_pool_host import WorkerPoolHost
from tests.processor.versions.test_model_shortage import (
    UNDO_DEPTH,
    applying,
    every,
    following,
    rebuilding,
    rolling_back,
    started,
    switching,
)
from tests.serving.workers.fakes import FakeFleet, FakeWorker
from tests.support.shortages import Calls

CHANGES = ("open", "frame", "preview", "example", "forget", "close")


class ReadingWorker(FakeWorker):
    """A FakeWorker that takes changes of versions as a worker does, at once."""

    _change, _apply = Worker._change, Worker._apply
    _clock, _remote, _lookups, _states = SystemClock(), None, NO_LOOKUPS, None

    def __init__(self, slot):
        super().__init__(slot)
        self._slot, self._receivers, self._answers = slot, {}, {}

    def replica(self, key):
        return self._receivers[key].replica

    def tell(self, op, message=None, fds=()):
        self._take(op, message, fds)

    def ask(self, op, message=None, fds=()):
        number = len(self._answers)
        self._answers[number] = answer = Future()
        self._take(op, {**(message or {}), "id": number}, fds)
        if op not in CHANGES:
            answer.set_result({})
        return answer

    def _take(self, op, message, fds):
        if op in CHANGES:
            # As the channel brings it; the kernel makes the descriptors, whatever a process is short of.
            self._change(json.loads(json.dumps({**(message or {}), "op": op})), [dup(fd) for fd in fds])

    def _options_of(self, model):
        return GroupOptions()

    def _reply(self, message, **fields):
        if "id" not in message:
            return
        if "error" in fields:
            self._answers[message["id"]].set_exception(refusal(*fields["error"]))
        else:
            self._answers[message["id"]].set_result(fields)


class TwoWorkers:
    """The layout, of one point after another."""

    def __init__(self):
        self._host = None

    def begin(self, start, folder):
        self.close()
        root = folder / "repository"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(start, root)
        self._workers = [ReadingWorker(0), ReadingWorker(1)]
        self._host = WorkerPoolHost(ServeConfig(str(root), undo_depth=UNDO_DEPTH), FakeFleet(2), lambda: b"")
        for worker in self._workers:
            self._host.initialize_worker(worker)
        self._host.load_all()
        self._host.opened()
        return self._host.model("small"), root

    def replicas(self, model):
        return [worker.replica(model.pick().replicas.key) for worker in self._workers]

    def close(self):
        if self._host is not None:
            self._host.close()


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    return started(tmp_path_factory.mktemp("start"))


@pytest.fixture
def layout():
    layout = TwoWorkers()
    yield layout
    layout.close()


def test_both_workers_answer_after_every_change(start, tmp_path, layout):
    for change in (applying, rolling_back, switching):
        assert every(start, tmp_path, change, lambda _: Calls(10**9), 1, layout.begin, layout.replicas) == 0


@pytest.mark.long
@pytest.mark.parametrize("change", [applying, following, rolling_back, rebuilding, switching])
@pytest.mark.parametrize("error", [MemoryError, pytest.param(OSError, marks=pytest.mark.campaign)])
@pytest.mark.parametrize("count", [1, pytest.param(None, marks=pytest.mark.campaign)])
def test_failed_change_leaves_nothing_behind(start, tmp_path, layout, change, error, count):
    points = every(
        start, tmp_path, change, lambda number: Calls(number, error, count), 5, layout.begin, layout.replicas
    )
    assert points > 4
