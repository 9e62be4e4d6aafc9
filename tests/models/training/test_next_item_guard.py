"""The guard of a next-item run by what it gains over popularity: shuffled items of a log of popular items are held."""

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from freshet_serving.models.training.rank_guard import NDCG_DROP
from tests.models.training.event_files import EventFiles, stream_to
from tests.models.training.test_loop_follow_next_item import begin, config_of

pytestmark = [pytest.mark.tensorflow, pytest.mark.long, pytest.mark.usefixtures("quick")]

USERS, ITEMS, FULL, WINDOW, GOOD = 300, 200, 12_000, 2000, 8
FOLLOWS = 0.18
"""Share of the events whose item follows from the one before; the others are drawn by popularity (Zipf 1.2)."""


class LastItem(EventFiles):
    def __init__(self, folder):
        super().__init__(folder)
        self.popularity = np.arange(1, ITEMS + 1) ** -1.2
        self.popularity /= self.popularity.sum()
        self.next, self.last = self.random.permutation(ITEMS), self.random.integers(0, ITEMS, USERS)

    def rows(self, rows, shuffled=False):
        users, items = self.random.integers(0, USERS, rows), self.random.choice(ITEMS, rows, p=self.popularity)
        for at, follows in enumerate(self.random.random(rows) < FOLLOWS):
            if follows:
                items[at] = self.next[self.last[users[at]]]
            self.last[users[at]] = items[at]
        if shuffled:
            self.random.shuffle(items)
        return {"user": users, "item": 100 + items, "ts": self.times(rows), "clicked": np.ones(rows)}


def test_shuffled_items_of_popular_items_are_held_and_good_windows_are_not(tmp_path):
    events = LastItem(tmp_path / "events")
    events.send(FULL)
    config = config_of(tmp_path, full_rows=FULL, delta_rows=WINDOW)
    run = begin(config)
    run.full()
    events.send(GOOD * WINDOW)
    assert len(stream_to(run, FULL + GOOD * WINDOW)) == GOOD
    assert (run.status().held_windows, run.status().held) == (0, "")
    usual = run.status().window_ndcg
    # Another process knows what is usual from its checkpoint.
    again = begin(config)
    events.send(WINDOW, shuffled=True)
    stream_to(again, FULL + (GOOD + 1) * WINDOW)
    assert "from that of popularity alone over 2,000 events" in again.status().held
    assert again.status().window_ndcg > (1 - NDCG_DROP) * usual, "the NDCG alone does not tell"
