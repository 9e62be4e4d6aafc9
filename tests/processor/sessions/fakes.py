"""Replicas made of nothing but their seams, and groups of sessions for the length of a test."""

import queue
import threading
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np

from freshet_serving.processor.backends.base import IoSpec
from freshet_serving.processor.clock import SystemClock
from freshet_serving.processor.generation import Generation
from freshet_serving.processor.package.subgraphs import SCORE
from freshet_serving.processor.running.buffers import Buffers, BufferSize
from freshet_serving.processor.running.cost import CostTable
from freshet_serving.processor.sessions.group import SessionGroup
from freshet_serving.processor.sessions.request import PredictReply, Work
from freshet_serving.processor.sessions.session_options import GroupOptions

TIMEOUT_S = 5


class Request:
    """A bound request: its rows are the values [rows]."""

    def __init__(self, values):
        self.values = np.asarray(values, np.float32)
        self.rows = self.ids = len(self.values)
        self.user_split = False


class FakeReplica:
    """The seams of Replica that sessions use. The dense graph is y = 2 * x, z = (x, -x)."""

    def __init__(self, costs=None, hold=None):
        self.outputs = {"y": 1, "z": 2}
        self.run = SimpleNamespace(
            name=SCORE, spec=IoSpec.of_matrix(1, self.outputs), fill=self.fill_inputs, user_tensors=[]
        )
        self.run.costs = CostTable(costs or {1: 1.0, 4: 1.5})
        self.graphs = SimpleNamespace(
            undivided=self.run, user=None, score=None, in_thread=False, endable=False, divided=lambda bound, rows: None
        )
        self.plan = SimpleNamespace(stage=None, width=1, fill=self.fill, row_invariants=lambda bound, max_ids: None)
        self.model = "m"
        self.manifest = SimpleNamespace(model="m", tables=["t"])
        self.remote = None
        self.broken, self.entered, self.hold = {}, threading.Semaphore(0), hold
        self.step, self.pins = 1, {}
        # Apart, because what is bound to buffers may not refer to the replica: buffers live as long as it does.
        self.log = SimpleNamespace(runs=[], binds=0, filled=0)

    def pin(self, reader):
        assert self.pins.get(reader) is None, "a reader holds one pin"
        self.pins[reader] = self.step
        executables = {SCORE: {b: SimpleNamespace(bucket=b, bind_buffers=self.binder(b)) for b in self.costs.cost}}
        return SimpleNamespace(
            generation=Generation(1, self.step), tables=None, epoch=self.step, executables=executables, users=None
        )

    @property
    def publish_seq(self):
        return self.step

    @property
    def costs(self):
        return self.run.costs

    @costs.setter
    def costs(self, costs):
        self.run.costs = costs

    def borrow_buffers(self):
        return Buffers(
            {SCORE: BufferSize(self.run.spec, max(self.costs.cost))}, len(self.manifest.tables), len(self.outputs)
        )

    def unpin(self, reader):
        assert self.pins[reader] is not None
        self.pins[reader] = None

    def fill_inputs(self, view, inputs, features=None):
        (features or self.plan.fill)(view, inputs["x"])

    def fill(self, view, out):
        self.entered.release()
        if self.hold is not None:
            assert self.hold.wait(TIMEOUT_S)
        at = 0
        for request, (first, rows) in zip(view.bound, view.spans.tolist(), strict=True):
            out[at : at + rows, 0] = request.values[first : first + rows]
            at += rows
        view.counts[0] += at, 1
        for value, error in self.broken.items():
            if value in out[:at]:
                raise error
        self.log.filled = at

    @property
    def runs(self):
        return self.log.runs

    def binder(self, bucket):
        log = self.log

        def bind_buffers(inputs, outputs):
            log.binds, x = log.binds + 1, inputs["x"]
            assert x.shape == (bucket, 1)

            def run():
                log.runs.append((bucket, log.filled))
                outputs["y"][:] = 2 * x
                outputs["z"][:] = np.concatenate([x, -x], axis=1)

            return run

        return bind_buffers


def call(done, reply):
    """What an owner does with a reply that was posted to it, done at once."""
    done(reply)


class Answers:
    """Collects what done() is called with, in order of the requests."""

    def __init__(self):
        self.calls = queue.Queue()

    def work(self, replica, number, values, deadline_s=None):
        bound = Request(values)
        done = lambda answer: self.calls.put((number, answer))  # noqa: E731
        return Work(bound.rows, bound.ids, deadline_s, replica=replica, bound=bound, done=done)

    def ask(self, sessions, replica, values):
        """Enqueue one request, and check the rows of its answer."""
        sessions.enqueue(self.work(replica, 0, values))
        assert_answers(self.wait(1)[0], values)

    def wait(self, count):
        return dict(self.calls.get(timeout=TIMEOUT_S) for _ in range(count))


@contextmanager
def group(sessions=1, max_batch_rows=8, max_queue_rows=100, clock=None, occupancy=None, **options):
    options = GroupOptions(sessions=sessions, max_batch_rows=max_batch_rows, max_queue_rows=max_queue_rows, **options)
    made = SessionGroup(options, clock or SystemClock(), occupancy)
    try:
        yield made
    finally:
        made.close()
    assert not made._threads


@contextmanager
def held(replica, group, answers, number=-1):
    """One session is inside a batch for the length of the block, so what is submitted meanwhile queues up."""
    gate = FakeReplica(hold=threading.Event())
    group.enqueue(answers.work(gate, number, [0]))
    assert gate.entered.acquire(timeout=TIMEOUT_S)
    try:
        yield
    finally:
        gate.hold.set()


def assert_answers(answer, values):
    assert isinstance(answer, PredictReply)
    x = np.asarray(values, np.float32).reshape(-1, 1)
    np.testing.assert_array_equal(answer.outputs["y"], 2 * x)
    np.testing.assert_array_equal(answer.outputs["z"], np.concatenate([x, -x], axis=1))


class NoGroups:
    """The groups of a process without sessions."""

    inline = None

    def of(self, model):
        return None
