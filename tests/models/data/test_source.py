import numpy as np
import pytest

from freshet_serving.models.data.source import Batch, Field, Schema, check_position, choose
from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.errors import BadInput
from tests.models.data.sources import everything, plain


def batch() -> Batch:
    columns = {
        "id": np.arange(4),
        "name": Strings.of(["a", "", "ccc", "dd"]),
        "tags": Ragged.of([["x"], [], ["y", "zz"], ["w"]]),
        "seen": Ragged.of([[1], [2, 3], [], [4]]),
    }
    return Batch(columns, np.array([0, 1, 0, 1], np.float32), np.array([1.0, 2.0, 3.0, 4.0]), 100)


def test_slice_of_a_batch_keeps_its_rows_and_position():
    part = batch().slice(1, 3)

    assert everything(part) == (
        101,
        {"id": [1, 2], "name": [b"", b"ccc"], "tags": [[], [b"y", b"zz"]], "seen": [[2, 3], []]},
        [1.0, 0.0],
        [2.0, 3.0],
    )
    assert part.end == 103
    assert part.columns["seen"].row_splits[0] == 0
    assert everything(batch().slice(1, 4).slice(1, 2)) == everything(batch().slice(2, 3))
    empty = batch().slice(2, 2)
    assert (len(empty), plain(empty.columns["tags"])) == (0, [])


def test_schema_knows_its_names_and_kinds():
    schema = Schema((Field("a", "id"), Field("b", "strings")), "y")

    assert schema.names == ["a", "b"]
    assert schema.kind("b") == "strings"


@pytest.mark.parametrize("role", ["label", "time"])
def test_label_and_time_are_not_features(role):
    with pytest.raises(BadInput, match=rf"features\.y: expected a column other than data\.{role}"):
        Schema((Field("y", "float"),), **{"label": "click", role: "y"})


def test_all_fields_are_chosen_when_no_feature_is_named():
    fields = [Field("a", "id"), Field("b", "float")]

    assert choose(fields, []) == tuple(fields)
    assert choose(fields, [Field("b", "float")]) == (Field("b", "float"),)


def test_unknown_feature_and_wrong_kind_are_refused_with_what_fits():
    columns = [Field("gendre", "string"), Field("age", "id")]
    with pytest.raises(BadInput, match=r"features\.gender: expected .*: gendre, age \(did you mean 'gendre'\?\)"):
        choose(columns, [Field("gender", "string")])
    with pytest.raises(BadInput, match=r"features\.age\.kind: expected 'id' for this column, got 'float'"):
        choose(columns, [Field("age", "float")])


@pytest.mark.parametrize(("rows", "start"), [(0, 0), (-1, 0), (1, -1)])
def test_impossible_positions_are_refused(rows, start):
    with pytest.raises(BadInput, match="expected"):
        check_position(rows, start)


def test_rows_may_be_selected_in_any_order_and_repeatedly():
    part = batch().slice(1, 4).take(np.array([2, 0, 2]))

    assert everything(part) == (
        101,
        {"id": [3, 1, 3], "name": [b"dd", b"", b"dd"], "tags": [[b"w"], [], [b"w"]], "seen": [[4], [2, 3], [4]]},
        [1.0, 1.0, 1.0],
        [4.0, 2.0, 4.0],
    )
    assert len(batch().take(np.empty(0, np.int64))) == 0
