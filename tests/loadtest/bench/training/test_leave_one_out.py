"""The last event of each user is left out, and ranked by the race's rules."""

import math

import numpy as np

from loadtest.bench.training.leave_one_out import LeaveOneOut


def split():
    return LeaveOneOut(np.array([7, 5, 7, 5, 7]), np.array([30, 10, 20, 20, 10]), np.arange(5))


def test_events_are_cut_by_user_in_their_order():
    found = split()
    assert found.ids.tolist() == [10, 20, 30]
    assert (found.items.tolist(), found.users.tolist()) == ([0, 2, 1], [0, 1, 1])
    assert (found.splits.tolist(), found.targets.tolist()) == ([0, 1, 3], [1, 0])
    assert found.times.tolist() == [1, 0, 2]


def test_seen_items_are_skipped_and_ties_count_against_the_target():
    users = np.ones((2, 1), np.float32)
    figures = LeaveOneOut.loaded(split().saved()).measured(users, np.array([[5.0], [1.0], [1.0]], np.float32))
    # The first user's target ties with one item, and the item above it was seen; the second's is the best.
    assert figures == {"hit_rate": 1.0, "ndcg": (1 / math.log2(3) + 1) / 2}
