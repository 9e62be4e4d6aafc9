"""Tasks of one key are done in their order, those of others meanwhile."""

import threading

from freshet_serving.serving.workers.keyed_executor import KeyedExecutor

WAIT_S = 30


def test_task_waits_only_for_tasks_of_its_key():
    done, gate, other = [], threading.Event(), threading.Event()
    sequences = KeyedExecutor(2, "freshet-test")
    sequences.submit("a", lambda: (gate.wait(WAIT_S), done.append("a1")))
    sequences.submit("a", lambda: done.append("a2"))
    sequences.submit("b", lambda: (done.append("b1"), other.set()))
    assert other.wait(WAIT_S)
    assert done == ["b1"]
    gate.set()
    sequences.submit("a", lambda: done.append("a3"))
    sequences.close()
    assert done == ["b1", "a1", "a2", "a3"]
    assert sequences._waiting == {}


def test_tasks_of_many_keys_run_once_and_in_order():
    done = {key: [] for key in range(8)}
    sequences = KeyedExecutor(4, "freshet-test")
    for n in range(200):
        sequences.submit(n % 8, lambda n=n: done[n % 8].append(n))
    sequences.close()
    assert done == {key: list(range(key, 200, 8)) for key in range(8)}


def test_long_tasks_run_on_separate_threads_in_order():
    done, aside, gate = [], [], threading.Event()
    sequences = KeyedExecutor(1, "freshet-test", lambda: aside.append(threading.current_thread().name))

    def note(what):
        done.append((what, threading.current_thread().name))

    sequences.submit("a", lambda: (gate.wait(WAIT_S), note("a1")), long=True)
    sequences.submit("a", lambda: note("a2"))
    sequences.submit("a", lambda: note("a3"), long=True)
    beside = threading.Event()
    sequences.submit("b", lambda: (note("b1"), beside.set()))
    assert beside.wait(WAIT_S)
    gate.set()
    sequences.close()
    prompt, long = "freshet-test_0", "freshet-test-long_0"
    assert done == [("b1", prompt), ("a1", long), ("a2", prompt), ("a3", long)]
    assert aside == [long]


def test_tasks_run_after_one_of_their_key_that_raised(caplog):
    after, sequences = threading.Event(), KeyedExecutor(1, "freshet-test")
    sequences.submit("a", lambda: 1 // 0)
    sequences.submit("a", after.set)
    assert after.wait(WAIT_S)
    sequences.close()
    assert "ZeroDivisionError" in caplog.text


def test_tasks_need_no_new_threads(monkeypatch):
    done = []
    sequences = KeyedExecutor(2, "freshet-test")

    def short_of_threads(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", short_of_threads)
    for key in range(8):
        sequences.submit(key, lambda key=key: done.append(key), long=key % 2 == 0)
    sequences.close()
    assert sorted(done) == list(range(8))
