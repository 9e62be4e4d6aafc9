"""The report of the training loops, and the list of networks."""

from loadtest.bench.training.loops.__main__ import SIDES, names_of
from loadtest.bench.training.loops.followed import EQUAL, FAILED, REFUSED, WRONG, Loop
from loadtest.bench.training.loops.loops_page import page, passed

ABOUT = {
    "machine": {"cores": 2, "cpu": "a processor"},
    "origin": {"date": "2026-11-28", "command": "make -C loadtest loops"},
}
LOOPS = [
    Loop("torch-mlp", EQUAL, "", "3 tables, 10 dense weights", 50, 50, 6e-8, 12.4),
    Loop("keras-gru", REFUSED, "variable 'x' is trained"),
]


def test_page_has_a_line_for_each_network_and_each_reason():
    text = page(LOOPS, "Title.\n\nHow it was measured.", ABOUT)
    assert "2 networks, 50 requests: 1 equal, 0 wrong, 1 refused, 0 failed." in text
    assert "| torch-mlp | 3 tables, 10 dense weights | 50 | 50 | 6.0e-08 | equal | 12 |" in text
    assert "- keras-gru: refused, variable 'x' is trained" in text


def test_wrong_and_failed_loops_are_misses():
    assert passed(LOOPS)
    assert not passed([*LOOPS, Loop("a", WRONG)])
    assert not passed([*LOOPS, Loop("a", FAILED)])


def test_networks_are_listed_without_their_framework():
    names = {framework: names_of(framework) for framework in SIDES}
    assert len(names["torch"]) >= 12
    assert len(names["keras"]) >= 10
    assert all(len(set(listed)) == len(listed) for listed in names.values())
