"""The report on a store that answers after a second."""

import pytest

from loadtest.bench import bench_slow_store as bench


def test_report_has_each_kind_and_its_aim():
    found = {"p50": 21.0, "p99": 30.04, "most": 41.0}
    figures = [{"layout": "one process", "held": True, "requests": 9, "ids": found, "all sent": found}]
    origin = {"command": "make -C loadtest slow-store", "date": "2026-11-26"}
    machine = {"cores": 2, "cpu": "a CPU", "load_average": 0.1}
    text = bench.page({"machine": machine, "origin": origin, "figures": figures})
    assert "| one process | held for 1 s | ids | 9 | 21.0 | **30.0** | 41.0 | 40 |" in text
    assert "| one process | held for 1 s | all sent | 9 | 21.0 | **30.0** | 41.0 |  |" in text


def test_summary_is_of_all_requests():
    assert bench.summary([1.0] * 99 + [5.0]) == {"p50": 1.0, "p99": pytest.approx(1.04), "most": 5.0}


def test_report_is_refused_with_a_reason_without_redis(monkeypatch, capsys):
    monkeypatch.setattr(bench.needs.shutil, "which", lambda name: None)
    monkeypatch.setattr("sys.argv", ["slow-store"])
    with pytest.raises(SystemExit, match="2"):
        bench.main()
    assert "redis-server is not installed" in capsys.readouterr().err
