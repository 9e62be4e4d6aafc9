"""Files of events that come into a folder, and runs that follow them."""

import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.waiting import until


def put(path, columns):
    """Write a Parquet file that appears whole."""
    hidden = path.with_name("." + path.name)
    pq.write_table(pa.table(columns), hidden)
    hidden.rename(path)


class EventFiles:
    """Files of events in a new folder; what their rows() are is its class's."""

    def __init__(self, folder, late=False, seed=5):
        self.folder, self.random, self.late = folder, np.random.default_rng(seed), late
        self.files = self.sent = 0
        folder.mkdir()

    def send(self, rows, **named):
        put(self.folder / f"{self.files:05}.parquet", self.rows(rows, **named))
        self.files, self.sent = self.files + 1, self.sent + rows

    def times(self, rows):
        """Times of the next rows, a second apart; of late ones one in five is 40 seconds before its place."""
        times = 1.7e9 + self.sent + np.arange(rows)
        return times - np.where(self.random.random(rows) < 0.2, 40, 0) if self.late else times


class Clicks(EventFiles):
    """Clicks; every id's share of ones is its own."""

    def __init__(self, folder):
        super().__init__(folder, seed=0)

    def rows(self, rows, shuffled=False, flipped=False):
        user, item = self.random.integers(0, 40, rows), self.random.integers(0, 30, rows)
        logit = 1.5 * np.sin(user * 2.4) + 1.5 * np.cos(item * 1.7)
        label = (self.random.random(rows) < 1 / (1 + np.exp(-logit))).astype(np.float64)
        if shuffled:
            self.random.shuffle(label)
        if flipped:
            label = 1 - label
        return {"user": user, "item": item, "clicked": label, "ts": 1.7e9 + self.files + np.arange(rows) / rows}


class Events(EventFiles):
    """A shop's events; users act on what they did last."""

    def rows(self, rows):
        user, item = self.random.integers(0, 25, rows), self.random.integers(0, 30, rows)
        times = self.times(rows)
        label = (self.random.random(rows) < 0.4).astype(np.float64)
        kinds = np.array(["view", "buy", "like"])[self.random.integers(0, 3, rows)]
        return {"user": user, "item": item, "kind": kinds, "clicked": label, "ts": times}


USERS, ITEMS = 25, 30


class Steps(EventFiles):
    """Events of users who step through the items one by one, each from a place of their own."""

    def __init__(self, folder, late=False):
        super().__init__(folder, late)
        self.done = np.random.default_rng(3).integers(0, ITEMS, USERS)

    def rows(self, rows, item=None, shuffled=False):
        """Rows, of which two in five have an item, if one is given; with shuffled items, nothing follows from any."""
        user = self.random.integers(0, USERS, rows)
        items = np.empty(rows, np.int64)
        for at, who in enumerate(user):
            items[at] = 100 + self.done[who] % ITEMS
            self.done[who] += 1
        if item is not None:
            items[self.random.random(rows) < 0.4] = item
        if shuffled:
            self.random.shuffle(items)
        return {"user": user, "item": items, "ts": self.times(rows), "clicked": np.ones(rows)}


def stop_when(run, condition):
    """Stop a run, from another thread, once the condition holds."""
    threading.Thread(target=lambda: (until(condition), run.stop()), daemon=True).start()


def stream_to(run, row):
    """Stream until a row has been learned; return what was published. A run that was stopped goes on."""
    run._stopped.clear()
    stop_when(run, lambda: run.state.position >= row)
    return [str(generation) for generation in run.stream()]
