"""Every figure of where a join stands is a family."""

import dataclasses

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from freshet_serving.models.streams.join_metrics import COUNTERS, GAUGES, JoinMetrics
from freshet_serving.models.streams.join_run import JoinStatus
from freshet_serving.models.streams.matching import JoinCounts


def test_scrape_reports_the_join_status():
    status = JoinStatus(JoinCounts(rows=7, late=3), waiting=5, trouble="away", outcomes_s=9.0)
    metrics = JoinMetrics(lambda: "ctr", lambda: status)
    families = text_string_to_metric_families(generate_latest(metrics.registry).decode())
    found = {s.name: s.value for family in families for s in family.samples if s.labels == {"model": "ctr"}}
    assert found["freshet_join_rows_total"] == 7
    assert found["freshet_join_late_total"] == 3
    assert found["freshet_join_waiting_rows"] == 5
    assert found["freshet_join_streams_up"] == 0
    assert found["freshet_join_outcomes_timestamp_seconds"] == 9
    assert len(found) == len(COUNTERS) + len(GAUGES)


def test_each_metric_depends_on_one_field():
    before = JoinStatus()
    counted = [field.name for field in dataclasses.fields(JoinCounts)]
    moves = [dataclasses.replace(before, counts=JoinCounts(**{name: 1})) for name in counted]
    for field in dataclasses.fields(JoinStatus)[1:]:
        moves.append(dataclasses.replace(before, **{field.name: "x" if field.name == "trouble" else 1}))
    for name, _, value in (*COUNTERS, *GAUGES):
        assert sum(repr(value(after)) != repr(value(before)) for after in moves) == 1, name
