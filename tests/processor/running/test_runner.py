"""The runner: which buckets rows run in, whose rows they are, what is computed once, what is recorded."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.running import runner as module
from freshet_serving.processor.running.cost import CostTable
from freshet_serving.processor.running.run_limit import RunEnds, RunLimit
from freshet_serving.processor.running.runner import EXPLORE_EVERY, Runner
from freshet_serving.processor.watching import SessionStats
from tests.processor.running.graphs import COSTS, Version, crowding


def runner(clock=None, crowded=False, stats=None):
    return Runner(clock or FakeClock(), crowding(crowded), stats or SessionStats())


def scored(version, works, runner_=None, shared=None):
    """Scores of the works, and the batch."""
    rows = sum(work.rows for work in works)
    batch = version.batch(rows, shared)
    (runner_ or runner()).score(batch, works, rows)
    return batch.results["score"][:, 0], batch


def expected(works_values):
    return np.concatenate([10 * np.broadcast_to(a, np.shape(b)) + np.float32(b) for a, b in works_values])


@pytest.mark.parametrize("user", [False, True], ids=["undivided", "divided"])
@settings(max_examples=60, deadline=None)
@given(
    requests=st.lists(
        st.tuples(st.integers(-9, 9), st.lists(st.integers(-50, 50), min_size=1, max_size=20)), min_size=1, max_size=8
    ),
    worth=st.integers(1, 20),
)
def test_requests_get_scores_of_their_own_user_in_order(user, requests, worth):
    version = Version(user)
    version.graphs.pays = lambda parts, rows: user and rows >= worth
    works = [version.request(a, b) for a, b in requests]
    got, batch = scored(version, works)
    np.testing.assert_array_equal(got, expected(requests))
    split = sum(len(b) >= worth for _, b in requests) if user else 0
    assert ("user" in [name for name, _ in version.log]) == bool(split)
    assert batch.padded == sum(b for name, b in version.log if name != "user") - len(got)


def test_rows_run_in_the_cheapest_buckets_largest_first():
    version = Version(user=False)
    works = [version.request(1, range(15)), version.request(2, [3, 4])]
    scored(version, works)
    assert version.log == [("score", 16), ("score", 1)]


def test_run_that_may_be_ended_reads_no_rows_of_an_earlier_batch():
    version, one = Version(), runner()
    for rows, divided in ((4, True), (3, True), (4, False), (3, False)):
        version.graphs.pays = lambda parts, rows, divided=divided: divided
        work = version.request(7, [50] * rows)
        batch = version.batch(rows)
        batch.limit = RunLimit(RunEnds(FakeClock()))
        one.score(batch, [work], rows)
    inputs = {name: version.buffers.inputs(name, 0, 4)["x"] for name in ("whole", "score")}
    assert inputs["whole"][:, 1].tolist() == [50, 50, 50, 0]
    assert inputs["score"][:, 0].tolist() == [50, 50, 50, 0]


def test_rows_of_a_chunk_begin_where_it_says():
    version = Version(user=False)
    work = version.request(1, range(20), first=7, rows=5)
    got, _ = scored(version, [work])
    np.testing.assert_array_equal(got, [17, 18, 19, 20, 21])


@pytest.mark.parametrize("chunk", [False, True])
def test_user_inputs_with_a_row_per_candidate_run_whole(chunk):
    version = Version()
    version.graphs.pays = lambda parts, rows: True
    got, _ = scored(version, [version.request([1, 2, 3], [0, 0, 1])], shared=Shared(version) if chunk else None)
    np.testing.assert_array_equal(got, [10, 20, 31])
    assert {name for name, _ in version.log} == {"whole"}


def test_users_of_several_requests_are_computed_in_one_run():
    version = Version()
    version.graphs.pays = lambda parts, rows: True
    stats = SessionStats()
    one = runner(stats=stats)
    requests = [(n, [n, n + 1]) for n in range(5)]
    got, _ = scored(version, [version.request(a, b) for a, b in requests], one)
    np.testing.assert_array_equal(got, expected(requests))
    assert [bucket for name, bucket in version.log if name == "user"] == [2, 2, 1]
    assert stats.user_once == 5
    assert stats.rows == 0, "rows of requests are counted by whoever answers them"


def test_candidates_beyond_the_largest_bucket_read_the_same_users_tensors():
    version = Version()
    version.graphs.pays = lambda parts, rows: True
    got, _ = scored(version, [version.request(3, range(20))])
    np.testing.assert_array_equal(got, 30 + np.arange(20))
    assert version.log == [("user", 1), ("score", 8), ("score", 8), ("score", 4)]


class Shared:
    """What the chunks of a split request of 12 rows share."""

    def __init__(self, version, divisible=True):
        self.user_tensors, self.divisible, self.rows, self.filled = None, divisible, 12, 0
        self._fill = version.plan.fill

    def fill(self, *given):
        self.filled += 1
        self._fill(*given)


def test_chunks_of_a_request_compute_the_users_tensors_once():
    version, one = Version(), runner()
    version.graphs.pays = lambda parts, rows: rows == 12
    shared, whole = Shared(version), version.request(4, range(12))
    for first in (0, 5):
        work = version.request(4, range(12), first=first, rows=5)
        got, _ = scored(version, [work], one, shared)
        np.testing.assert_array_equal(got, 40 + np.arange(first, first + 5))
    assert [name for name, _ in version.log].count("user") == 1
    np.testing.assert_array_equal(shared.user_tensors["u0"], [[40]])
    assert shared.filled == 0
    assert whole.rows == 12


@pytest.mark.parametrize(("divisible", "worth"), [(False, True), (True, False)])
def test_undivided_chunks_are_filled_by_their_shared_parts(divisible, worth):
    version = Version()
    version.graphs.pays = lambda parts, rows: worth
    shared = Shared(version, divisible)
    got, _ = scored(version, [version.request(4, range(5))], shared=shared)
    np.testing.assert_array_equal(got, 40 + np.arange(5))
    assert {name for name, _ in version.log} == {"whole"}
    assert shared.filled == len(version.log)
    assert shared.user_tensors is None


def test_a_bucket_out_of_favour_is_tried_now_and_then():
    version, stats = Version(user=False), SessionStats()
    one = runner(stats=stats)
    version.graphs.undivided.costs = CostTable({1: 1.0, 4: 2.0, 16: 60.0})
    tried = []
    for stats.batches in range(2 * EXPLORE_EVERY):
        version.log.clear()
        scored(version, [version.request(1, range(5))], one)
        if version.log == [("score", 16)]:
            tried.append(stats.batches)
    assert tried == [EXPLORE_EVERY - 1, 2 * EXPLORE_EVERY - 1]


def slow(version, clock, seconds, core_s=0.0):
    """Makes every run take so long, and that much of its core."""
    had = [0.0]
    clock.core_s = lambda: had[0]
    for part in version.executables.values():
        for executable in part.values():
            bind = executable.bind_buffers

            def bound(inputs, outputs, bind=bind):
                run = bind(inputs, outputs)

                def waiting():
                    run()
                    clock.advance(seconds)
                    had[0] += core_s

                return waiting

            executable.bind_buffers = bound


@pytest.mark.parametrize("in_thread", [False, True])
def test_in_thread_runs_are_timed_by_their_core(in_thread):
    version, clock = Version(user=False), FakeClock()
    version.graphs.in_thread = in_thread
    slow(version, clock, 0.5, 0.1)
    version.graphs.undivided.costs = CostTable({16: 0.3})
    one = runner(clock)
    for _ in range(200):
        scored(version, [version.request(1, range(9))], one)
    assert version.graphs.undivided.costs.cost[16] == pytest.approx(0.1 if in_thread else 0.5, rel=0.05)


def test_slow_run_beside_others_is_not_learned_from():
    version, clock = Version(user=False), FakeClock()
    slow(version, clock, 0.5)
    version.graphs.undivided.costs = CostTable({16: 0.3})
    one = runner(clock, crowded=True)
    for _ in range(50):
        scored(version, [version.request(1, range(9))], one)
    assert version.graphs.undivided.costs.cost[16] == 0.3


@pytest.mark.parametrize("way", [False, True])
def test_seconds_of_filling_and_running_are_told_apart(way):
    version, clock = Version(), FakeClock()
    version.graphs.pays = lambda parts, rows: way
    slow(version, clock, 0.5)
    for run in version.graphs.by_name.values():
        fill = run.fill
        run.fill = lambda *given, fill=fill: (fill(*given), clock.advance(0.25))
    filled = []
    version.graphs.undivided.costs.record_fill = lambda *given: filled.append(given)
    _, batch = scored(version, [version.request(1, range(4))], runner(clock))
    runs = len(version.log)
    assert (batch.sparse_s, batch.dense_s) == (0.25 * runs, 0.5 * runs)
    assert filled == ([] if way else [(1, 4, 0, 0.25)])


def test_progress_is_reported_after_every_run():
    version, beside = Version(), crowding()
    version.graphs.pays = lambda parts, rows: True
    one = Runner(FakeClock(), beside, SessionStats())
    scored(version, [version.request(1, range(20))], one)
    assert beside.beats == len(version.log) == 4


def test_runs_are_counted_by_bucket():
    version, stats = Version(user=False), SessionStats()
    one = runner(stats=stats)
    scored(version, [version.request(1, range(17))], one)
    assert stats.buckets == {"16": 1, "1": 1} or stats.buckets == {16: 1, 1: 1}
    assert stats.padded_rows == 0
    scored(version, [version.request(1, range(3))], one)
    assert stats.padded_rows == 1


def test_filled_rows_run_bucket_by_bucket_from_the_first_on():
    version, stats = Version(user=False), SessionStats()
    one = runner(stats=stats)
    run = version.graphs.undivided
    version.buffers.inputs(run.name, 0, 16)["x"][:] = [[n, 1] for n in range(16)]
    run.costs = CostTable({1: 1.0, 4: 2.0, 16: 60.0})
    batch = version.batch(6)
    one.run_filled(batch, run, 6)
    np.testing.assert_array_equal(batch.results["score"][:, 0], 10 * np.arange(6) + 1)
    assert version.log == [("score", 4), ("score", 1), ("score", 1)]
    assert batch.padded == 0


@pytest.mark.parametrize("shared", [None, "first", "later"])
def test_filled_user_is_lent_to_the_candidates_once(shared):
    version, one = Version(), runner()
    version.buffers.inputs("user", 0, 1)["x"][:] = 7
    version.buffers.inputs("score", 0, 8)["x"][:] = np.arange(8)[:, None]
    parts = None if shared is None else SimpleNamespace(user_tensors=None)
    if shared == "later":
        parts.user_tensors = {"u0": np.float32([[50]])}
    batch = version.batch(8)
    computed = one.run_filled_user(batch, version.graphs.user, version.graphs.score, parts)
    one.run_filled(batch, version.graphs.score, 8)
    user = 50 if shared == "later" else 70
    np.testing.assert_array_equal(batch.results["score"][:, 0], user + np.arange(8))
    assert computed == (shared != "later")
    assert version.log == [*([("user", 1)] if computed else []), ("score", 8)]
    if shared == "first":
        np.testing.assert_array_equal(parts.user_tensors["u0"], [[70]])


def test_candidates_of_later_buckets_keep_the_users_tensors():
    version, one = Version(), runner()
    version.buffers.inputs("user", 0, 1)["x"][:] = 1
    version.buffers.inputs("score", 0, 8)["x"][:] = np.arange(8)[:, None]
    version.graphs.score.costs = CostTable({4: 1.0, 8: 90.0})
    batch = version.batch(8)
    one.run_filled_user(batch, version.graphs.user, version.graphs.score, None)
    one.run_filled(batch, version.graphs.score, 8)
    np.testing.assert_array_equal(batch.results["score"][:, 0], 10 + np.arange(8))


def test_span_names_first_row_and_count_of_each_request():
    one, works = runner(), [SimpleNamespace(bound=n, first=10 * n, rows=r) for n, r in enumerate((3, 1, 5))]
    part, spans = one.spans_of(works, 2, 6)
    assert part == [0, 1, 2]
    assert spans.tolist() == [[2, 1], [10, 1], [20, 2]]
    part, spans = one.spans_of(works, 6, 9)
    assert (part, spans.tolist()) == ([2], [[22, 3]])
    part, spans = one.spans_of(works[2:], 1, 4)
    assert (part, spans.tolist()) == ([2], [[21, 3]])
    # More requests than ever before have room.
    part, spans = one.spans_of(works[:1] * 40, 0, 120)
    assert (part, spans.tolist()) == ([0] * 40, [[0, 3]] * 40)


def test_one_row_of_the_users_tensors_is_shared():
    version, one = Version(), runner()
    version.graphs.pays = lambda parts, rows: True
    version.graphs.user.costs = CostTable({2: 0.1})
    shared = Shared(version)
    scored(version, [version.request(4, range(5))], one, shared)
    assert shared.user_tensors["u0"].shape == (1, 1)


def test_filled_runs_are_learned_from():
    version, clock = Version(user=False), FakeClock()
    slow(version, clock, 0.5)
    run = version.graphs.undivided
    run.costs = CostTable({16: 0.3})
    for _ in range(200):
        runner(clock).run_filled(version.batch(9), run, 9)
    assert run.costs.cost[16] == pytest.approx(0.5, rel=0.05)


def test_users_are_filled_by_spans_of_their_first_row():
    version, seen = Version(), []
    version.graphs.pays = lambda parts, rows: True
    fill = version.graphs.user.fill
    version.graphs.user.fill = lambda view, inputs: (seen.append(view.spans.copy()), fill(view, inputs))
    scored(version, [version.request(n, [1, 2]) for n in range(2)])
    assert [spans.tolist() for spans in seen] == [[[0, 1], [0, 1]]]


def test_rows_that_one_bucket_covers_are_not_explored():
    version, stats = Version(user=False), SessionStats()
    one = runner(stats=stats)
    version.graphs.undivided.costs = CostTable({4: 50.0, 16: 3.0})
    for stats.batches in range(EXPLORE_EVERY):
        scored(version, [version.request(1, range(3))], one)
    assert {bucket for _, bucket in version.log} == {16}


@pytest.mark.parametrize("before", [True, False])
def test_crowding_before_or_after_a_run_spoils_its_time(before):
    version, clock = Version(user=False), FakeClock()
    slow(version, clock, 0.5)
    version.graphs.undivided.costs = CostTable({16: 0.3})
    beside = type("Beside", (), {"looks": 0, "beat": lambda self: None})()
    type(beside).crowded = property(lambda self: (setattr(self, "looks", self.looks + 1), self.looks % 2 == before)[1])
    one = Runner(clock, beside, SessionStats())
    for _ in range(20):
        beside.looks = 0
        scored(version, [version.request(1, range(9))], one)
    assert version.graphs.undivided.costs.cost[16] == 0.3


class Users:
    """Keeps the user of each request by its number, in place of the extension."""

    def __init__(self, *unnamed):
        self.kept, self.unnamed, self.asked = {}, unnamed, []

    def look(self, tables, epoch, subgraph, bound):
        user = float(bound.keep[0].values[0])
        self.asked.append((subgraph.name, user))
        if user in self.unnamed:
            return None

        def keep(computed, request):
            self.kept[user] = {"u0": computed["u0"][request : request + 1].copy()}

        return SimpleNamespace(tensors=self.kept.get(user), keep=keep)


def kept_score(version, works, users, shared=None):
    rows = sum(work.rows for work in works)
    batch = version.batch(rows, shared)
    batch.users = users
    version.log.clear()
    runner().score(batch, works, rows)
    return batch.results["score"][:, 0], [bucket for name, bucket in version.log if name == "user"]


def test_users_that_are_kept_are_not_computed_again():
    version, users = Version(), Users(4.0)
    version.graphs.pays = lambda parts, rows: rows > 1
    requests = [(n, [n, n + 1]) for n in (1, 2)]
    works = [version.request(a, b) for a, b in requests]
    assert kept_score(version, works, users)[1] == [2]
    requests = [(n, [n, n + 1]) for n in (3, 1, 4, 2, 5)] + [(1, [7])]
    works = [version.request(a, b) for a, b in requests]
    got, runs = kept_score(version, works, users)
    np.testing.assert_array_equal(got, expected(requests))
    assert runs == [2, 1]
    assert sorted(users.kept) == [1, 2, 3, 5]
    # What is not divided is not asked for.
    assert ("user", 1.0) in users.asked
    assert len(users.asked) == 7
    got, runs = kept_score(version, works, users)
    np.testing.assert_array_equal(got, expected(requests))
    assert runs == [1]


def test_chunks_of_a_kept_user_compute_it_in_no_run():
    version, users = Version(), Users()
    version.graphs.pays = lambda parts, rows: rows == 12
    for runs in ([1], []):
        shared = Shared(version)
        for first in (0, 5):
            work = version.request(4, range(12), first=first, rows=5)
            got, ran = kept_score(version, [work], users, shared)
            np.testing.assert_array_equal(got, 40 + np.arange(first, first + 5))
            assert ran == (runs if first == 0 else [])
    assert len(users.asked) == 2


class Timed(list):
    """A log of runs, each of which takes what `costs` says of its subgraph and bucket."""

    def __init__(self, clock, costs):
        super().__init__()
        self.clock, self.costs = clock, costs

    def append(self, run):
        self.clock.advance(self.costs[run[0]][run[1]])
        super().append(run)


CLOSE = {"whole": {1: 1.0, 4: 2.0, 16: 5.0}, "user": {1: 1.0, 2: 1.2}, "score": {4: 2.0, 8: 3.0}}


@pytest.mark.parametrize("kept", [False, True])
def test_requests_change_over_where_runs_contradict_the_load(monkeypatch, kept):
    monkeypatch.setattr(module, "EXPLORE_SPLIT_EVERY", 8)
    monkeypatch.setattr(module, "EXPLORE_SPLIT_AT", (4, 5))
    clock, stats = FakeClock(), SessionStats()
    version, one = Version(costs=CLOSE), Runner(clock, crowding(), stats)
    log = Timed(clock, CLOSE | {"user": {1: 0.2, 2: 0.3}, "score": {4: 0.5, 8: 1.0}})
    for part in version.executables.values():
        for executable in part.values():
            executable.log = log
    ways = []
    for _ in range(400):
        log.clear()
        batch = version.batch(8)
        batch.users = Users() if kept else None
        one.score(batch, [version.request(2, range(8))], 8)
        np.testing.assert_array_equal(batch.results["score"][:, 0], 20 + np.arange(8))
        ways.append(log[0][0])
        stats.batches += 1
    explored = [] if kept else ["user", "user"]
    assert ways[:8] == ["whole"] * 4 + (explored or ["whole"] * 2) + ["whole"] * 2
    assert set(ways[-2:]) == {"whole" if kept else "user"}
    log.clear()
    one.score(version.batch(8, Shared(version)), [version.request(2, range(8))], 8)
    assert log[0][0] == "whole", "chunks go on as at load"
    # Of 9 rows the load says that dividing costs twice as much; of 16, another size, nothing has been seen.
    assert version.graphs.thresholds == ([] if kept else [8, 9, 10, 16])


def test_clear_choices_are_neither_explored_nor_timed(monkeypatch):
    monkeypatch.setattr(module, "EXPLORE_SPLIT_AT", range(module.EXPLORE_SPLIT_EVERY))
    version = Version(costs=COSTS | {"whole": {1: 9.0, 4: 9.0, 16: 160.0}})
    monkeypatch.setattr(version.graphs.split, "record", None)
    assert not version.graphs.split.reviewed
    scored(version, [version.request(1, range(16)), version.request(1, range(2))])
