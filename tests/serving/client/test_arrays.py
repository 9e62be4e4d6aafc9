import numpy as np
import pytest

from freshet_serving.processor.columns import Ragged
from freshet_serving.processor.errors import BadInput
from freshet_serving.serving.client.arrays import of_user, tensors


def one(values):
    (tensor,) = tensors({"x": values})
    return tensor


@pytest.mark.parametrize(
    ("values", "datatype", "shape", "data"),
    [
        ([1, 2], "INT64", (2,), np.array([1, 2], "<i8").tobytes()),
        (np.array([[1], [2]], np.uint8), "INT64", (2, 1), np.array([1, 2], "<i8").tobytes()),
        (7, "INT64", (1,), np.array([7], "<i8").tobytes()),
        ([0.5, 1], "FP32", (2,), np.array([0.5, 1], "<f4").tobytes()),
        (np.array([0.5], np.float16), "FP16", (1,), np.array([0.5], "<f2").tobytes()),
        (["a", "öl"], "BYTES", (2,), b"\x01\0\0\0a\x03\0\0\0\xc3\xb6l"),
        ([b"\xff", b""], "BYTES", (2,), b"\x01\0\0\0\xff\0\0\0\0"),
    ],
)
def test_values_are_encoded_as_numpy_would_convert_them(values, datatype, shape, data):
    assert one(values)[1:] == (datatype, shape, data)


def test_arrays_of_any_layout_are_encoded_row_by_row():
    array = np.arange(6, dtype=">i4").reshape(2, 3).T
    assert one(array).data == np.ascontiguousarray(array, "<i8").tobytes()


def test_ragged_values_are_encoded_as_two_tensors():
    values, splits = tensors({"seen": Ragged.of([[1, 2], [], [3]])})
    assert (values.name, values.shape, splits.name) == ("seen", (3,), "seen.row_splits")
    assert np.frombuffer(splits.data, "<i8").tolist() == [0, 2, 2, 3]
    words, _ = tensors({"tags": Ragged.of([["a"], []])})
    assert (words.datatype, words.shape) == ("BYTES", (1,))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([[1], [2, 3]], "Ragged.of"),
        ([True], "expected integers, floats or strings, got bool"),
        ([{}], "expected strings, got dict"),
        ([2**64], "expected integers from"),
        (1j, "got complex128"),
    ],
)
def test_values_unsupported_by_the_protocol_are_refused(values, message):
    with pytest.raises(BadInput, match=message):
        one(values)


def test_ids_beyond_int64_are_sent_as_uint64():
    ids = [5, 2**63, 2**64 - 1]
    for values in (ids, np.array(ids, np.uint64)):
        assert one(values).datatype == "UINT64"
        assert np.frombuffer(one(values).data, "<u8").tolist() == ids
    flat, _ = tensors({"x": Ragged.of([ids])})
    assert flat.datatype == "UINT64"


def test_user_values_become_single_row_inputs():
    rows = of_user({"id": 7, "name": "ann", "floats": [0.5, 1.0], "row": [[1, 2]], "seen": Ragged.of([[1, 2]])})
    assert [np.shape(rows[name]) for name in ("id", "name", "floats", "row")] == [(1,), (1,), (1, 2), (1, 2)]
    assert len(rows["seen"]) == 1


@pytest.mark.parametrize("values", [[[1], [2]], Ragged.of([[1], [2]])])
def test_user_with_two_rows_is_refused(values):
    with pytest.raises(BadInput, match="expected one row, got 2"):
        of_user({"id": values})
