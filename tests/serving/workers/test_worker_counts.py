"""Counts of many processes: sums that never go back."""

from dataclasses import asdict

import orjson
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.processor.counter_block import Slot
from freshet_serving.processor.watching.stats import SessionStats
from freshet_serving.serving.telemetry.metrics import BOUNDS_S, Counts
from freshet_serving.serving.workers.counter_layout import COUNTED, CounterWriter
from freshet_serving.serving.workers.worker_counts import Totals, add

READS, CACHE = Slot("toy", "reads"), Slot("toy", "cache", gauge=True)
reports = st.dictionaries(st.sampled_from("abc"), st.lists(st.integers(0, 9), max_size=3), max_size=3)


def flat(value, path=()):
    if isinstance(value, dict):
        return {k: v for key, part in value.items() for k, v in flat(part, (*path, key)).items()}
    if isinstance(value, list):
        return {k: v for key, part in enumerate(value) for k, v in flat(part, (*path, key)).items()}
    return {path: value}


@given(reports, reports)
def test_sum_contains_every_number_of_both_sides(a, b):
    left, right, total = flat(a), flat(b), flat(add(a, b))
    assert total == {key: left.get(key, 0) + right.get(key, 0) for key in left | right}


@given(st.lists(st.tuples(st.sampled_from(["report", "bury"]), st.integers(0, 2), st.integers(0, 5)), max_size=30))
def test_counters_survive_worker_exits_and_gauges_do_not(moves):
    totals, counted, before, memory = Totals(), [0, 0, 0], 0, {}
    for move, slot, more in moves:
        if move == "report":
            counted[slot] += more
            blocks = CounterWriter().write({"7": {READS: counted[slot], CACHE: more}})
            report = {"counters": {"n": counted[slot]}, "gauges": {"queue_rows": more}, COUNTED: blocks}
            totals.reported(slot, report)
            memory[slot] = more
        else:
            totals.on_exit(slot)
            counted[slot] = 0
            memory.pop(slot, None)
            assert slot not in totals.gauges()
        now = totals.counters().get("n", 0)
        assert now >= before
        blocks = totals.counted(COUNTED, "7") or {}
        assert blocks.get(READS, 0) == now
        assert blocks.get(CACHE, 0) == sum(memory.values())
        before = now


def test_counts_survive_a_snapshot_and_add_up():
    parts = [Counts(), Counts()]
    for n, counts in enumerate(parts):
        counts.observe("kserve", 200, 0.003)
        counts.observe("kserve", 429 + n, 100.0)
        counts.predicted("ctr", 64)
    total = Counts.of(add(parts[0].snapshot(), parts[1].snapshot()))
    assert list(total.predictions()) == [("ctr", 2, 128)]
    series = {(protocol, code): (sum(counts), counts[-1], sum_s) for protocol, code, counts, sum_s in total.series()}
    assert series == {("kserve", 200): (2, 0, 0.006), ("kserve", 429): (1, 1, 100.0), ("kserve", 430): (1, 1, 100.0)}
    assert all(len(counts) == len(BOUNDS_S) + 1 for _, _, counts, _ in total.series())
    assert list(Counts.of({}).series()) == []


def test_session_statistics_round_trip_and_add_up():
    stats = [SessionStats(batches=2, wait_s=0.5, buckets={"1": 3, "64": 1}), SessionStats(failed=1, buckets={"64": 2})]
    sent = [orjson.loads(orjson.dumps(asdict(s))) for s in stats]
    assert SessionStats(**add(*sent)) == SessionStats(batches=2, failed=1, wait_s=0.5, buckets={"1": 3, "64": 3})
