"""What the tests of joining share: recordings as a recorder writes them, outcomes, a clock, what was emitted."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from freshet_serving.models.streams.join_run import JoinRun
from freshet_serving.models.streams.join_settings import JoinSettings
from freshet_serving.processor.repository.warmup import METADATA

BEGAN_S = 1_700_000_000.0
TIMESTAMP = pa.timestamp("us", "UTC")


class Clock:
    """Unix seconds that a test sets."""

    def __init__(self, now_s=BEGAN_S + 10 * 86400):
        self.now_s = now_s

    def __call__(self):
        return self.now_s


def recording(rows, model="ctr", **more):
    """rows: (request, row, seconds after BEGAN_S, score); every row's item is 100 * row + 7."""
    requests, numbers, times_s, scores = zip(*rows)
    times = pa.array([round((BEGAN_S + time_s) * 1e6) for time_s in times_s], pa.int64()).cast(TIMESTAMP)
    columns = {
        "freshet.request": pa.array(requests),
        "freshet.row": pa.array(numbers, pa.int32()),
        "freshet.time": times,
        "freshet.generation": pa.array([f"3.{int(time_s) // 1000}" for time_s in times_s]),
        "item": pa.array([100 * number + 7 for number in numbers], pa.int64()),
        "tags": pa.array([[number, len(request)] for request, number in zip(requests, numbers)], pa.list_(pa.int64())),
        "freshet.output.score": pa.array(scores, pa.float32()),
        **more,
    }
    about = {METADATA: json.dumps({"model": model}).encode()}
    return pa.table(columns).replace_schema_metadata(about)


def outcomes(rows):
    """rows: (request, row, seconds after BEGAN_S)."""
    requests, numbers, times_s = zip(*rows) if rows else ((), (), ())
    return pa.table(
        {
            "request": pa.array(requests, pa.string()),
            "row": pa.array(numbers, pa.int64()),
            "time": pa.array([BEGAN_S + time_s for time_s in times_s], pa.float64()),
        }
    )


def put(folder, name, table, **options):
    """A whole Parquet file, at once."""
    folder.mkdir(parents=True, exist_ok=True)
    hidden = folder / f".{name}.tmp"
    pq.write_table(table, hidden, **options)
    hidden.rename(folder / f"{name}.parquet")


def recorded_as(number, at_s=0.0, model="ctr", recorder="w0"):
    """The name that a recorder gives a file."""
    return f"{model}-{recorder}-{int((BEGAN_S + at_s) * 1e3)}-{number}"


class Place:
    """Folders of one join."""

    def __init__(self, folder, clock=None):
        self.recordings, self.outcomes, self.out = (folder / name for name in ("recordings", "outcomes", "joined"))
        for made in (self.recordings, self.outcomes):
            made.mkdir()
        self.clock = clock or Clock()

    def settings(self, **options):
        options = {"wait_s": 100.0, "late_s": 1000.0, "lag_s": 10.0, "every_s": 0.0, "window_s": 50.0} | options
        return JoinSettings(str(self.recordings), str(self.outcomes), str(self.out), **options)

    def join(self, tell=None, **options):
        """What is there, joined; the run."""
        run = JoinRun(self.settings(**options), self.clock, tell)
        run.run()
        return run

    def files(self):
        return [pq.read_table(path, partitioning=None) for path in sorted(self.out.glob("*.parquet"))]

    def rows(self):
        """(request, row, label) of every row that was emitted, in order."""
        names = ("freshet.request", "freshet.row", "freshet.label")
        return [row for table in self.files() for row in zip(*(table[name].to_pylist() for name in names))]

    def weights(self):
        return np.concatenate([table["freshet.weight"].to_numpy() for table in self.files()])


def expected(rows, hits, wait_s=100.0, late_s=1000.0):
    """Brute force: (rows in order with the label of their window, sorted late rows, counts). hits: in their order."""
    first, counts = {}, {"duplicates": 0, "too_late": 0, "unmatched": 0}
    times = {(request, number): time_s for request, number, time_s, _ in rows}
    for request, number, time_s in hits:
        key = request, number
        if key not in times:
            counts["unmatched"] += 1
        elif time_s - times[key] > max(wait_s, late_s) and key not in first:
            counts["too_late"] += 1
        elif key in first:
            counts["duplicates"] += 1
        else:
            first[key] = time_s - times[key]
    labels = [(request, number, float(first.get((request, number), 1e9) <= wait_s)) for request, number, _, _ in rows]
    late = sorted((*key, 1.0) for key, delay_s in first.items() if delay_s > wait_s)
    return labels, late, counts
