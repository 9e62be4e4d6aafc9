"""A lower precision serves while it is within its bound; float32 does otherwise, until weights come that meet it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from freshet_serving.processor.backends.base import Artefact, IoSpec
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.running.bounded import BoundedProgram, ScoreBound, typical_error
from freshet_serving.processor.running.given_rows import outputs_of

SPEC = IoSpec.of_matrix(2, {"score": 1})


class Executable:
    """Scores are the sum of a row, and what it is off by."""

    def __init__(self, bucket, off=0.0):
        self.bucket, self.off, self.runs = bucket, off, 0

    def bind_buffers(self, inputs, outputs):
        x = inputs["x"]

        def run():
            self.runs += 1
            outputs["score"][:, 0] = x.sum(axis=1) + self.off

        return run


class FakeProgram:
    """Off by a weight."""

    def __init__(self, buckets, weight=""):
        self.buckets, self.weight = buckets, weight

    def with_weights(self, weights):
        return {b: Executable(b, float(weights[self.weight]) if self.weight else 0.0) for b in self.buckets}


def make_program(**lower):
    """lower: weight that a program of a lower precision is off by -> its buckets."""
    x = np.linspace(0, 0.5, 14, dtype=np.float32).reshape(7, 2)
    exact = FakeProgram([b for buckets in lower.values() for b in buckets])
    bounds = {
        b: ScoreBound(f"{weight} int8", "exact float32", {"x": x}, 0.01)
        for weight, buckets in lower.items()
        for b in buckets
    }
    programs = [FakeProgram(buckets, weight) for weight, buckets in lower.items()]
    return BoundedProgram("m version 1", programs, [exact], bounds, SPEC)


def test_float32_serves_until_weights_meet_the_error_bound(caplog):
    program = make_program(a=[1, 4], b=[16])
    for a, b in ((0.0, 0.0), (0.5, 0.0), (0.5, 0.5), (0.009, 0.011), (0.001, 0.001)):
        caplog.clear()
        chosen = program.with_weights({"a": a, "b": b})
        assert [chosen[bucket].off for bucket in (1, 4, 16)] == [a if a < 0.01 else 0.0] * 2 + [b if b < 0.01 else 0.0]
        assert program.errors == pytest.approx({"a int8": a, "b int8": b}, abs=1e-6)
        assert set(program.back) == {bucket for bucket, off in ((1, a), (4, a), (16, b)) if off > 0.01}
        assert len(caplog.records) == (a > 0.01) + (b > 0.01)
        assert all("serving float32" in record.message for record in caplog.records)
    program.with_weights({"a": 0.5, "b": 0.0})
    assert program.back == {1: "exact float32: a int8 is off by 0.5", 4: "exact float32: a int8 is off by 0.5"}


def test_non_finite_float32_outputs_exceed_every_error_bound():
    program = make_program(a=[4])
    assert program.with_weights({"a": float("nan")})[4].off == 0
    assert program.errors == {"a int8": float("inf")}


def test_adding_an_artefact_to_a_bounded_program_is_refused():
    with pytest.raises(BadInput):
        make_program(a=[1]).add(Artefact(1, b"", []))


@pytest.mark.parametrize("bucket", [1, 3, 7, 16])
def test_rows_are_computed_bucket_by_bucket_and_none_is_skipped(bucket):
    x = np.arange(14, dtype=np.float32).reshape(7, 2)
    executable = Executable(bucket)
    np.testing.assert_array_equal(outputs_of(executable, {"x": x}, SPEC)["score"][:, 0], x.sum(axis=1))
    assert executable.runs == -(-7 // bucket)


FLOATS = st.floats(width=32) | st.floats(-2, 2, width=32)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 250), st.integers(1, 3))
def test_error_is_the_bound_that_99_percent_of_rows_meet(data, n, columns):
    wanted = data.draw(arrays(np.float32, (n, columns), elements=FLOATS))
    got = wanted.copy()
    off = np.zeros(n)
    for _ in range(data.draw(st.integers(0, 5))):
        row, column = data.draw(st.integers(0, n - 1)), data.draw(st.integers(0, columns - 1))
        got[row, column] = data.draw(FLOATS)
    for i in range(n):
        for j in range(columns):
            a, b = float(got[i, j]), float(wanted[i, j])
            if np.isfinite(a) and np.isfinite(b):
                off[i] = max(off[i], abs(a - b) / max(1.0, abs(b)))
            elif not (a == b or (np.isnan(a) and np.isnan(b))):
                assert typical_error({"y": got}, {"y": wanted}) == float("inf")
                return
    error = typical_error({"y": got}, {"y": wanted})
    assert error == pytest.approx(np.sort(off)[int(np.ceil((n - 1) * 0.99))], rel=1e-5, abs=1e-30)
