"""Waiting for what another thread or process is about to do, and threads that work meanwhile."""

import threading
import time
from contextlib import contextmanager
from functools import partial

GIVE_UP_S, PAUSE_S = 60.0, 0.005


def until(condition, act=lambda: None, *, within_s=GIVE_UP_S):
    """What condition() gives, once that is true; act() is called between two looks."""
    give_up_s = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < give_up_s, "waited too long"
        act()
        time.sleep(PAUSE_S)
    return value


class Background:
    """Threads that work while a block runs, until `ended` is set."""

    def __init__(self, works):
        self.ended = threading.Event()
        self._threads = [threading.Thread(target=work, daemon=True) for work in works]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        for thread in self._threads:
            thread.join()


def at_once(work, arguments):
    """Call work(argument) for each argument, all on threads of their own, and return when all are done."""
    with Background([partial(work, argument) for argument in arguments]):
        pass


@contextmanager
def held_elsewhere(lock):
    """Have another thread hold a lock while the block runs."""
    held, go = threading.Event(), threading.Event()

    def hold():
        with lock:
            held.set()
            go.wait(GIVE_UP_S)

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    assert held.wait(GIVE_UP_S)
    try:
        yield
    finally:
        go.set()
        thread.join()
