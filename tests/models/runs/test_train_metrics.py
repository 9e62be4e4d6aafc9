"""A run's metrics: every figure of where it stands is a family, asked anew by each scrape."""

import dataclasses
import urllib.request

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from freshet_serving.models.runs.train_metrics import COUNTERS, GAUGES, RunStatus, TrainMetrics, serve_metrics
from freshet_serving.processor.errors import BadInput
from tests.e2e.servers import free_port


def families(metrics):
    found = text_string_to_metric_families(generate_latest(metrics.registry).decode())
    return {
        sample.name + "".join(f" {value}" for key, value in sample.labels.items() if key != "model"): sample.value
        for family in found
        for sample in family.samples
    }


def test_scrape_reports_the_run_status():
    status = RunStatus(
        learned_rows=10,
        position=30,
        waiting_rows=4,
        lost_rows=2,
        rejected_rows=1,
        trouble="away",
        version=3,
        step=7,
        deltas=5,
        versions=2,
        held_windows=1,
        held="AUC",
        window_auc=0.75,
        stale_tables=2,
        table_rows={"user": 9},
    )
    found = families(TrainMetrics("ctr", lambda: status))
    assert found["freshet_train_rows_total"] == 10
    assert found["freshet_train_position"] == 30
    assert found["freshet_train_waiting_rows"] == 4
    assert found["freshet_train_lost_rows_total"] == 2
    assert found["freshet_train_rejected_rows_total"] == 1
    assert (found["freshet_train_stream_up"], found["freshet_train_held"]) == (0, 1)
    assert (found["freshet_train_version"], found["freshet_train_step"]) == (3, 7)
    assert (found["freshet_train_window_auc"], found["freshet_train_stale_tables"]) == (0.75, 2)
    assert found["freshet_train_table_rows user"] == 9


def test_each_metric_depends_on_one_field():
    before = RunStatus()
    for name, _, value in (*COUNTERS, *GAUGES):
        moved = []
        for field in dataclasses.fields(RunStatus):
            other = dataclasses.replace(before, **{field.name: "x" if field.type == "str" else 1})
            moved.append(repr(value(other)) != repr(value(before)))
        assert sum(moved) == 1, name


def test_scrape_is_current_and_a_busy_port_gives_one_line():
    status = [RunStatus(learned_rows=1)]
    port = free_port()
    server, thread = serve_metrics(TrainMetrics("ctr", lambda: status[0]), "127.0.0.1", port)
    try:
        for rows in (1, 2):
            status[0] = RunStatus(learned_rows=rows)
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as reply:
                assert f'freshet_train_rows_total{{model="ctr"}} {rows}.0' in reply.read().decode()
        with pytest.raises(BadInput, match=rf"--metrics-port: expected a free port of 127.0.0.1, got {port}"):
            serve_metrics(TrainMetrics("ctr", lambda: status[0]), "127.0.0.1", port)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
