"""The requests that `make -C loadtest features` compares, and its page."""

import json

import pytest

pytest.importorskip("redis", reason="the benchmark reads a Redis")
pytest.importorskip("tensorflow", reason="its model is trained")

from loadtest.bench import bench_features as bench

VALUES = bench.FeatureValues.draw()


@pytest.mark.parametrize("binary", [False, True])
def test_both_kinds_of_requests_ask_for_the_same_items(binary):
    ids, whole = (bench.requests(VALUES, 20, sent, binary) for sent in (False, True))
    assert len(ids.bodies) == len(whole.bodies) == bench.BODIES
    assert all(len(short) * 5 < len(long) for short, long in zip(ids.bodies, whole.bodies))
    if not binary:
        for short, long in zip(ids.bodies, whole.bodies):
            few, all_of_them = json.loads(short)["inputs"], json.loads(long)["inputs"]
            assert few == {name: all_of_them[name] for name in ("user_id", "item_id")}
            assert len(all_of_them) == 2 + len(bench.USER_KINDS) + len(bench.ITEM_KINDS)
            assert all_of_them["x0"] == [VALUES.item["x0"][item].item() for item in few["item_id"]]


def test_scores_of_a_reply_are_found():
    assert bench.scores(b'HTTP/1.1 200 OK\r\na: b\r\n\r\n{"outputs": [0.5]}', "json") == b'{"outputs": [0.5]}'
    assert bench.scores(b'HTTP/1.1 200 OK\r\n\r\n{"outputs": [{}]}\x00\x01', "binary") == b"\x00\x01"


def test_page_states_ratios_and_aims():
    figures = {"form": "json", "candidates": 500, "by_key_us": 400.0, "sent_us": 1000.0, "ratio": 0.4, "low": 0.35}
    figures |= {"high": 0.45, "by_key_nbytes": 1000.0, "sent_nbytes": 20_000.0}
    results = {
        "machine": {"cores": 2, "cpu": "a CPU"},
        "origin": {"date": "2026-01-01", "command": "make -C loadtest features"},
        "figures": [figures],
    }
    assert "| json | 500 | 400 | 1000 | **0.40** (0.35 to 0.45) | 1,000 | 20,000 | 1/20 | 0.5, 1/20 |" in bench.page(
        results
    )
