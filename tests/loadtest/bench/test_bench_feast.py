"""What Feast wrote and answers, where an environment with Feast is there; the page anywhere."""

import shutil

import pytest

from loadtest.bench.bench_feast import Comparison, compare, feast_python, page
from loadtest.bench.store_outages import Outage, redis_server
from loadtest.reports.report import machine

WHY = "needs redis-server, and feast[redis]==0.67.0 in build/feast-venv (`make -C loadtest feast` makes it)"
needs_feast = pytest.mark.skipif(not feast_python() or shutil.which("redis-server") is None, reason=WHY)


@needs_feast
def test_values_written_by_feast_are_read_to_the_bit(tmp_path):
    with redis_server() as port:
        found = compare(feast_python(), port, tmp_path)
    assert found.different == []
    assert len(found.types) == 35
    assert set(found.statuses) == {
        ("PRESENT", "PRESENT"),
        ("PRESENT", "EXPIRED"),
        ("PRESENT", "DAMAGED"),
        ("PRESENT, null", "NULL"),
        ("PRESENT, null", "NOT_FOUND"),
    }


def test_the_page_tells_what_differs():
    found = Comparison(2, {"int64"}, ["one user: profile:age, row 0: NULL"], {("PRESENT", "NULL"): 2}, {"one user": 2})
    about = {"machine": machine(), "origin": {"date": "2026-11-26", "command": "make -C loadtest feast"}}
    text = page(found, {"Feast": [0.001, 0.002]}, [Outage("stopped", [1.0, 30.0], {"late": 60}, {})], about)
    assert "2 values of 1 types compared with feast 0.67.0; 1 differ." in text
    assert "- one user: profile:age, row 0: NULL" in text
    assert "| Feast | 1.50 | 1.99 |" in text
    assert "| stopped | 15.50 | 29.71 | 30.00 | 1 | 60 late | none |" in text
