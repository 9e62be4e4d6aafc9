"""What the guard holds of good streams and of faults: the campaign, small."""

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="training needs the train extra")

from loadtest.bench.bench_guard import FAULTS, LEARNED, ShuffledLabels, measure, page
from models.data.synthetic import SyntheticSource
from processor.watching.delta_guard import OFF, ON

pytestmark = pytest.mark.tensorflow


def test_labels_are_shuffled_from_a_row_on_within_their_batch():
    source = SyntheticSource(drift_rows=600_000)
    plain = list(_few(source.batches(100), 4))
    shuffled = list(_few(ShuffledLabels(source, 200).batches(100), 4))
    for number, (one, other) in enumerate(zip(plain, shuffled)):
        assert np.array_equal(one.label, other.label) == (number < 2)
        assert one.label.sum() == other.label.sum()


def _few(batches, count):
    for _, batch in zip(range(count), batches):
        yield batch


def test_the_page_tells_of_every_fault():
    found = {
        "deltas": 1000,
        "held": [],
        "faults": {name: {"bias": 40, "served": 1} for name in FAULTS},
        "shuffled": {"at": 0, "deltas": 40, "reason": ""},
        "preview_ms": 2.5,
    }
    cost = {
        "delta_ms": {ON: [12.0, 14.0], OFF: [10.0, 10.0]},
        "delta_cpu_ms": {ON: [8.0, 8.0], OFF: [4.0, 4.0]},
        "request_cpu_us": {"looked at": [20.0], "not": [19.0]},
        "preview_ms": 2.0,
    }
    machine = {"cores": 2, "cpu": "x"}
    origin = {"date": "2026-01-01", "command": "make bench-guard"}
    text = page({"machine": machine, "origin": origin, "streams": {"s": found}, "costs": cost})
    assert "| s | 1,000 | 0 | 2.5 ms |" in text
    assert "| s | scores times 1.1 | 40 of 41 | bias 40 |" in text
    assert "| s | labels shuffled | not within 40 deltas |" in text
    assert "| its processor time, ms | 8.00 | 4.00 | 2.00 (2.00 to 2.00) |" in text


@pytest.mark.long
def test_no_good_delta_is_held_and_every_fault_is(tmp_path):
    found = measure("", tmp_path, 100_000, 1000, LEARNED + 21, lambda line: None)
    assert (found["deltas"], found["held"]) == (LEARNED + 21, [])
    for name in FAULTS:
        assert "served" not in found["faults"][name], found["faults"]
