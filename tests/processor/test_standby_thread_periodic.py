"""The keeper: its slices one after another, and its end."""

from freshet_serving.processor.standby_thread import PeriodicThread
from tests.support.waiting import until


def test_the_keeper_works_again_at_once_while_there_is_work_and_ends_when_closed():
    left = [True] * 50
    periodic_thread = PeriodicThread(lambda: bool(left) and left.pop(), interval_s=60.0, busy_interval_s=0.0)
    periodic_thread.start()
    until(lambda: not left)
    periodic_thread.close()
    assert not periodic_thread.is_alive()


def test_a_slice_that_raises_ends_no_keeper():
    left = [True] * 3

    def maintain():
        left.pop()
        raise MemoryError

    periodic_thread = PeriodicThread(maintain, interval_s=0.0)
    periodic_thread.start()
    until(lambda: not left)
    assert periodic_thread.is_alive()
    periodic_thread.close()
