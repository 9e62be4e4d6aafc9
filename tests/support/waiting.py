"""Waiting for what another thread or process is about to do."""

import time

GIVE_UP_S, PAUSE_S = 60.0, 0.005


def until(condition, act=lambda: None, *, within_s=GIVE_UP_S):
    """What condition() gives, once that is true; act() is called between two looks."""
    give_up_s = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < give_up_s, "waited too long"
        act()
        time.sleep(PAUSE_S)
    return value
