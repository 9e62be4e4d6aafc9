"""The streams and the page of `make -C loadtest bench-state`."""

from dataclasses import asdict

import pytest

pytest.importorskip("tensorflow", reason="its models are published")

from loadtest.bench import bench_state as bench

pytestmark = pytest.mark.tensorflow


def users_of(deltas, count):
    """The history of each request's user, as text."""
    stream = bench.Stream("hstu", 4, deltas)
    requests = [stream.next() for _ in range(count)]
    assert all(len(request.inputs["item"]) == bench.CANDIDATES for request in requests)
    return [str(request.inputs["history.item"].values.tolist()) for request in requests]


def test_without_deltas_most_users_came_before_and_some_more_often():
    users = users_of(bench.NONE, 2000)
    new = len(set(users))
    assert 60 < new < 180
    assert max(users.count(user) for user in set(users)) > 100


def test_with_deltas_each_user_comes_back_after_the_same_time():
    turn = bench.BACK_S * bench.REQUESTS
    users = users_of(bench.DENSE_EVERY, 3 * turn)
    assert len(set(users)) == turn
    assert users[turn : 2 * turn] == users[2 * turn :]


def test_page_shows_what_was_measured():
    figures = [
        bench.StateFigures("hstu", 1024, "none", 24_000.0, 4_000.0, [5.5, 6.0], 0.95, 0.0),
        bench.StateFigures("stca", 1024, "default", 3_500.0, 3_535.0, [0.98, 0.99], 0.0, 0.97),
    ]
    results = {
        "machine": {"cores": 2, "cpu": "a CPU"},
        "origin": {"date": "2026-01-01", "command": "make -C loadtest bench-state"},
        "figures": [asdict(f) for f in figures],
    }
    page = bench.page(results)
    assert "| hstu | 1,024 | none | 95% | 0% | 24,000 | 4,000 | **6.00** (5.50) | 2.5 |" in page
    assert "| stca | 1,024 | default | 0% | 97% | 3,500 | 3,535 | **0.99** (0.98) | 0.97 |" in page
