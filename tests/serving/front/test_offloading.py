"""Requests that are submitted off the loop: errors reach their callers, deadlines run on, and the line is bounded."""

import gc
import threading

import pytest

from processor.engine import PredictRequest
from processor.errors import BadInput, Expired, FreshetError, Overloaded
from serving.front import offloading as stages
from serving.front.offloading import Offloading


class Recorder:
    """A processor, and where errors are posted."""

    def __init__(self, error=None):
        self.error, self.submitted, self.posted = error, [], []
        self.gate, self.seen = threading.Event(), threading.Semaphore(0)
        self.gate.set()

    def submit(self, request, done, replica):
        self.gate.wait(30)
        if self.error is not None:
            raise self.error
        self.submitted.append((request, replica))
        done("reply")
        self.seen.release()

    def post(self, finish, result):
        self.posted.append((finish, result))
        self.seen.release()


@pytest.fixture(autouse=True)
def no_thread_is_left_behind():
    """An error holds the frames that it passed, and so the threads, until their circle is collected."""
    yield
    gc.collect()


def request(timeout_s=None):
    return PredictRequest("ctr", {}, timeout_s=timeout_s)


def test_a_request_is_submitted_on_another_thread_and_its_reply_goes_to_done():
    processor, replies = Recorder(), []
    Offloading(processor.post).submit(processor, request(), "replica", replies.append, None)
    assert processor.seen.acquire(timeout=30)
    assert replies == ["reply"]
    assert processor.posted == []


@pytest.mark.parametrize(("error", "told"), [(BadInput, BadInput), (RuntimeError, FreshetError)], ids=["its", "ours"])
def test_an_error_of_submitting_is_posted_to_the_loop(error, told):
    processor = Recorder(error("secret" if error is RuntimeError else "input 'a'"))
    Offloading(processor.post).submit(processor, request(), "replica", None, "finish")
    assert processor.seen.acquire(timeout=30)
    ((finish, result),) = processor.posted
    assert finish == "finish"
    assert isinstance(result, told)
    assert "secret" not in str(result)


def test_waiting_counts_towards_the_deadline(monkeypatch):
    now_s = iter([0.0, 5.0])
    monkeypatch.setattr(stages.time, "monotonic", lambda: next(now_s))
    processor = Recorder()
    Offloading(processor.post).submit(processor, request(1.0), "replica", None, "finish")
    assert processor.seen.acquire(timeout=30)
    assert isinstance(processor.posted[0][1], Expired)
    assert processor.submitted == []


def test_no_more_than_so_many_wait(monkeypatch):
    monkeypatch.setattr(stages, "MAX_WAITING", 3)
    processor = Recorder()
    processor.gate.clear()
    line, requests = Offloading(processor.post), [request() for _ in range(4)]
    for waiting in requests[:3]:
        line.submit(processor, waiting, "replica", lambda reply: None, None)
    with pytest.raises(Overloaded, match="more than 3 requests wait"):
        line.submit(processor, requests[3], "replica", None, None)
    processor.gate.set()
    for _ in range(3):
        assert processor.seen.acquire(timeout=30)
