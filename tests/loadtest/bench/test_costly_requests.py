"""Requests at the limit: how long their lists may be, what they weigh, and the page of the trial."""

import gzip
import json

import pytest

pytest.importorskip("onnx", reason="importing needs the onnx extra")

import onnx

from freshet_serving.processor.features.limits import DEFAULTS
from freshet_serving.processor.package import GrowthTerm, StageGrowth
from loadtest.bench import costly_requests


@pytest.mark.parametrize("rows", costly_requests.SHAPES)
def test_longest_list_is_the_last_within_the_limit(rows):
    growth = StageGrowth([GrowthTerm(1, 2, 10.0)])
    length = costly_requests.longest(growth, rows)
    assert growth.cells(rows, length) <= DEFAULTS.max_cells < growth.cells(rows, length + 1)


def test_list_is_sent_once_for_all_candidates():
    inputs = json.loads(gzip.decompress(costly_requests.body(3, 5)))["inputs"]
    (past,) = inputs.pop("past")
    assert (len(past), set(past) <= {7, 8}, inputs) == (5, True, {"item": [[0], [1], [2]]})


@pytest.mark.parametrize("name", costly_requests.GRAPHS)
def test_graphs_are_valid(name, tmp_path):
    onnx.checker.check_model(str(costly_requests.write(tmp_path / "model.onnx", costly_requests.GRAPHS[name])))


def test_page_has_a_row_for_each_request_and_the_refusals():
    one = {
        "layout": "one process", "model": "attention", "rows": 256, "length": 900, "bytes": 414, "status": 200,
        "mb": 61.2, "seconds": 0.41, "late_status": 504, "late_s": 0.2, "beyond_status": 413, "alone_p99_ms": 2.0,
        "beside_p99_ms": 5.0, "failed": 0,
    }  # fmt: skip
    machine = {"cores": 2, "cpu": "a CPU"}
    results = {"machine": machine, "origin": {"date": "a day", "command": "make -C loadtest costly"}, "figures": [one]}
    page = costly_requests.page(results | {"refused": {"loop": "it doubles"}})
    assert "| attention, one process | 256 | 900 | 414 | 200 | 61 | 0.41 | 504 0.20 | 413 | 2.5 | 0 |" in page
    assert "- loop: it doubles" in page
