"""Orders and what travels with them."""

import numpy as np

from freshet_serving.models.parallel.commands import (
    HANDLERS,
    CommandHeader,
    RankCommand,
    by_name,
    named_arrays,
    receive_command,
    send_command,
)
from tests.models.parallel.fakes import thread_ranks

BATCHES = {RankCommand.LEARN, RankCommand.SCORE, RankCommand.POOL}


def test_every_command_except_batches_and_end_has_a_handler():
    assert set(HANDLERS) == set(RankCommand) - BATCHES - {RankCommand.END}


def test_command_and_its_arrays_reach_every_other_rank():
    ranks = thread_ranks(3)
    send_command(ranks[0], CommandHeader(RankCommand.LEARN, 7, 3))
    send_command(ranks[0], CommandHeader(RankCommand.MARK, 8, 1), [[], [np.arange(3)], [np.arange(4)]])
    for n in (1, 2):
        order, given = receive_command(ranks[n])
        assert (order, given) == (CommandHeader(RankCommand.LEARN, 7, 3), [])
        order, given = receive_command(ranks[n])
        assert order == CommandHeader(RankCommand.MARK, 8, 1, 1)
        assert [array.tolist() for array in given] == [list(range(2 + n))]


def test_filter_arrays_keep_their_names():
    for arrays in ({}, {"keys": np.arange(3), "counters": np.zeros(0, np.uint8)}):
        found = by_name(named_arrays(arrays))
        assert {name: a.tolist() for name, a in found.items()} == {name: a.tolist() for name, a in arrays.items()}
