"""Work that is done off the loop: its errors reach their callers, it is told how long it waited, and the line is
bounded."""

import asyncio
import gc
import threading
import weakref

import pytest

from freshet_serving.processor.errors import BadInput, FreshetError, NotReady, Overloaded
from freshet_serving.serving.front import offload_executor
from freshet_serving.serving.front.offload_executor import OffloadExecutor, in_thread

WAIT_S = 30


class Line:
    """An Offloading, and what it posts."""

    def __init__(self):
        self.posted, self.seen = [], threading.Semaphore(0)
        self.line = OffloadExecutor(self._post)

    def _post(self, finish, result):
        self.posted.append((finish, result))
        self.seen.release()

    def submit(self, work, nbytes=0, finish="finish"):
        def run(waited_s):
            work(waited_s)
            self.seen.release()

        self.line.submit(run, nbytes, finish)

    def wait(self, count=1):
        for _ in range(count):
            assert self.seen.acquire(timeout=WAIT_S)


@pytest.fixture(autouse=True)
def no_thread_is_left_behind():
    """An error holds the frames that it passed, and so the threads, until their circle is collected."""
    yield
    gc.collect()


def test_work_runs_on_another_thread_and_answers_itself():
    line, threads = Line(), []
    line.submit(lambda _: threads.append(threading.get_ident()))
    line.wait()
    assert threads != [threading.get_ident()]
    assert line.posted == []


@pytest.mark.parametrize(("error", "told"), [(BadInput, BadInput), (RuntimeError, FreshetError)], ids=["its", "ours"])
def test_error_in_the_work_is_posted_to_the_loop(error, told):
    line = Line()

    def fail(_):
        raise error("secret" if error is RuntimeError else "input 'a'")

    line.submit(fail)
    line.wait()
    ((finish, result),) = line.posted
    assert finish == "finish"
    assert isinstance(result, told)
    assert "secret" not in str(result)


def test_work_receives_its_waiting_time(monkeypatch):
    now_s = iter([0.0, 5.0])
    monkeypatch.setattr(offload_executor.time, "monotonic", lambda: next(now_s))
    line, waited = Line(), []
    line.submit(waited.append)
    line.wait()
    assert waited == [5.0]


def test_number_of_waiting_tasks_is_limited(monkeypatch):
    monkeypatch.setattr(offload_executor, "MAX_WAITING", 3)
    line, gate = Line(), threading.Event()
    for _ in range(3):
        line.submit(lambda _: gate.wait(WAIT_S))
    with pytest.raises(Overloaded, match="queue: expected at most 3 requests waiting to be read, got 3"):
        line.submit(lambda _: None)
    gate.set()
    line.wait(3)


def test_waiting_bytes_are_limited_but_one_task_always_fits(monkeypatch):
    monkeypatch.setattr(offload_executor, "MAX_WAITING_NBYTES", 100)
    line, gate = Line(), threading.Event()
    line.submit(lambda _: gate.wait(WAIT_S), 150)
    with pytest.raises(Overloaded, match="at most 100 bytes of requests waiting to be read, got 150 and 1 more"):
        line.submit(lambda _: None, 1)
    gate.set()
    line.wait()


def test_one_task_reads_at_a_time_while_others_run_concurrently():
    line, gate, order = Line(), threading.Event(), []
    line.submit(lambda _: (gate.wait(WAIT_S), order.append("long")), 10)
    line.submit(lambda _: order.append("stage"))
    line.wait()
    assert order == ["stage"]
    line.submit(lambda _: order.append("long too"), 10)
    gate.set()
    line.wait(2)
    assert order == ["stage", "long", "long too"]


def test_reading_pauses_garbage_collection_and_errors_keep_no_data():
    line, seen, kept = Line(), [], []

    class Document(list):
        """A list that can be referred to weakly."""

    def read(_):
        document = Document()
        kept.append(weakref.ref(document))
        seen.append(gc.isenabled())
        try:
            document.remove(1)
        except ValueError:
            raise BadInput("too long") from None

    line.submit(read, 10)
    line.wait()
    line.submit(lambda _: seen.append(gc.isenabled()))
    line.wait()
    assert seen == [False, True]
    assert gc.isenabled()
    assert len(line.posted) == 1
    assert kept[0]() is None


def test_work_without_a_thread_is_refused_and_never_runs(monkeypatch):
    line, done = Line(), []

    def start(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        with pytest.raises(NotReady, match="memory"):
            line.submit(lambda _: done.append("first"), nbytes=offload_executor.MAX_WAITING_NBYTES)
    line.submit(lambda _: done.append("second"), nbytes=offload_executor.MAX_WAITING_NBYTES)
    line.wait()
    assert (done, line.posted) == (["second"], [])


def test_out_of_memory_in_the_work_is_reported_as_such():
    line = Line()

    def fail(_):
        raise MemoryError

    line.submit(fail)
    line.wait()
    ((_, error),) = line.posted
    assert isinstance(error, NotReady)


def test_result_is_returned():
    assert asyncio.run(in_thread(None, lambda: 7)) == 7


@pytest.mark.parametrize(("raised", "seen"), [(StopIteration(3), RuntimeError), (KeyError("x"), KeyError)])
def test_every_failure_reaches_who_waits(raised, seen):
    def fail():
        raise raised

    async def wait():
        await asyncio.wait_for(in_thread(None, fail), 30)

    with pytest.raises(seen):
        asyncio.run(wait())
