import logging
import threading

from freshet_serving.serving.loading.watcher import MAX_BACKOFF_S, Watcher


class Countdown:
    """A stop event that lets a number of looks pass, and notes how long each wait would have been."""

    def __init__(self, looks):
        self.looks, self.waits = looks, []

    def wait(self, timeout):
        self.waits.append(timeout)
        return len(self.waits) >= self.looks

    def set(self):
        self.looks = 0


def test_every_poll_with_events_is_logged_and_forwarded(caplog):
    found, seen = [["ctr: now 3.18"], [], ["a", "b"]], []
    stop = Countdown(3)
    with caplog.at_level(logging.INFO, "freshet.watcher"):
        Watcher(lambda: found.pop(0), 0.05, seen.append, stop).run()
    assert seen == [["ctr: now 3.18"], ["a", "b"]]
    assert [r.message for r in caplog.records] == ["ctr: now 3.18", "a", "b"]
    assert stop.waits == [0.05, 0.05, 0.05]


def test_poll_error_is_one_line_and_the_next_poll_delayed(caplog):
    answers = iter([OSError("disk\ngone"), OSError("disk"), [], OSError("disk"), []])

    def poll():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    stop = Countdown(5)
    Watcher(poll, 0.05, stop=stop).run()
    assert stop.waits == [0.1, 0.2, 0.05, 0.1, 0.05]
    assert caplog.records[0].message == "OSError: disk gone; next attempt in 0.10 s"


def test_waits_after_failing_polls_are_bounded():
    stop = Countdown(100)
    Watcher(lambda: 1 / 0, 0.05, stop=stop).run()
    assert max(stop.waits) == stop.waits[-1] == MAX_BACKOFF_S


def test_failing_listener_does_not_end_the_watcher():
    stop = Countdown(2)
    Watcher(lambda: ["x"], 0.05, lambda lines: 1 / 0, stop).run()
    assert len(stop.waits) == 2


def test_thread_stops_promptly():
    polled = threading.Event()
    watcher = Watcher(lambda: polled.set() or [], 3600.0)
    watcher.start()
    assert polled.wait(10)
    watcher.stop(10)
    assert not any(t.name == "freshet-watcher" for t in threading.enumerate())


def test_watcher_that_never_started_can_be_stopped():
    Watcher(list, 1.0).stop()


def test_begin_runs_on_the_watcher_thread_before_the_first_poll():
    order, ended = [], threading.Event()
    watcher = Watcher(
        lambda: (order.append(("poll", threading.current_thread())), ended.set())[:0],
        3600.0,
        begin=lambda: order.append(("begin", threading.current_thread())),
    )
    watcher.start()
    assert ended.wait(10)
    watcher.stop()
    assert order == [("begin", watcher._thread), ("poll", watcher._thread)]
