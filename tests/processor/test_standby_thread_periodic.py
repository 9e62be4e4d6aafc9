"""The keeper: its slices one after another, and its end."""

from freshet_serving.processor.standby_thread import PeriodicThread
from tests.support.waiting import until


def test_periodic_thread_repeats_while_busy_and_ends_on_close():
    left = [True] * 50
    periodic_thread = PeriodicThread(lambda: bool(left) and left.pop(), interval_s=60.0, busy_interval_s=0.0)
    periodic_thread.start()
    until(lambda: not left)
    periodic_thread.close()
    assert not periodic_thread.is_alive()


def test_raising_slice_does_not_end_the_periodic_thread():
    left = [True] * 3

    def maintain():
        left.pop()
        raise MemoryError

    periodic_thread = PeriodicThread(maintain, interval_s=0.0)
    periodic_thread.start()
    until(lambda: not left)
    assert periodic_thread.is_alive()
    periodic_thread.close()
