import json
import os

import numpy as np

from loadtest.bench.stamped_server import REQUEST, STAMP, TICK, rows
from loadtest.bench.tail_disturbances import DISTURBANCES, NULL, OURS
from loadtest.bench.tail_parts import PARTS
from loadtest.bench.tails import ACCOUNTS, client_and_server_cores, p99_ratio, page, pinned


def turn(p99):
    shares = dict.fromkeys(PARTS, 1 / len(PARTS))
    tails = {"tail_ms": p99, "tail": shares, "own_tail_ms": p99, "own_tail": shares}
    return {"p50_ms": 0.5, "p99_ms": p99, "own_p99_ms": p99} | tails | {key: 1.0 for key, _, _ in ACCOUNTS.values()}


def turns(own, null):
    return {
        f"{side}, {name}": [turn(1.0 if number == 0 else ratio)]
        for number, name in enumerate(DISTURBANCES)
        for side, ratio in ((OURS, own), (NULL, null))
    }


def run(own, null):
    return {
        "machine": {"cores": 2, "cpu": "a CPU", "load_average": 0.1},
        "origin": {"date": "2026-11-30", "command": "make -C loadtest tails"},
        "rounds": 2,
        "seconds": 6.0,
        "layouts": {"one process": {"rate": 900.0, "turns": turns(own, null)}},
    }


def test_page_has_a_chapter_for_each_run_that_is_kept():
    document = {"runs": {"before": run(6.0, 2.0), "after": run(2.4, 2.0)}}
    shown = page(json.loads(json.dumps(document)))
    before, after = shown.split("## After")
    assert "## Before" in before
    assert "**3.00**" in before
    assert "**1.20**" in after
    assert shown.count("# What a p99 request waits for") == 1


def test_ratio_is_within_a_round():
    both = {f"{OURS}, none": [turn(1.0), turn(2.0)], f"{OURS}, two versions": [turn(3.0), turn(6.0)]}
    assert p99_ratio(both, OURS, "two versions") == 3.0


def test_client_has_a_core_of_its_own_where_there_are_two():
    before = os.sched_getaffinity(0)
    client, server = client_and_server_cores()
    assert len(client) == 1
    assert (client | server) == before
    with pinned(client):
        assert os.sched_getaffinity(0) == client
    assert os.sched_getaffinity(0) == before


def test_rows_end_where_nothing_is_written_yet(tmp_path):
    table = np.zeros(100, STAMP)
    table["kind"][:3], table["written_ns"][:3] = (REQUEST, TICK, REQUEST), (5, 6, 0)
    table.tofile(tmp_path / "1.stamps")
    assert rows(tmp_path)["kind"].tolist() == [REQUEST, TICK]
    assert len(rows(tmp_path / "nothing")) == 0
