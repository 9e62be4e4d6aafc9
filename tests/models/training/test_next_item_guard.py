"""The guard of a next-item run by what it gains over popularity: shuffled items of a log of popular items are held."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from tests.models.training.test_loop_follow_next_item import begin, config_of, stream_to

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("quick")]

USERS, ITEMS, FULL, WINDOW = 300, 200, 12_000, 2000
FOLLOWS = 0.3
"""Share of the events whose item follows from the one before; the others are drawn by popularity (Zipf 1.2)."""


class LastItem:
    """Files of events."""

    def __init__(self, folder):
        self.folder, self.random, self.files, self.sent = folder, np.random.default_rng(5), 0, 0
        self.popularity = np.arange(1, ITEMS + 1) ** -1.2
        self.popularity /= self.popularity.sum()
        self.next, self.last = self.random.permutation(ITEMS), self.random.integers(0, ITEMS, USERS)
        folder.mkdir()

    def send(self, rows, shuffled=False):
        users, items = self.random.integers(0, USERS, rows), self.random.choice(ITEMS, rows, p=self.popularity)
        for at, follows in enumerate(self.random.random(rows) < FOLLOWS):
            if follows:
                items[at] = self.next[self.last[users[at]]]
            self.last[users[at]] = items[at]
        if shuffled:
            self.random.shuffle(items)
        times = 1.7e9 + self.sent + np.arange(rows)
        table = pa.table({"user": users, "item": 100 + items, "ts": times, "clicked": np.ones(rows)})
        pq.write_table(table, self.folder / f"{self.files:05}.parquet")
        self.files, self.sent = self.files + 1, self.sent + rows


def test_shuffled_items_of_popular_items_are_held_and_good_windows_are_not(tmp_path):
    events = LastItem(tmp_path / "events")
    events.send(FULL)
    run = begin(config_of(tmp_path, full_rows=FULL, delta_rows=WINDOW))
    run.full()
    for window in range(1, 9):
        events.send(WINDOW)
        assert stream_to(run, FULL + window * WINDOW) == [f"1.{window}"]
        assert run.status().held == ""
    usual = run.status().window_ndcg
    events.send(WINDOW, shuffled=True)
    assert stream_to(run, FULL + 9 * WINDOW) == ["1.9"]
    assert run.status().held != ""
    print("NDCG", usual, run.status().window_ndcg, run.status().held)
