"""Kept requests outlive the version that they were sent to, as columns that it reads."""

import numpy as np
import pytest

from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.errors import Corrupt
from freshet_serving.processor.extensions.guard.kept_requests import (
    MOST_NBYTES,
    KeptRequest,
    dump_requests,
    kept_requests,
    parse_requests,
)
from freshet_serving.processor.features.bound_request import BoundRequest
from freshet_serving.processor.package.tensors import parse_tensors, write_tensors
from freshet_serving.processor.versions.sample import MOST_ROWS, SampleRows
from tests.support.guarded import as_inputs

NAMES = ("user", "tags", "floats")


def sampled(rows, kept, **more):
    return SampleRows(BoundRequest(rows, 0, b"", ()), kept, {**as_inputs(rows), **more})


def plain(column):
    if isinstance(column, Ragged):
        return [plain(column.values), column.row_splits.tolist()]
    return column.tolist()


def test_kept_rows_are_copies_of_the_first_rows():
    ((inputs, rows),) = kept_requests([sampled(20, 3)], NAMES)
    assert rows == 3
    whole = as_inputs(20)
    np.testing.assert_array_equal(inputs["user"], whole["user"][:3])
    assert inputs["tags"].values.tolist() == whole["tags"].values.tolist()[:6]
    assert not np.shares_memory(inputs["floats"], whole["floats"])


def test_inputs_of_one_row_stay_whole_and_other_names_are_dropped():
    ((inputs, _),) = kept_requests([sampled(20, 3, user=np.array([7]), secret=np.arange(20))], NAMES)
    assert inputs.keys() == set(NAMES)
    assert inputs["user"].tolist() == [7]


def test_requests_round_trip():
    requests = kept_requests([sampled(5, 5), sampled(2, 1)], NAMES)
    again = parse_requests(dump_requests(requests))
    assert [request.rows for request in again] == [1, 5]
    for before, after in zip(requests, again[::-1]):
        assert {name: plain(c) for name, c in before.inputs.items()} == {n: plain(c) for n, c in after.inputs.items()}
        assert after.inputs["user"].flags.aligned


def test_request_that_leaves_an_input_out_stays_without_it():
    (_, inputs) = (request.inputs for request in parse_requests(dump_requests([
        KeptRequest({"user": np.array([1])}, 1), KeptRequest({"user": np.array([2]), "age": np.array([3])}, 1),
    ])))  # fmt: skip
    assert inputs.keys() == {"user"}


def test_newest_requests_are_kept_within_the_bounds():
    many = [KeptRequest({"user": np.full(8, n)}, 8) for n in range(100)]
    kept = parse_requests(dump_requests(many))
    assert sum(request.rows for request in kept) == MOST_ROWS
    assert kept[0].inputs["user"].tolist() == [99] * 8
    wide = [KeptRequest({"user": np.full(MOST_NBYTES // 20, n)}, 1) for n in range(10)]
    assert len(parse_requests(dump_requests(wide))) == 2
    assert dump_requests([]) == b""


def test_wider_numbers_are_kept_as_the_plan_reads_them():
    ((inputs, _),) = parse_requests(
        dump_requests([KeptRequest({"a": np.array([1.5]), "b": np.array([2**63], np.uint64)}, 1)])
    )
    assert inputs["a"].dtype == np.float32
    assert inputs["b"].tolist() == [-(2**63)]


def changed(data, **arrays):
    """The file with other tensors, or other metadata under the name `metadata`."""
    tensors = parse_tensors(np.frombuffer(data, np.uint8), "kept requests")
    metadata = {**tensors.metadata, **arrays.pop("metadata", {})}
    import io

    file = io.BytesIO()
    write_tensors(
        file, {**tensors.arrays, **{name.replace("_", ".", 2): array for name, array in arrays.items()}}, metadata
    )
    return file.getvalue()


@pytest.mark.parametrize(
    "arrays",
    [
        {"metadata": {"format": "other/1"}},
        {"metadata": {"rows": "[1e9]"}},
        {"metadata": {"rows": "[" * 2000}},
        {"metadata": {"rows": "[300]"}},
        {"metadata": {"inputs": "[7]"}},
        {"0_1_offsets": np.array([0, 1 << 40], np.int64)},
        {"0_1_offsets": np.array([4, 0], np.int64)},
        {"0_1_row_splits": np.array([0, 9, 2], np.int64)},
        {"0_1_row_splits": np.array([0.0, 1.0], np.float32)},
        {"0_1_data": np.array([0, 1], np.int64)},
    ],
)
def test_damaged_bytes_are_refused(arrays):
    data = dump_requests([KeptRequest({"a": np.arange(2), "b": Strings.of(["x", "y"])}, 2)])
    with pytest.raises(Corrupt, match=r"^kept requests: "):
        parse_requests(changed(data, **arrays))


def test_cut_and_overlong_bytes_are_refused():
    data = dump_requests(kept_requests([sampled(5, 5)], NAMES))
    for damaged in (data[:-1], data[:20], b"", bytes(3 * MOST_NBYTES)):
        with pytest.raises(Corrupt):
            parse_requests(damaged)
