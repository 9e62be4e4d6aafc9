"""Triton's statistics: they move with every request, and add up over processes."""

from freshet_serving.processor.sessions.request import Timing
from freshet_serving.processor.watching.stats import GroupStats, SessionStats
from freshet_serving.serving.telemetry.triton_statistics import AnswerCounts, document
from freshet_serving.serving.workers.worker_counts import add

GROUP = GroupStats(1, 0, SessionStats(batches=2, requests=3))
# Of 10 s: 2 s sparse, 5 s dense, 3 s for what is left.
BATCH = Timing(100.0, 110.0, 2.0, 5.0, 2, 48)


def counts(at_s, *timings):
    made = AnswerCounts(lambda: at_s)
    for timing in timings:
        made.succeeded("ctr", 3, 24, 0.5, timing)
    return made.snapshot()


def test_statistics_contain_phases_last_inference_and_batches():
    entry = document("ctr", 3, counts(7.5, BATCH, BATCH, None), GROUP)
    assert entry["last_inference"] == 7500
    assert entry["inference_stats"]["compute_input"] == {"count": 3, "ns": 4_000_000_000}
    assert entry["inference_stats"]["compute_infer"] == {"count": 3, "ns": 10_000_000_000}
    assert entry["inference_stats"]["compute_output"] == {"count": 3, "ns": 6_000_000_000}
    assert entry["batch_stats"] == [
        {
            "batch_size": 64,
            "compute_input": {"count": 1, "ns": 2_000_000_000},
            "compute_infer": {"count": 1, "ns": 5_000_000_000},
            "compute_output": {"count": 1, "ns": 3_000_000_000},
        }
    ]


def test_snapshots_of_processes_add_up_with_the_newest_inference():
    whole = add(counts(7.5, BATCH, BATCH), counts(9.0, BATCH._replace(rows=1, requests=1)))
    entry = document("ctr", 3, whole, GROUP)
    assert entry["last_inference"] == 9000
    assert entry["inference_stats"]["success"]["count"] == 3
    assert [(b["batch_size"], b["compute_infer"]["count"]) for b in entry["batch_stats"]] == [(1, 1), (64, 1)]


def test_unused_model_has_empty_statistics():
    entry = document("ctr", 3, {}, GROUP)
    assert (entry["last_inference"], entry["batch_stats"], entry["inference_count"]) == (0, [], 0)
