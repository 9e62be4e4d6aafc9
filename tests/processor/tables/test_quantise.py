"""Row types against what the IEEE formats and numpy say of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.package.tensors import ROW_TYPES
from freshet_serving.processor.tables.quantise import StoredRows, dequantise, quantise

F32 = np.float32
HALVES = np.arange(1 << 16, dtype=np.uint16)


def matrices(largest):
    return npst.arrays(
        F32,
        npst.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=19),
        elements=st.floats(-float(F32(largest)), float(F32(largest)), width=32),
    )


def back(rows, dtype):
    return dequantise(quantise(rows, dtype), dtype)


@given(rows=matrices(float(np.finfo(F32).max)))
def test_float32_is_stored_unchanged(rows):
    assert back(rows, "float32").tobytes() == rows.tobytes()


@given(rows=matrices(65504.0))
def test_float16_rounds_like_numpy(rows):
    assert quantise(rows, "float16").rows.tobytes() == rows.astype(np.float16).tobytes()
    assert back(rows, "float16").tobytes() == rows.astype(np.float16).astype(F32).tobytes()
    assert (np.abs(back(rows, "float16") - rows) <= np.abs(rows) * F32(2**-11) + F32(2**-25)).all()


@given(rows=matrices(3.3e38))
def test_bfloat16_is_the_nearest_upper_half_of_a_float32(rows):
    stored = quantise(rows, "bfloat16").rows
    error = np.abs(back(rows, "bfloat16").astype(np.float64) - rows)
    for step in (-1, 1):
        neighbour = ((stored.astype(np.int64) + step).astype(np.uint32) << 16).view(F32).astype(np.float64)
        farther = np.abs(neighbour - rows)
        tie = farther == error
        assert (~(farther < error) | ~np.isfinite(neighbour)).all()
        assert (stored[tie & (neighbour != back(rows, "bfloat16"))] & 1 == 0).all()
    assert (error <= np.abs(rows.astype(np.float64)) * 2.0**-8 + 2.0**-133).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_finite_half_precision_value_round_trips(dtype):
    stored = HALVES.view(ROW_TYPES[dtype].dtype).reshape(-1, 16)
    values = dequantise(StoredRows(stored, np.empty(0, F32)), dtype)
    finite = np.isfinite(values).all(axis=1)
    assert finite.sum() > 3900
    assert quantise(values[finite], dtype).rows.tobytes() == stored[finite].tobytes()


@given(rows=matrices(1e30))
def test_int8_rounding_error_is_at_most_half_a_step(rows):
    stored = quantise(rows, "int8")
    most = np.abs(rows).max(axis=1)
    np.testing.assert_array_equal(stored.scales, most / F32(127))
    assert (np.abs(stored.rows.astype(np.int64)) <= 127).all()
    normal = most >= 1e-35
    steps = np.rint(rows[normal] / stored.scales[normal, None])
    np.testing.assert_array_equal(stored.rows[normal], np.clip(steps, -127, 127))
    bound = stored.scales[:, None].astype(np.float64) * 0.50001 + 1e-43
    assert (np.abs(back(rows, "int8").astype(np.float64) - rows)[normal] <= bound[normal]).all()


@given(rows=matrices(1e-37))
def test_int8_rows_of_subnormal_numbers_never_exceed_their_maximum(rows):
    got = np.abs(back(rows, "int8").astype(np.float64)).max(axis=1)
    assert (got <= np.abs(rows).max(axis=1).astype(np.float64) + 127 * 2.0**-149).all()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_rows_of_types_without_a_scale_have_none(dtype):
    assert quantise(np.ones((3, 2), F32), dtype).scales.shape == (0,)


def test_row_of_zeros_has_scale_0_and_stays_zero():
    rows = np.zeros((2, 5), F32)
    rows[1, 3] = 2
    assert quantise(rows, "int8").scales.tolist() == [0, float(F32(2) / F32(127))]
    np.testing.assert_allclose(back(rows, "int8"), rows, rtol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("float16", 65520.0), ("bfloat16", 3.4e38), ("float32", np.inf), ("int8", np.nan), ("float16", -np.inf)],
)
def test_values_that_a_type_cannot_represent_are_refused(dtype, value):
    with pytest.raises(BadInput, match=f"for {dtype}"):
        quantise(F32([[0, value]]), dtype)


@pytest.mark.parametrize(("dtype", "largest"), [("float16", 65519.9), ("bfloat16", 3.396e38)])
def test_largest_representable_values_stay_finite(dtype, largest):
    assert np.isfinite(back(F32([[largest, -largest]]), dtype)).all()


@pytest.mark.parametrize("dtype", ROW_TYPES)
def test_strided_rows_and_empty_tables_are_accepted(dtype):
    rows = np.random.default_rng(0).standard_normal((8, 9)).astype(F32)
    assert back(rows[::2, 1:], dtype).tobytes() == back(np.ascontiguousarray(rows[::2, 1:]), dtype).tobytes()
    assert back(rows[:0], dtype).shape == (0, 9)
