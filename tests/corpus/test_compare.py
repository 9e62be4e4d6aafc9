"""Two reports of scores side by side: equal to the bit, or said to be not."""

import numpy as np
import pytest

from tests.corpus.compare import compared, table


def report(*values, key="published/opened/rows/score", dtype="<f4", computes="onnxruntime float32"):
    array = np.array(values, dtype)
    bits = {"shape": list(array.shape), "dtype": dtype, "bytes": array.tobytes().hex()}
    return {"computes": [computes], "scores": {key: bits}}


def test_equal_bytes_compare_equal():
    one = compared("int8", report(0.1, 0.2), report(0.1, 0.2))

    assert (one.why, one.scores, one.worst) == ("", 1, 0.0)


def test_single_flipped_bit_is_found():
    score = np.float32(0.1)

    one = compared("int8", report(score, 0.2), report(np.nextafter(score, np.float32(1)), 0.2))

    assert one.why == "1 differ, first 'published/opened/rows/score'"
    assert 0 < one.worst < 1e-7


def test_zero_and_negative_zero_differ():
    one = compared("int8", report(0.0), report(-0.0))

    assert one.why.startswith("1 differ")
    assert one.worst == 0.0


@pytest.mark.parametrize(
    ("after", "why"),
    [
        (report(0.1, key="published/opened/rows/other"), "2 differ"),
        (report(0.1, 0.2), "1 differ"),
        (report(0.1, dtype="<f8"), "1 differ"),
        (report(0.1, computes="xla float32"), "computed by"),
        ({"lacking": ["tensorflow"]}, "head lacks tensorflow"),
        (None, "not scored by head"),
    ],
)
def test_incomparable_reports_are_unequal(after, why):
    assert compared("int8", report(0.1), after).why.startswith(why)


def test_empty_reports_are_unequal():
    nothing = {"computes": [], "scores": {}}

    assert compared("int8", nothing, nothing).why == "nothing was scored"


def test_table_names_differing_environments():
    found = [compared("int8", report(0.1), report(0.1)), compared("xla", report(0.1), None)]

    text = table(found, {"numpy": "2.4.1"}, {"numpy": "2.4.2"}, "HEAD~1", "HEAD")

    assert "HEAD~1 and HEAD: 1 of 2 entries equal, 1 scores" in text
    assert text.endswith("the environments differ, which alone may change bits: numpy 2.4.1 and 2.4.2")
