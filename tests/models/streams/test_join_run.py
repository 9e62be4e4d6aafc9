"""Whole joins of folders under a clock that a test sets: every row once, late ones once more, wherever a kill falls."""

import contextlib
import json
import os
from collections import Counter
from dataclasses import asdict, replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from freshet_serving.models.data.broadcast_columns import filled
from freshet_serving.models.data.decoding_child import FRAME_NBYTES
from freshet_serving.models.streams import growing_folder, join_run, timed_stream
from freshet_serving.models.streams.join_run import JoinRun
from freshet_serving.models.streams.join_windows import read_lines
from freshet_serving.models.streams.matching import JoinCounts
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.repository.warmup import METADATA
from tests.models.streams.recordings import BEGAN_S, Place, expected, outcomes, put, recorded_as, recording


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


def rows_of(count, per_request=3, every_s=1.0, score=0.25):
    return [(f"r{n // per_request}", n % per_request, n * every_s, score) for n in range(count)]


def turns(run, done):
    """Takes turns until something is so."""
    for _ in range(200):
        if done():
            return
        run.run_once()
    raise AssertionError(run.status())


def test_rows_leave_with_their_outcomes_after_the_window_and_as_recorded(place):
    put(place.recordings, recorded_as(1), recording(rows_of(6)))
    put(place.outcomes, "a", outcomes([("r0", 1, 50), ("r1", 2, 60)]))
    run = place.join()
    assert place.rows() == [("r0", 0, 0), ("r0", 1, 1), ("r0", 2, 0), ("r1", 0, 0), ("r1", 1, 0), ("r1", 2, 1)]
    assert place.weights().tolist() == [1] * 6
    assert asdict(run.status().counts) == dict.fromkeys(asdict(JoinCounts()), 0) | {"rows": 6, "positives": 2}
    (emitted,), made = place.files(), recording(rows_of(6))
    assert emitted.drop_columns(["freshet.label", "freshet.weight", "freshet.late"]).equals(made)
    assert emitted.schema.metadata[b"freshet"] == made.schema.metadata[b"freshet"]


def once(rows, tags, users):
    """A recording of requests a and b, which sent their tags and their user once."""
    lists, values = (
        [made.get(request) if number == 0 else None for request, number, *_ in rows] for made in (tags, users)
    )
    table = recording(rows, tags=pa.array(lists, pa.list_(pa.int64())), user=pa.array(values, pa.int64()))
    about = {"model": "ctr", "features": [{"name": "tags"}, {"name": "user"}]}
    return table.replace_schema_metadata({METADATA: json.dumps(about).encode()})


def each_row(files):
    """The rows of joined files with all values, as readers see them."""
    whole = [{name: filled(table, name).to_pylist() for name in table.column_names} for table in files]
    return [dict(zip(table, row)) for table in whole for row in zip(*table.values())]


def test_what_a_request_sent_once_is_kept_once_a_file(place):
    """Also beside late rows, which interrupt the rows of their request, and of one whose first row has left before."""
    rows = [("a", n, 0, 0.1) for n in range(9)] + [("b", n, 1, 0.2) for n in range(3)]
    put(place.recordings, recorded_as(1), once(rows, {"a": [5] * 100, "b": [6]}, {"a": 1, "b": 2}))
    put(place.outcomes, "a", outcomes([("a", 8, 10), ("a", 3, 150), ("b", 2, 10), ("b", 0, 500)]))
    place.join(file_rows=5)
    files = place.files()
    found = each_row(files)
    assert sum(not row["freshet.late"] for row in found) == 12
    assert {(row["freshet.request"], row["user"], tuple(row["tags"])) for row in found} == {
        ("a", 1, (5,) * 100), ("b", 2, (6,)),
    }  # fmt: skip
    assert sorted((row["freshet.request"], row["freshet.row"]) for row in found if row["freshet.late"]) == [
        ("a", 3), ("b", 0),
    ]  # fmt: skip
    assert [len(table) - table["tags"].null_count for table in files] == [1, 4, 3]


def test_long_list_of_many_rows_takes_few_files_and_little_memory(place):
    rows = [("a", n, 0, 0.1) for n in range(5000)]
    put(place.recordings, recorded_as(1), once(rows, {"a": list(range(2000))}, {"a": 1}))
    put(place.outcomes, "a", outcomes([("a", n, 150) for n in range(0, 5000, 2)]))
    place.join(file_rows=2500)
    files = place.files()
    assert sum(map(len, files)) == 7500
    assert max(table.nbytes for table in files) < 8 << 20
    for table in files:
        some = filled(table, "tags").take(list(range(0, len(table), 500)))
        assert some.to_pylist() == [list(range(2000))] * len(some)


def test_many_corrections_of_long_lists_do_not_interrupt_the_rows(place, monkeypatch):
    monkeypatch.setattr(join_run, "GROUP_NBYTES", 50_000)
    rows = [("a", n, 0, 0.1) for n in range(8)] + [("b", n, 500, 0.1) for n in range(8)]
    put(place.recordings, recorded_as(1), once(rows, {"a": [5] * 2000, "b": [6] * 2000}, {"a": 1, "b": 2}))
    put(place.outcomes, "a", outcomes([("a", n, 450) for n in range(8)]))
    place.join(file_rows=8)
    assert [table["freshet.late"].to_pylist() for table in place.files()] == [[False] * 8, [False] * 8 + [True] * 8]


def test_stopped_join_writes_the_current_file_and_one_more(place):
    put(place.recordings, recorded_as(1), recording(rows_of(40)))
    run = JoinRun(place.settings(file_rows=8, every_s=1e6), place.clock)
    write = run._folder.write
    run._folder.write = lambda *given: run.stop() or write(*given)
    run.run()
    assert [len(table) for table in place.files()] == [8, 8]
    place.join(file_rows=8)
    assert len(place.rows()) == 40


def test_late_outcomes_without_corrections_are_counted(place):
    put(place.recordings, recorded_as(1), recording(rows_of(3)))
    put(place.outcomes, "a", outcomes([("r0", 1, 500), ("r0", 2, 5)]))
    counts = place.join(late_s=0.0).status().counts
    assert place.rows() == [("r0", 0, 0), ("r0", 1, 0), ("r0", 2, 1)]
    assert counts.too_late + counts.unmatched == 1


def test_rows_within_their_window_wait_for_the_next_run(place):
    put(place.recordings, recorded_as(1), recording(rows_of(30)))
    put(place.outcomes, "a", outcomes([("r9", 2, 60)]))
    place.clock.now_s = BEGAN_S + 110 + 10
    run = place.join()
    assert len(place.rows()) == 10
    assert run.status().waiting == 20
    place.clock.now_s += 1000
    place.join()
    assert [row[:2] for row in place.rows()] == [row[:2] for row in rows_of(30)]
    assert place.rows()[29] == ("r9", 2, 1)


def test_outcome_waits_for_its_recording(place):
    place.clock.now_s = BEGAN_S + 50
    put(place.outcomes, "a", outcomes([("r0", 0, 20), ("never", 0, 21)]))
    assert place.join().status().held == 2
    put(place.recordings, recorded_as(1), recording(rows_of(3)))
    place.clock.now_s = BEGAN_S + 5000
    counts = place.join().status().counts
    assert place.rows()[0] == ("r0", 0, 1)
    assert (counts.positives, counts.unmatched) == (1, 1)


def test_outcomes_may_name_items_instead_of_rows(place):
    put(place.recordings, recorded_as(1), recording(rows_of(6)))
    clicked = outcomes([("r0", 107, 50), ("r1", 207, 60), ("r1", 8, 60)]).rename_columns(["request", "item", "time"])
    put(place.outcomes, "a", clicked)
    counts = place.join(key="item").status().counts
    assert [row for row in place.rows() if row[2]] == [("r0", 1, 1), ("r1", 2, 1)]
    assert counts.unmatched == 1
    # Late ones as well, in a run that has to find the emitted rows.
    put(place.outcomes, "b", clicked.take([0]).set_column(1, "item", pa.array([7])))
    place.join(key="item")
    assert ("r0", 0, 0) in place.rows()


def test_values_are_labels_and_zero_is_no_outcome(place):
    put(place.recordings, recorded_as(1), recording(rows_of(3)))
    told = outcomes([("r0", 0, 1), ("r0", 1, 2), ("r0", 2, 700)]).append_column("v", pa.array([0.5, 0.0, 0.25]))
    put(place.outcomes, "a", told)
    place.join(value="v")
    assert place.rows() == [("r0", 0, 0.5), ("r0", 1, 0), ("r0", 2, 0), ("r0", 2, 1)]
    assert place.weights()[3] == 0.25


def test_join_of_several_models_needs_a_model_option(place):
    put(place.recordings, recorded_as(1, model="other"), recording(rows_of(3), model="other"))
    put(place.recordings, recorded_as(2), recording(rows_of(6)))
    with pytest.raises(BadInput, match="--model: expected one of the folder's: ctr, other"):
        place.join()
    run = place.join(model="ctr")
    assert (len(place.rows()), run.status().lost_files) == (6, 0)
    with pytest.raises(BadInput, match="--model: expected ctr, as --out was started with, got other"):
        place.join(model="other")


def test_recordings_with_different_columns_go_to_separate_files(place):
    put(place.recordings, recorded_as(1, 0), recording(rows_of(3)))
    put(place.recordings, recorded_as(2, 3), recording([("s", n, 5, 0.5) for n in range(3)], price=pa.array([1.0] * 3)))
    place.clock.now_s = BEGAN_S + 300
    place.join()
    assert [len(table) for table in place.files()] == [3, 3]
    put(place.outcomes, "a", outcomes([("r0", 0, 500), ("s", 1, 500)]))
    place.clock.now_s = BEGAN_S + 520
    place.join()
    place.join()
    assert place.rows()[6:] == [("r0", 0, 1), ("s", 1, 1)]


def test_missing_recordings_are_counted(place):
    for n in range(3):
        put(place.recordings, recorded_as(n + 1, n), recording([(f"r{n}", 0, n, 0.5)]))
    put(place.outcomes, "a", outcomes([("r1", 0, 5)]))
    place.clock.now_s = BEGAN_S + 50
    place.join()
    (place.recordings / f"{recorded_as(2, 1)}.parquet").unlink()
    put(place.recordings, recorded_as(6, 9), recording([("r9", 0, 9, 0.5)]))
    place.clock.now_s += 5000
    run = place.join()
    assert [row[0] for row in place.rows()] == ["r0", "r2", "r9"]
    assert run._recordings.lost_rows == 1
    assert run.status().lost_files == 2
    assert run.status().counts.unmatched == 1


def test_recording_deleted_while_its_rows_wait_is_counted(place):
    put(place.recordings, recorded_as(1), recording(rows_of(3)))
    place.clock.now_s = BEGAN_S + 50
    run = JoinRun(place.settings(follow=True), place.clock)
    turns(run, lambda: run.status().waiting == 3)
    (place.recordings / f"{recorded_as(1)}.parquet").unlink()
    place.clock.now_s += 500
    turns(run, lambda: run.status().waiting == 0)
    assert run.status().counts.lost == 3
    assert place.rows() == []


def test_outcome_for_a_deleted_output_file_is_too_late(place):
    put(place.recordings, recorded_as(1, 0), recording(rows_of(3)))
    put(place.recordings, recorded_as(2, 3), recording([("s", 0, 5, 0.5)], price=pa.array([1.0])))
    place.clock.now_s = BEGAN_S + 300
    run = JoinRun(place.settings(follow=True), place.clock)
    turns(run, lambda: run.status().counts.rows == 4)
    (place.out / "0000000001.parquet").unlink()
    put(place.outcomes, "a", outcomes([("r0", 0, 250), ("s", 0, 250)]))
    turns(run, lambda: run.status().counts.too_late + run.status().counts.late == 2)
    assert (run.status().counts.late, run.status().counts.too_late) == (1, 1)


def test_unreadable_outcome_stream_makes_no_row_negative(place, monkeypatch):
    put(place.recordings, recorded_as(1), recording(rows_of(3)))
    put(place.outcomes, "a", outcomes([("r0", 0, 20)]))
    (place.outcomes / "b.parquet").write_bytes(b"PAR1 cut short")
    run = JoinRun(place.settings(follow=True), place.clock)
    with monkeypatch.context() as patched:
        patched.setattr(growing_folder, "UNFINISHED_S", 0.0)
        turns(run, lambda: run.status().trouble and run.status().waiting == 3)
        for _ in range(5):
            run.run_once()
        assert place.rows() == []
    (place.outcomes / "b.parquet").unlink()
    turns(run, lambda: place.rows())
    assert [row[2] for row in place.rows()] == [1, 0, 0]


def test_two_joins_cannot_write_to_one_folder(place):
    put(place.recordings, recorded_as(1), recording(rows_of(3)))
    first = JoinRun(place.settings(), place.clock)
    with pytest.raises(BadInput, match="another join"):
        JoinRun(place.settings(), place.clock)
    first.run()
    place.join()


def test_output_folder_keeps_its_original_settings(place):
    put(place.recordings, recorded_as(1), recording(rows_of(3)))
    place.join()
    with pytest.raises(BadInput, match=r"--wait: expected 100\.0, as --out was started with, got 50"):
        place.join(wait_s=50.0)
    with pytest.raises(BadInput, match="--key: expected row"):
        place.join(key="item")


def test_label_sums_are_reported_per_generation(place):
    put(place.recordings, recorded_as(1), recording(rows_of(12, every_s=100.0)))
    put(place.outcomes, "a", outcomes([("r0", 1, 150), ("r3", 2, 1101)]))
    told = []
    place.join(tell=lambda model, sums: told.append((model, {g: asdict(s) for g, s in sums.items()})))
    assert {model for model, _ in told} == {"ctr"}
    sums = {g: [one[g] for _, one in told if g in one] for g in ("3.0", "3.1")}
    totals = {g: {name: sum(one[name] for one in found) for name in found[0]} for g, found in sums.items()}
    assert totals["3.0"] == {"scores": 2.5, "labels": 1.0, "rows": 10}
    assert totals["3.1"] == {"scores": 0.5, "labels": 1.0, "rows": 2}


def test_every_window_has_one_line(place):
    put(place.recordings, recorded_as(1), recording(rows_of(100)))
    put(place.outcomes, "a", outcomes([("r0", 0, 5), ("r20", 1, 400), ("nobody", 0, 20)]))
    place.join()
    (path,) = (place.out / "_join" / "windows").iterdir()
    first, second = read_lines(path)
    assert (first["rows"], first["positives"], first["late"], first["unmatched"]) == (50, 1, 0, 1)
    assert (second["rows"], second["positives"], second["late"], second["unmatched"]) == (50, 0, 1, 0)
    assert first["mean_score"] == 0.25
    assert first["complete"]
    assert first["calibration"] == pytest.approx(0.25 / (1 / 50))
    assert second["mean_label"] == pytest.approx(1 / 51, abs=1e-3)


class Killed(BaseException):
    """Not an Exception: nothing catches it."""


@contextlib.contextmanager
def killed_after(operations, after):
    """Kills whoever syncs or renames a file for the so manieth time, before or after it."""
    left, real = [operations], {"replace": os.replace, "fsync": os.fsync}

    def counted(name):
        def call(*args):
            left[0] -= 1
            if left[0] == 0 and not after:
                raise Killed
            real[name](*args)
            if left[0] == 0 and after:
                raise Killed

        return call

    try:
        os.replace, os.fsync = counted("replace"), counted("fsync")
        yield
    finally:
        os.replace, os.fsync = real["replace"], real["fsync"]


@st.composite
def worlds(draw):
    """Rows with times ascending, outcomes with times ascending, and where both are cut into files."""
    count = draw(st.integers(1, 24))
    times = sorted(draw(st.lists(st.integers(0, 400), min_size=count, max_size=count)))
    rows = [(f"r{n // 2}", n % 2, float(times[n]), 0.25) for n in range(count)]
    named = st.tuples(st.integers(0, count + 2), st.integers(-50, 1300))
    hits = []
    for n, delay in draw(st.lists(named, max_size=16)):
        request, number, time_s = (f"r{n // 2}", n % 2, rows[n][2]) if n < count else (f"x{n}", 0, 0.0)
        hits.append((request, number, time_s + delay))
    hits.sort(key=lambda hit: hit[2])
    cuts = draw(st.lists(st.integers(1, max(1, count)), max_size=3)), draw(st.lists(st.integers(0, 16), max_size=3))
    return rows, hits, cuts


def cut(rows, at):
    edges = [0, *sorted(set(at) & set(range(1, len(rows)))), len(rows)]
    return [rows[a:b] for a, b in zip(edges, edges[1:]) if a < b]


def laid(folder, rows, hits, cuts):
    place = Place(folder)
    for n, part in enumerate(cut(rows, cuts[0])):
        put(place.recordings, recorded_as(n + 1, part[0][2]), recording(part))
    for n, part in enumerate(cut(hits, cuts[1])):
        put(place.outcomes, f"{n:03}", outcomes(part))
    return place


def check(place, rows, hits, run):
    labels, late, counts = expected(rows, hits)
    names = ("request", "row", "label", "late")
    emitted = [row for table in place.files() for row in zip(*(table[f"freshet.{name}"].to_pylist() for name in names))]
    assert [row[:3] for row in emitted if not row[3]] == labels
    assert sorted(row[:3] for row in emitted if row[3]) == late
    told = asdict(run.status().counts)
    assert told["late"] == len(late)
    assert told["positives"] == sum(label for _, _, label in labels)
    # An outcome that nobody's row waits for may be a duplicate of another such.
    assert sum(told[name] for name in counts) == sum(counts.values())
    assert told["duplicates"] >= counts["duplicates"]


SLOW = settings(
    max_examples=20,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


KILLS = st.lists(st.tuples(st.integers(1, 25), st.booleans()), max_size=4)


@settings(SLOW, max_examples=30)
@given(world=worlds(), kills=KILLS, file_rows=st.sampled_from([1, 3, 100]))
def test_every_row_is_emitted_once_plus_corrections_after_kills(world, kills, file_rows, tmp_path_factory):
    place = laid(tmp_path_factory.mktemp("world"), *world)
    for operations, after in kills:
        run = JoinRun(place.settings(file_rows=file_rows), place.clock)
        with killed_after(operations, after), contextlib.suppress(Killed):
            run.run()
    run = place.join(file_rows=file_rows)
    check(place, *world[:2], run)


@SLOW
@given(world=worlds(), clocks=st.lists(st.integers(0, 2000), max_size=5))
def test_every_row_has_one_label_for_any_schedule(world, clocks, tmp_path_factory):
    """Outcomes come after the rows' windows were judged by the clock: late or in time, each counts once."""
    rows, hits, cuts = world
    place = laid(tmp_path_factory.mktemp("world"), rows, [], ([], []))
    parts = cut(hits, cuts[1])
    for n, now_s in enumerate(sorted(clocks)):
        place.clock.now_s = BEGAN_S + now_s
        place.join()
        if n < len(parts):
            put(place.outcomes, f"{n:03}", outcomes(parts[n]))
    for n in range(len(clocks), len(parts)):
        put(place.outcomes, f"{n:03}", outcomes(parts[n]))
    place.clock.now_s = BEGAN_S + 1e6
    run = place.join()
    found = place.rows()
    base = Counter(row[:2] for row in found if not row[2])
    positives = Counter(row[:2] for row in found if row[2])
    assert max(positives.values(), default=0) <= 1
    assert all(count == 1 for count in base.values())
    assert set(base) | set(positives) == {row[:2] for row in rows}
    counts = asdict(run.status().counts)
    assert counts["rows"] == len(rows)
    assert sum(counts[n] for n in ("positives", "late", "unmatched", "duplicates", "too_late")) == len(hits)


def test_weights_are_finite_and_between_0_and_1(place, monkeypatch):
    monkeypatch.setattr(timed_stream, "CHUNK_ROWS", 100)
    rng = np.random.default_rng(1)
    rows = [(f"r{n}", 0, n / 10, float(p)) for n, p in enumerate(rng.random(1500))]
    hits = [(f"r{n}", 0, n / 10 + rng.exponential(150)) for n, row in enumerate(rows) if rng.random() < row[3]]
    put(place.recordings, recorded_as(1), recording(rows))
    put(place.outcomes, "a", outcomes(sorted(hits, key=lambda hit: hit[2])))
    place.join(window_s=100.0, late_s=800.0, file_rows=200)
    weights = place.weights()
    assert ((weights >= 0) & (weights <= 1)).all()
    assert weights.min() < 0.5


def test_errors_name_the_join_options(place, tmp_path):
    put(place.recordings, recorded_as(1), recording(rows_of(3)))
    put(place.outcomes, "a", outcomes([("r0", 1, 50)]))

    def told(**options):
        with pytest.raises(BadInput) as refused:
            JoinRun(replace(place.settings(), **options), place.clock)
        return str(refused.value)

    assert told(recordings=str(tmp_path / "none")).startswith("--recordings: expected an existing folder")
    assert told(outcomes=str(tmp_path / "none")).startswith("--outcomes: expected an existing folder")
    assert told(outcomes="redis://host").startswith(
        "--outcomes: expected redis[s]://[user:password@]host[:port][/db]/stream"
    )
    assert told(outcomes="kafka://host").startswith("--outcomes: expected kafka://HOST:PORT[,HOST:PORT]/TOPIC, got")
    place.join()
    assert told(outcomes="redis://127.0.0.1:1/clicks") == (
        "--outcomes: expected a folder of Parquet files, which was read so far, got stream clicks of Redis;"
        " a join into another --out starts with another one"
    )
    assert told(out=str(tmp_path / "new"), outcomes="redis://127.0.0.1:1/clicks") == (
        "--outcomes: expected a Redis server, got none: it cannot be reached"
    )


def test_recording_exceeding_the_memory_limit_is_skipped(place):
    """A column that matching does not read: it is met when the rows leave."""
    put(place.recordings, recorded_as(1), recording(rows_of(3), bomb=pa.array(["x" * (FRAME_NBYTES + 1), "", ""])))
    put(place.recordings, recorded_as(2, 3), recording([("s", n, 5, 0.5) for n in range(3)]))
    put(place.outcomes, "a", outcomes([("r0", 0, 50), ("s", 1, 50)]))
    lines = []
    run = JoinRun(place.settings(), place.clock, note=lines.append)
    run.run()
    assert place.rows() == [("s", 0, 0), ("s", 1, 1), ("s", 2, 0)]
    assert (run.status().counts.lost, run.status().files_aside) == (3, 1)
    (line,) = lines
    assert line.startswith(f"1 files were set aside; the last: {recorded_as(1)}.parquet: expected at most")
