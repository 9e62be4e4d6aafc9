"""The keeper: its slices one after another, and its end."""

from freshet_serving.processor.watching.keeper import Keeper
from tests.waiting import until


def test_the_keeper_works_again_at_once_while_there_is_work_and_ends_when_closed():
    left = [True] * 50
    keeper = Keeper(lambda: bool(left) and left.pop(), interval_s=60.0, busy_interval_s=0.0)
    keeper.start()
    until(lambda: not left)
    keeper.close()
    assert not keeper.is_alive()


def test_a_slice_that_raises_ends_no_keeper():
    left = [True] * 3

    def tend():
        left.pop()
        raise MemoryError

    keeper = Keeper(tend, interval_s=0.0)
    keeper.start()
    until(lambda: not left)
    assert keeper.is_alive()
    keeper.close()
