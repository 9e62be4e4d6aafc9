"""The comparison with Feast's server over HTTP, without Feast."""

import json

import numpy as np
import pytest

from loadtest.bench import bench_feast_server as bench
from loadtest.bench.bench_features import ITEM_KINDS, USER_KINDS, FeatureValues


def test_both_servers_are_asked_for_the_same_items():
    theirs, ours = map(json.loads, bench.bodies(7, [3, 5]))
    assert theirs["entities"] == {"user_id": [7, 7], "item_id": [3, 5]}
    assert ours == {"inputs": {"user_id": [7], "item_id": [3, 5]}}
    assert len(theirs["features"]) == len(USER_KINDS) + len(ITEM_KINDS) == 36


def test_answers_of_other_features_end_the_comparison():
    values = FeatureValues.draw()
    column = np.asarray(values.item["i0"])[[3, 5]].tolist()
    answer = {"metadata": {"feature_names": ["item_id", "i0"]}, "results": [{"values": [3, 5]}, {"values": column}]}
    bench.check(json.dumps(answer).encode(), values, [3, 5])
    with pytest.raises(SystemExit, match="other features"):
        bench.check(json.dumps(answer).encode(), values, [5, 3])


def test_report_has_both_servers_and_their_ratio():
    figures = [{"items": 100, "Feast": {"p50": 20.0, "p99": 60.0}, "Freshet": {"p50": 2.0, "p99": 3.0}}]
    origin = {"command": "make -C loadtest feast-server", "date": "2026-11-26"}
    machine = {"cores": 2, "cpu": "a CPU", "load_average": 0.1}
    text = bench.page({"machine": machine, "origin": origin, "figures": figures})
    assert "| 100 | Feast | 20.0 | 60.0 |" in text
    assert "| 100 | Freshet | 2.0 | 3.0 | 1/10 | 1/20 |" in text


def test_comparison_is_refused_with_a_reason_without_feast(monkeypatch, capsys):
    monkeypatch.setattr(bench.needs, "program", lambda name: None)
    monkeypatch.setattr(bench, "feast_python", lambda: "")
    monkeypatch.setattr("sys.argv", ["feast-server"])
    with pytest.raises(SystemExit, match="2"):
        bench.main()
    assert "feast[redis]" in capsys.readouterr().err
