"""The view of a run on a terminal: what it says of where the run stands."""

import io

from rich.console import Console

from freshet_serving.models.runs.live_view import LiveView, lines, live_view
from freshet_serving.models.runs.train_metrics import RunStatus
from freshet_serving.processor.clock import FakeClock

NOW_S = 1_700_000_000.0


def told(status, rows_per_s=0.0):
    return dict(lines(status, rows_per_s, NOW_S))


def test_healthy_run_shows_progress_speed_freshness_and_quality():
    status = RunStatus(
        position=12_345,
        version=2,
        step=30,
        deltas=30,
        event_time=NOW_S - 3,
        published_at=NOW_S - 250,
        window_auc=0.81234,
        window_calibration=1.02,
        table_rows={"user": 1_000},
    )
    assert told(status, 4000.0) == {
        "rows": "12,345, 4,000 a second, caught up",
        "newest event": "3.0 s ago",
        "newest delta": "2.30, 0 h 4 min ago, 30 so far",
        "newest window": "AUC 0.8123, mean score 1.020 of the labels' mean",
        "tables": "user 1,000",
    }


def test_problems_are_shown_when_there_are_any():
    status = RunStatus(waiting_rows=7, rejected_rows=3, lost_rows=2, held="AUC 0.5", trouble="Redis: away")
    found = told(status)
    assert found["rows"].endswith(", 7 waiting")
    assert (found["left out"], found["HELD"], found["stream"]) == ("3 not sound, 2 lost", "AUC 0.5", "Redis: away")


def drawn(view):
    console = Console(file=io.StringIO(), width=100)
    console.print(view)
    return console.file.getvalue()


def test_rate_covers_the_last_seconds():
    clock, rows = FakeClock(), [0]
    view = LiveView(Console(file=io.StringIO()), clock.now_s)
    view.status = lambda: RunStatus(learned_rows=rows[0])
    for _ in range(30):
        clock.advance(1.0)
        rows[0] += 100
        text = drawn(view)
    assert "100 a second" in text
    for _ in range(20):
        clock.advance(1.0)
        text = drawn(view)
    assert "0, 0 a second" in text


def test_view_shows_the_preparation_and_prints_notes_without_a_terminal():
    console = Console(file=io.StringIO())
    with live_view(console) as view:
        view.begin("waiting for rows", 400)
        view.advance(100)
        assert "waiting for rows 100 of 400" in drawn(view)
        view.note("published ctr 1.0 [red]")
    assert console.file.getvalue() == "published ctr 1.0 [red]\n"
