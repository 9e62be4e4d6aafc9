"""Processors for the length of a test, requests for them, and what plain numpy says they answer."""

import threading
from contextlib import contextmanager

import numpy as np

from freshet_serving.processor.engine import PredictReply, PredictRequest, Processor, ProcessorConfig
from freshet_serving.processor.package.delta import write_delta
from tests.support.packages import make_delta, make_inputs, make_weights, reference, tag_id

USERS = range(20)
TAGS = [["a", "zz", "b", "c"][: u % 5] for u in range(5000)]
TIMEOUT_S = 30


@contextmanager
def processors(root):
    """Opens processors of a repository, and closes them in the end."""
    opened = []

    def build(clock=None, **config):
        config = {"repository": str(root), "sessions": 2} | config
        opened.append(Processor.initialize(ProcessorConfig(**config), clock))
        return opened[-1]

    yield build
    for processor in opened:
        processor.close()


def request(users, model="small", seed=0, **more):
    return PredictRequest(model, make_inputs(users, seed=seed), **more)


def scores(users, content=None, dense_seed=0, seed=0, tags=None):
    """By plain numpy. content: user -> content number, beside the full version's."""
    model = dict.fromkeys(USERS, 0) | (content or {})
    model = {user: tag for user, tag in model.items() if tag is not None}
    tag_model = dict.fromkeys([tag_id(t) for t in "abc"], 0) | (tags or {})
    floats = make_inputs(users, seed=seed)["floats"]
    return reference(model, tag_model, make_weights(dense_seed), users, TAGS, floats)


def assert_reply(reply, generation, wanted):
    assert isinstance(reply, PredictReply), reply
    assert str(reply.generation) == generation
    assert reply.outputs.keys() == {"score"}
    assert reply.outputs["score"].dtype == np.float32
    assert reply.outputs["score"].shape == (len(wanted), 1)
    np.testing.assert_allclose(reply.outputs["score"][:, 0], wanted, atol=1e-5)


def publish(root, step, users=(0,), version=1, **changes):
    path = root / "small" / str(version) / "deltas" / f"{step}.safetensors"
    write_delta(path, make_delta(step, users, version=version, **changes))
    return path


def damage(folder):
    path = folder / "dense.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")


class Replies:
    """Collects done() calls; gate(): one whose done() holds its session until release()."""

    def __init__(self):
        self.calls, self.threads, self._changed = [], [], threading.Condition()
        self._gate, self._inside = threading.Event(), threading.Semaphore(0)

    def done(self, number):
        def call(reply):
            with self._changed:
                self.calls.append((number, reply))
                self.threads.append(threading.current_thread().name)
                self._changed.notify_all()

        return call

    def hold(self, processor):
        """Returns when one session is inside a callback that ends with release()."""

        def call(reply):
            self._inside.release()
            self._gate.wait(TIMEOUT_S)

        processor.predictor.submit(request([1]), call)
        assert self._inside.acquire(timeout=TIMEOUT_S)

    def release(self):
        self._gate.set()

    def wait(self, count):
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.calls) >= count, TIMEOUT_S)
            return dict(self.calls)


def watch_scores(processor):
    """Have what was counted so far judged now."""
    processor.host.score_watch.look(processor.host.catalogue)
