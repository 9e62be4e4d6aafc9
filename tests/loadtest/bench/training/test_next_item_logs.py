"""The trial of next-item networks on logs: each user's last event comes last, and the page compares the means."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from loadtest.bench.training.next_item_logs import FEWEST, KINDS, PEER, events_of, page


def results(**logs):
    about = {"machine": {"cores": 2, "cpu": "c"}, "origin": {"date": "2026-01-01", "command": "make"}}
    return about | {"logs": {"20000": logs}}


def told(ours, two, peer):
    counts = {"popularity": 0.01, "last item": 0.2, "last two": two}
    return counts | {"sasrec_next": ours, PEER: peer}


def test_difference_is_to_the_better_rival_over_all_seeds():
    shown = page(results(shop={"1": told(0.3, 0.29, 0.2), "2": told(0.3, 0.32, 0.2)}, hits={"1": told(0.1, 0.1, 0.12)}))
    assert "| 20,000 | shop | 2 | 0.0100 | 0.2000 | 0.3050 | 0.2000 | 0.3000 |  | -0.0050 | yes |" in shown
    assert "| 20,000 | hits | 1 | 0.0100 | 0.2000 | 0.1000 | 0.1200 | 0.1000 |  | -0.0200 | no |" in shown


def test_popularity_is_a_rival_and_other_networks_may_have_fewer_seeds():
    first = told(0.3, 0.2, 0.2) | {"popularity": 0.32, "hstu_next": 0.31}
    shown = page(results(shop={"1": first, "2": told(0.3, 0.2, 0.2) | {"popularity": 0.32}}))
    assert "| shop | 2 | 0.3200 | 0.2000 | 0.2000 | 0.2000 | 0.3000 | 0.3100 (1) | -0.0200 | no |" in shown


@pytest.mark.parametrize("log", KINDS)
def test_last_event_of_each_user_stands_behind_all_others(log):
    users, items, times = events_of(log, 1, Path("nowhere"), 4000)
    count = len(np.unique(users))
    assert len(users) == len(items) == len(times)
    assert len(np.unique(users[-count:])) == count
    assert np.bincount(users)[users].min() >= FEWEST
    assert (np.diff(times[:-count]) >= 0).all()
