import struct

import numpy as np
import pytest

from freshet_serving.processor.columns import Ragged, Strings
from freshet_serving.processor.package.manifest import Manifest
from freshet_serving.processor.package.manifest_entries import Input, Output
from freshet_serving.serving.codecs import kserve, tfs_rest
from freshet_serving.serving.front import catalog
from loadtest.load.encoding import (
    InputTensor,
    Signature,
    decode_kserve,
    decode_tfs,
    encode_kserve,
    encode_tfs,
    parse_metadata,
)

PACKED = Signature("bench", (InputTensor("ids", "INT64", 2), InputTensor("floats", "FP32", 1)), ("score",))
MIXED = Signature(
    "m",
    (
        InputTensor("user", "INT64"),
        InputTensor("name", "BYTES"),
        InputTensor("tags", "BYTES", ragged=True),
        InputTensor("seen", "INT64", ragged=True),
    ),
    ("score",),
)
COLUMNS = {
    "user": np.array([7, 8]),
    "name": ["é", ""],
    "tags": [["a", "bc"], []],
    "seen": [np.array([1]), np.array([2, 3])],
}


def manifest():
    return Manifest(
        model="m",
        version=1,
        arch="test",
        created_at=0.0,
        inputs=[
            Input("user", "int64"),
            Input("name", "string"),
            Input("tags", "string", ragged=True),
            Input("seen", "int64", ragged=True),
        ],
        features=[],
        tables=[],
        outputs=[Output("score")],
        width=1,
        dense={},
        files={},
    )


def plain(column):
    if isinstance(column, Ragged):
        return plain(column.values), column.row_splits.tolist()
    return column.tolist()


def test_infer_request_is_a_json_header_and_tensor_bytes():
    request = encode_kserve(PACKED, {"ids": np.array([[1, 2], [3, -1]]), "floats": np.array([[0.5], [-2.0]])}, 4)
    header = (
        b'{"inputs":[{"name":"ids","datatype":"INT64","shape":[2,2],"parameters":{"binary_data_size":32}},'
        b'{"name":"floats","datatype":"FP32","shape":[2,1],"parameters":{"binary_data_size":8}}],'
        b'"outputs":[{"name":"score","parameters":{"binary_data":true}}]}'
    )
    assert request.body == header + struct.pack("<4q2f", 1, 2, 3, -1, 0.5, -2.0)
    assert request.path == "/v2/models/bench/infer"
    assert request.headers["Inference-Header-Content-Length"] == str(len(header))
    assert (request.rows, request.number) == (2, 4)


def test_strings_are_encoded_as_length_and_utf8():
    signature = Signature("m", (InputTensor("name", "BYTES"),), ("score",))
    body = encode_kserve(signature, {"name": ["é", ""]}).body
    assert body.endswith(b"\x02\x00\x00\x00\xc3\xa9\x00\x00\x00\x00")


def test_predict_request_has_one_object_per_row():
    request = encode_tfs(PACKED, {"ids": np.array([[1, 2]]), "floats": np.array([[0.5]], np.float32)})
    assert request.body == b'{"instances":[{"ids":[1,2],"floats":[0.5]}]}'
    assert request.path == "/v1/models/bench:predict"


def test_server_decoders_read_every_column_kind():
    wanted = {
        "user": [7, 8],
        "name": ["é".encode(), b""],
        "tags": ([b"a", b"bc"], [0, 2, 2]),
        "seen": ([1, 2, 3], [0, 1, 3]),
    }
    binary = encode_kserve(MIXED, COLUMNS)
    headers = {name.lower().encode(): value.encode() for name, value in binary.headers.items()}
    inputs, options = kserve.decode(binary.body, headers, manifest())
    assert {name: plain(column) for name, column in inputs.items()} == wanted
    assert options.outputs == (("score", True, None),)
    inputs, _ = tfs_rest.decode(encode_tfs(MIXED, COLUMNS).body, {}, manifest())
    assert {name: plain(column) for name, column in inputs.items()} == wanted
    assert isinstance(inputs["name"], Strings)


def test_server_metadata_gives_the_signature():
    assert parse_metadata(catalog.model_metadata(manifest(), "m", [1])) == MIXED


def test_metadata_with_an_unsendable_input_is_refused():
    document = {"name": "m", "inputs": [{"name": "x", "datatype": "FP64", "shape": [-1]}], "outputs": []}
    with pytest.raises(ValueError, match="INT64, FP32 or BYTES"):
        parse_metadata(document)


def test_infer_reply_is_parsed_by_its_header():
    header = (
        b'{"outputs":[{"name":"other","datatype":"FP32","shape":[1,1],"parameters":{"binary_data_size":4}},'
        b'{"name":"score","datatype":"FP32","shape":[2,1],"parameters":{"binary_data_size":8}}]}'
    )
    body = header + struct.pack("<3f", 9.0, 0.25, 0.75)
    assert decode_kserve(body, str(len(header)), "score").tolist() == [0.25, 0.75]
    body = b'{"outputs":[{"name":"score","datatype":"FP32","shape":[2,1],"data":[0.25,0.75]}]}'
    assert decode_kserve(body, None, "score").tolist() == [0.25, 0.75]


def test_predict_reply_with_one_or_several_outputs_is_parsed():
    assert decode_tfs(b'{"predictions":[[0.25],[0.75]]}', "score").tolist() == [0.25, 0.75]
    assert decode_tfs(b'{"predictions":[{"score":[0.5],"other":[1.0]}]}', "score").tolist() == [0.5]


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"predictions":[{"other":1}]}', b'{"predictions":["a"]}'])
def test_malformed_predict_reply_is_refused(body):
    with pytest.raises(ValueError, match="reply"):
        decode_tfs(body, "score")


@pytest.mark.parametrize(
    ("body", "length"),
    [(b"", None), (b"{}", None), (b"[]", "2"), (b'{"outputs":[]}', "14"), (b'{"outputs":[{"name":"score"}]}', "x")],
)
def test_malformed_infer_reply_is_refused(body, length):
    with pytest.raises(ValueError, match="reply"):
        decode_kserve(body, length, "score")
