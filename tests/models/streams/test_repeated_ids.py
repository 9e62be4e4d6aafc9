"""Whole joins in which ids of requests are there more than once: sent again, or used by somebody else."""

import contextlib
import json
from operator import itemgetter

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from freshet_serving.models.streams.join_run import NOTED_S, JoinRun
from freshet_serving.models.streams.repeated_ids import _digests
from freshet_serving.processor.repository.warmup import METADATA
from tests.models.streams.recordings import BEGAN_S, Place, outcomes, put, recorded_as, recording
from tests.models.streams.test_join_run import Killed, killed_after, turns

FATES = ("positives", "late", "unmatched", "duplicates", "too_late", "ambiguous")
COUNTED = ("rows", "positives", "late", "retried", "disowned", "ambiguous")


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


def record(place, number, rows, prices):
    """rows: (request, row, time, score); prices: an input of each, which tells requests apart."""
    times = [row[2] for row in rows]
    price = pa.array(prices, pa.float64())
    put(place.recordings, recorded_as(number, times[0]), recording(rows, price=price))


def counts(run):
    found = run.status().counts
    return {name: getattr(found, name) for name in COUNTED if getattr(found, name)}


def emitted(place):
    names = ("freshet.request", "price", "freshet.label")
    return [row for table in place.files() for row in zip(*(table[name].to_pylist() for name in names))]


@pytest.mark.parametrize("guest_s", [-30.0, 30.0, -300.0, 300.0])
def test_reused_request_id_gets_no_foreign_label_or_training(place, guest_s):
    """Recorded before or after the other's row, in its window or after it; the outcome comes after both."""
    apart = abs(guest_s) > 100
    both = sorted([(0.0, 1.0), (guest_s, -5.0)])
    for n, (time_s, price) in enumerate(both):
        record(place, n + 1, [("r17", 0, time_s, 0.25), (f"own{n}", 0, time_s + 0.5, 0.25)], [price, 2.0])
        if apart and not n:
            place.clock.now_s = BEGAN_S + time_s + 115
            place.join()
    # Twice: the second time a restart reads again who had the id.
    for now_s, hit_s in ((500, 330.0), (800, 340.0)):
        place.clock.now_s = BEGAN_S + now_s
        put(place.outcomes, f"{now_s}", outcomes([("r17", 0, hit_s)]))
        run = place.join()
    # A row that has left before the other came stays what silence had said.
    assert emitted(place) == [("r17", both[0][1], 0.0)] * apart + [("own0", 2.0, 0.0), ("own1", 2.0, 0.0)]
    assert counts(run) == {"rows": 2 + apart, "disowned": 2 - apart, "ambiguous": 2}


@pytest.mark.parametrize("again_s", [3.0, 150.0])
def test_retried_request_counts_once_with_its_label(place, again_s):
    nan = float("nan")
    record(place, 1, [("r17", 0, 0.0, 0.25), ("r17", 1, 0.0, 0.25)], [nan, 1.5])
    record(place, 2, [("r17", 0, again_s, 0.75), ("r17", 1, again_s, 0.75)], [nan, 1.5])
    put(place.outcomes, "a", outcomes([("r17", 1, 50.0)]))
    run = place.join()
    assert place.rows() == [("r17", 0, 0.0), ("r17", 1, 1.0)]
    assert counts(run) == {"rows": 2, "positives": 1, "retried": 2}


def test_late_outcome_corrects_a_retried_request(place):
    for number, time_s in ((1, 0.0), (2, 3.0)):
        record(place, number, [("r17", 0, time_s, 0.25)], [1.5])
        place.clock.now_s = BEGAN_S + 102.0 + 10.0 * number
        place.join()
    put(place.outcomes, "a", outcomes([("r17", 0, 300.0)]))
    place.clock.now_s = BEGAN_S + 500
    run = place.join()
    assert place.rows() == [("r17", 0, 0.0), ("r17", 0, 1.0)]
    assert counts(run) == {"rows": 1, "late": 1, "retried": 1}


def test_outcome_of_a_closed_window_never_labels_a_later_request(place):
    record(place, 1, [("r17", 0, 0.0, 0.25)], [1.0])
    place.clock.now_s = BEGAN_S + 120
    place.join(late_s=0.0)
    record(place, 2, [("r17", 0, 150.0, 0.25)], [-5.0])
    put(place.outcomes, "a", outcomes([("r17", 0, 160.0)]))
    place.clock.now_s = BEGAN_S + 500
    run = place.join(late_s=0.0)
    assert emitted(place) == [("r17", 1.0, 0.0)]
    assert counts(run) == {"rows": 1, "disowned": 1, "ambiguous": 1}


def test_implausibly_many_repeats_are_disowned(place):
    rows = [("r17", 0, float(n), 0.25) for n in range(20)]
    record(place, 1, [*rows, ("own", 0, 20.0, 0.25)], [1.0] * 21)
    assert counts(place.join()) == {"rows": 1, "disowned": 20}


def test_missing_recording_leaves_a_repeated_request_ambiguous(place):
    for number, time_s in ((1, 0.0), (2, 50.0)):
        record(place, number, [("r17", 0, time_s, 0.25)], [1.0])
    place.clock.now_s = BEGAN_S + 60.0
    run = JoinRun(place.settings(follow=True), place.clock)
    turns(run, lambda: run.status().waiting == 2)
    next(place.recordings.glob("*-1.parquet")).unlink()
    place.clock.now_s = BEGAN_S + 300.0
    turns(run, lambda: run.status().waiting == 0)
    assert (counts(run), run.status().counts.lost) == ({"disowned": 1}, 1)


def test_disowned_rows_are_logged_in_one_line_at_intervals(place):
    lines = []
    record(place, 1, [("r17", 0, 0.0, 0.25), ("s\n", 0, 0.0, 0.25)], [1.0, 2.0])
    record(place, 2, [("r17", 0, 1.0, 0.25), ("s\n", 0, 1.0, 0.25)], [3.0, 4.0])
    JoinRun(place.settings(file_rows=1), place.clock, note=lines.append).run()
    assert NOTED_S > 0
    (line,) = lines
    assert line.startswith("expected one request for each id, got several for the ids of 1 rows: these rows")
    assert "r17" not in line


@st.composite
def crowds(draw):
    """(id, price) of requests, by ascending time, and (id, time) of outcomes: few ids, so that they meet."""
    times = sorted(draw(st.lists(st.integers(0, 500), min_size=1, max_size=14, unique=True)))
    rows = [(f"r{draw(st.integers(0, 3))}", float(time_s), draw(st.sampled_from([1.0, 2.0]))) for time_s in times]
    hits = draw(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1200)), max_size=8))
    return rows, sorted(((f"r{n}", float(time_s)) for n, time_s in hits), key=lambda hit: hit[1])


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(crowd=crowds(), kills=st.lists(st.tuples(st.integers(1, 25), st.booleans()), max_size=3))
def test_kill_never_gives_a_row_a_foreign_label(crowd, kills, tmp_path_factory):
    rows, hits = crowd
    found = []
    for killed in ([], kills):
        place = Place(tmp_path_factory.mktemp("crowd"))
        for n in range(0, len(rows), 3):
            part = rows[n : n + 3]
            record(place, n + 1, [(name, 0, time_s, 0.25) for name, time_s, _ in part], [price for *_, price in part])
        put(place.outcomes, "a", outcomes([(name, 0, time_s) for name, time_s in hits]))
        for operations, after in killed:
            run = JoinRun(place.settings(file_rows=2), place.clock)
            with killed_after(operations, after), contextlib.suppress(Killed):
                run.run()
        run = place.join(file_rows=2)
        # Which of two requests leaves first may depend on where a restart begins to read; the rows of one do not.
        found.append((sorted(emitted(place), key=itemgetter(0)), counts(run)))
        told = run.status().counts
        assert sum(getattr(told, name) for name in FATES) == len(hits)
    assert found[0] == found[1]
    labelled, told = found[0]
    assert told.get("rows", 0) + told.get("retried", 0) + told.get("disowned", 0) == len(rows)
    for name in {name for name, *_ in rows}:
        prices = {price for one, _, price in rows if one == name}
        # All of them are within late_s of each other, so that one request of other inputs disowns an id.
        positives = [price for one, price, label in labelled if one == name and label]
        assert len(positives) <= (len(prices) == 1)


def test_shared_and_repeated_values_of_a_request_have_one_digest():
    about = {METADATA: json.dumps({"model": "ctr", "features": [{"name": "tags"}, {"name": "price"}]}).encode()}
    rows, lists = [("a", n, 0, 0.1) for n in range(3)], pa.list_(pa.int64())
    once = recording(rows, tags=pa.array([[5, 6], None, None], lists), price=pa.array([1.0, None, 2.0]))
    each = recording(rows, tags=pa.array([[5, 6]] * 3, lists), price=pa.array([1.0, 1.0, 2.0]))
    digests = [_digests(table.replace_schema_metadata(about)) for table in (once, each)]
    assert digests[0] == digests[1]
    assert len({*digests[0]}) == 3
