import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.errors import BadInput, TooLarge
from freshet_serving.processor.features.limits import DEFAULTS, RequestLimits
from freshet_serving.processor.package import Input, SequenceColumn, SequenceEntry
from freshet_serving.serving.codecs import json_columns, kserve, tfs_rpc
from freshet_serving.serving.codecs.templates import Templates
from freshet_serving.serving.front import catalog
from tests.serving.codecs.infer_requests import binary, decode_json, prefixed, refusal, tensor
from tests.serving.codecs.predict_requests import DT_DOUBLE, DT_FLOAT, DT_INT64, DT_STRING, predict_request
from tests.serving.fakes import manifest_of

NAMES = ["h.item", "h.word"]


def sequential():
    columns = [SequenceColumn(name, "ids", name, "t", 0, 1) for name in NAMES]
    inputs = [
        Input("user", "int64"),
        Input("h.item", "int64", ragged=True),
        Input("h.word", "string", ragged=True),
        Input("tags", "int64", ragged=True),
    ]
    return dataclasses.replace(manifest_of(inputs), sequences=[SequenceEntry("h", columns, 8, 2, NAMES)])


MANIFEST = sequential()
USER = tensor("user", "INT64", [2], [7, 8])
TAGS = [tensor("tags", "INT64", [0], []), tensor("tags.row_splits", "INT64", [3], [0, 0, 0])]
SHARED = tensor("h.row_splits", "INT64", [3], [0, 1, 3])
LISTS = [tensor("h.item", "INT64", [3], [1, 2, 3]), tensor("h.word", "BYTES", [3], ["a", "b", "c"])]
PADDED = [
    tensor("h.item", "INT64", [2, 3], [[1, 9, 9], [2, 3, 9]]),
    tensor("h.word", "BYTES", [2, 2], [["a", "z"], ["b", "c"]]),
    tensor("h.lengths", "INT64", [2], [1, 2]),
]


def lists(inputs):
    assert all(isinstance(inputs[name], Ragged) for name in NAMES)
    items, words = inputs["h.item"], inputs["h.word"]
    assert items.row_splits.tolist() == words.row_splits.tolist()
    return items.values.tolist(), words.values.tolist(), items.row_splits.tolist()


@pytest.mark.parametrize("tensors", [[*LISTS, SHARED], PADDED], ids=["row_splits", "lengths"])
def test_columns_share_one_tensor(tensors):
    inputs, _ = decode_json(MANIFEST, inputs=[USER, *tensors, *TAGS])
    assert lists(inputs) == ([1, 2, 3], [b"a", b"b", b"c"], [0, 1, 3])
    assert set(inputs) == {i.name for i in MANIFEST.inputs}


def test_padded_columns_are_read_behind_the_header():
    described = [
        tensor("h.item", "INT64", [2, 3], nbytes=48),
        tensor("h.word", "BYTES", [2, 2], nbytes=len(prefixed([b"a", b"", b"b", b"cc"]))),
        tensor("h.lengths", "INT64", [2], nbytes=16),
    ]
    buffers = [np.array([1, 9, 9, 2, 3, 9]).tobytes(), prefixed([b"a", b"", b"b", b"cc"]), np.array([1, 2]).tobytes()]
    body, headers = binary([USER, *TAGS, *described], buffers)
    inputs, _ = kserve.decode(body, headers, MANIFEST)
    assert lists(inputs) == ([1, 2, 3], [b"a", b"b", b"cc"], [0, 1, 3])


REFUSED = {
    "expected one of h.item.row_splits and h.row_splits, got both": [
        *LISTS,
        SHARED,
        tensor("h.item.row_splits", "INT64", [3], [0, 1, 3]),
    ],
    "expected one of h.row_splits and h.lengths, got both": [*PADDED, SHARED],
    "h.item.row_splits is missing": LISTS,
    "h.item is missing": [SHARED],
    "inputs[h.lengths]: expected 0 to 2 in every row": [*PADDED[:2], tensor("h.lengths", "INT64", [2], [1, 3])],
    "inputs[h.item].shape: expected a row for each of the 3 in h.lengths, got 2": [
        *PADDED[:2],
        tensor("h.lengths", "INT64", [3], [1, 1, 1]),
    ],
    "inputs[h.lengths]: expected at least one row": [
        tensor("h.item", "INT64", [0, 2**31 - 1], []),
        tensor("h.word", "BYTES", [0, 2**31 - 1], []),
        tensor("h.lengths", "INT64", [0], []),
    ],
    "inputs[h.item].shape: expected [n, L] beside the sequence's lengths": [*LISTS, PADDED[2]],
    "inputs[h.row_splits]: expected values ascending from 0 to 3": [
        *LISTS,
        tensor("h.row_splits", "INT64", [3], [0, 3, 2]),
    ],
}


@pytest.mark.parametrize("message", REFUSED)
def test_other_forms_are_refused_by_name(message):
    assert message in refusal(MANIFEST, inputs=[USER, *REFUSED[message], *TAGS])


def test_row_splits_alone_are_refused_where_the_columns_may_be_left_out():
    filled = sequential()
    filled.fillers.update(dict.fromkeys(NAMES))
    assert "h.row_splits is sent without h.item or h.word" in refusal(filled, inputs=[USER, SHARED, *TAGS])
    inputs, _ = decode_json(filled, inputs=[USER, *TAGS])
    assert "h.item" not in inputs


def decode_message(manifest, *tensors, limits=DEFAULTS):
    data = predict_request(*tensors).SerializeToString()
    return tfs_rpc.PredictDecoder(data, Templates()).columns(manifest, limits)


def rpc(*tensors, limits=DEFAULTS):
    others = ("user", DT_INT64, [2], [7, 8]), ("tags", DT_INT64, [2, 0], [])
    return decode_message(MANIFEST, *others, *tensors, limits=limits)


def test_tensorflow_servings_messages_share_them_too():
    words = [b"a", b"b", b"c"]
    items, strings = ("h.item", DT_INT64, [3], [1, 2, 3]), ("h.word", DT_STRING, [3], words)
    assert lists(rpc(items, strings, ("h.row_splits", DT_INT64, [3], [0, 1, 3]))) == ([1, 2, 3], words, [0, 1, 3])
    items = ("h.item", DT_INT64, [2, 3], [1, 9, 9, 2, 3, 9])
    strings = ("h.word", DT_STRING, [2, 2], [b"a", b"z", b"b", b"c"])
    assert lists(rpc(items, strings, ("h.lengths", DT_INT64, [2], [1, 2]))) == ([1, 2, 3], words, [0, 1, 3])
    with pytest.raises(BadInput, match=r"h.item: expected 1 rows, as h.lengths has, got 2"):
        rpc(items, strings, ("h.lengths", DT_INT64, [1], [1]))
    with pytest.raises(BadInput, match=r"h.item: expected shape \[total\] beside h.row_splits, got \[2, 3\]"):
        rpc(items, strings, ("h.row_splits", DT_INT64, [3], [0, 1, 3]))


def test_padding_counts_towards_the_limits():
    items, words = ("h.item", DT_INT64, [2, 3], [1]), ("h.word", DT_STRING, [2, 1], [b"a"])
    with pytest.raises(TooLarge, match="max_ids"):
        rpc(items, words, ("h.lengths", DT_INT64, [2], [1, 1]), limits=RequestLimits(max_ids=5))
    assert "at most 65536 rows" in refusal_too_large([tensor("h.item", "INT64", [70000, 1], []), PADDED[2]])


def refusal_too_large(tensors):
    with pytest.raises(TooLarge) as caught:
        decode_json(MANIFEST, inputs=tensors)
    return str(caught.value)


@given(st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=6), min_size=1, max_size=5), st.integers(0, 3))
def test_padded_lists_are_the_lists_in_either_dialect(rows, more):
    places = max(map(len, rows)) + more
    flat = [value for row in rows for value in row + [0] * (places - len(row))]
    words = [str(value) for value in flat]
    counts = [len(row) for row in rows]
    n = len(rows)
    given_tensors = [
        tensor("user", "INT64", [n], [1] * n),
        tensor("tags", "INT64", [0], []),
        tensor("tags.row_splits", "INT64", [n + 1], [0] * (n + 1)),
        tensor("h.item", "INT64", [n, places], flat),
        tensor("h.word", "BYTES", [n, places], words),
        tensor("h.lengths", "INT64", [n], counts),
    ]
    got = decode_json(MANIFEST, inputs=given_tensors)[0]
    wanted = Ragged.of(rows) if sum(counts) else Ragged(np.empty(0, np.int64), np.zeros(n + 1, np.int64))
    assert got["h.item"].values.tolist() == wanted.values.tolist()
    assert got["h.item"].row_splits.tolist() == wanted.row_splits.tolist()
    assert isinstance(got["h.word"].values, Strings)
    assert got["h.word"].values.tolist() == [str(value).encode() for row in rows for value in row]


def of_floats():
    """The model with the price of each event as well."""
    entry = MANIFEST.sequences[0]
    columns = [*entry.columns, SequenceColumn("h.price", "floats", "h.price", "", 2, 1)]
    inputs = [*MANIFEST.inputs[:3], Input("h.price", "float32", ragged=True)]
    entry = dataclasses.replace(entry, columns=columns, width=3, inputs=[*NAMES, "h.price"])
    return dataclasses.replace(MANIFEST, inputs=inputs, sequences=[entry])


PRICED = of_floats()
NUMBERS = st.one_of(st.none(), st.floats(width=32, allow_nan=False, allow_infinity=False))


def priced(shape, prices, beside, values, nbytes=None):
    """A request's tensors whose columns have one shape, beside a tensor that tells the lists apart."""
    count = int(np.prod(shape))
    return [
        tensor("user", "INT64", [1], [1]),
        tensor("h.item", "INT64", shape, [1] * count),
        tensor("h.word", "BYTES", shape, ["a"] * count),
        tensor("h.price", "FP32", shape, prices, nbytes),
        tensor(beside, "INT64", [len(values)], values),
    ]


def predicted(dtype, shape, prices, counts):
    """The columns of TensorFlow Serving's message with padded lists."""
    count = int(np.prod(shape))
    return decode_message(
        PRICED,
        ("user", DT_INT64, shape[:1], [1] * shape[0]),
        ("h.item", DT_INT64, shape, [1] * count),
        ("h.word", DT_STRING, shape, [b"a"] * count),
        ("h.price", dtype, shape, prices),
        ("h.lengths", DT_INT64, shape[:1], counts),
    )


@given(st.lists(st.lists(NUMBERS, max_size=5), min_size=1, max_size=4), st.integers(0, 2))
def test_floats_are_the_same_in_every_form_and_dialect(rows, more):
    counts, places = [len(row) for row in rows], max(map(len, rows)) + more
    ends, shape = np.cumsum([0, *counts]).tolist(), [len(rows), places]
    flat, padded = [v for row in rows for v in row], [v for row in rows for v in row + [0.5] * (places - len(row))]
    values, wide = (np.array([np.nan if v is None else v for v in some], np.float32) for some in (flat, padded))
    body, headers = binary(priced([len(flat)], None, "h.row_splits", ends, values.nbytes), [values.tobytes()])
    decoded = [
        {"h.price": json_columns.column(PRICED.inputs[3], rows)},
        decode_json(PRICED, inputs=priced([len(flat)], flat, "h.row_splits", ends))[0],
        decode_json(PRICED, inputs=priced(shape, padded, "h.lengths", counts))[0],
        kserve.decode(body, headers, PRICED)[0],
        predicted(DT_FLOAT, shape, wide, counts),
        predicted(DT_DOUBLE, shape, wide, counts),
    ]
    for inputs in decoded:
        found = inputs["h.price"]
        assert (found.row_splits.tolist(), found.values.dtype) == (ends, np.float32)
        np.testing.assert_array_equal(found.values, values)


def test_metadata_lists_floats_among_a_sequences_columns():
    found = {t["name"]: t["datatype"] for t in catalog.model_metadata(PRICED, "ctr", [1])["inputs"]}
    assert list(found) == ["user", "h.item", "h.word", "h.price", "h.row_splits"]
    assert found["h.price"] == "FP32"


def test_metadata_lists_one_row_splits_for_a_sequence():
    names = [t["name"] for t in catalog.model_metadata(MANIFEST, "ctr", [1])["inputs"]]
    assert names == ["user", "h.item", "h.word", "h.row_splits", "tags", "tags.row_splits"]
    config = catalog.model_config(MANIFEST, "ctr")
    assert [t["name"] for t in config["input"]] == names


MERLIN = [tensor("tags__values", "INT64", [3], [4, 5, 6]), tensor("tags__offsets", "INT32", [3], [0, 1, 3])]


def test_lists_may_have_the_names_of_merlins_clients():
    inputs, _ = decode_json(MANIFEST, inputs=[USER, *LISTS, SHARED, *MERLIN])
    assert (inputs["tags"].values.tolist(), inputs["tags"].row_splits.tolist()) == ([4, 5, 6], [0, 1, 3])
    values, offsets = ("tags__values", DT_INT64, [3], [4, 5, 6]), ("tags__offsets", DT_INT64, [3], [0, 1, 3])
    manifest = manifest_of([Input("tags", "int64", ragged=True)])
    tags = decode_message(manifest, values, offsets)["tags"]
    assert (tags.values.tolist(), tags.row_splits.tolist()) == ([4, 5, 6], [0, 1, 3])
    with pytest.raises(BadInput, match="inputs: expected one of tags and tags__values, got both"):
        decode_message(manifest, values, offsets, ("tags", *values[1:]))


def test_list_under_both_names_is_refused():
    with pytest.raises(BadInput, match=r"each once, got 'tags'"):
        decode_json(MANIFEST, inputs=[USER, *LISTS, SHARED, *MERLIN, *TAGS])
