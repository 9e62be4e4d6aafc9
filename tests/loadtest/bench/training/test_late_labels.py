"""The figures of `make -C loadtest join`: what lies there to be joined, and how a report tells it."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from loadtest.bench.training import late_labels
from loadtest.bench.training.late_labels import SHAPES, calibrations, joined, lay_out, off, page, passed


def world(rows=600):
    times = pa.array([int((1.7e9 + n) * 1e6) for n in range(rows)], pa.int64()).cast(late_labels.TIMESTAMP)
    clicked = (np.arange(rows) % 5 == 0).astype(np.float32)
    columns = {"freshet.request": [f"r{n}" for n in range(rows)], "freshet.row": pa.array(np.zeros(rows, np.int32))}
    columns |= {"freshet.time": times, "freshet.generation": ["1.0"] * rows, "truth": pa.array(clicked)}
    return pa.table({**columns, "user": pa.array(np.arange(rows))})


def test_clicks_are_written_as_they_arrive(tmp_path, monkeypatch):
    monkeypatch.setattr(late_labels, "WINDOW_ROWS", 100)
    rows = world()
    lay_out(tmp_path, rows, np.full(600, 0.2, np.float32), np.full(600, 10.0))
    run = joined(tmp_path, 0.0, 1.0, 1.7e9 + 5000)
    # Those of the last ten seconds have not come.
    assert sum(pq.read_table(path)["freshet.label"].to_numpy().sum() for path in run["out"].glob("*.parquet")) == 118
    assert [one["ratio"] for one in calibrations(rows, run["out"])][:4] == pytest.approx([1.0] * 4)


def results(auc, ratio):
    windows = [{"since_s": since_s, "ratio": ratio} for since_s in (0.0, 8000.0)]
    joined_as = {"auc": auc, "windows": windows, "rows_per_s": 1.0, "late_share": 0.3}
    shapes = {name: {"late_share": 0.3, "corrected": joined_as, "uncorrected": joined_as} for name in SHAPES}
    seeds = [{"seed": 0, "pace": pace, "auc": 0.75, "shapes": shapes} for pace in late_labels.PACES]
    machine = {"cores": 2, "cpu": "x"}
    return {"seeds": seeds, "machine": machine, "origin": {"date": "today", "command": "make -C loadtest join"}}


def test_goals_are_met_or_missed():
    assert passed(results(0.7485, 1.019))
    assert not passed(results(0.747, 1.0))
    assert not passed(results(0.75, 0.979))


def test_report_has_a_table_for_each_pace():
    told = page(results(0.7485, 1.019))
    assert told.count("## ") == 2
    assert "| 30.0% | 30.0% | 0.7500 | -0.0015 (-0.0015 to -0.0015) |" in told
    assert "+1.9% (0.0%)" in told
    assert off(np.zeros(0)) == "-"
