"""KServe infer requests as tests write them, and how they are refused."""

import json

import numpy as np
import pytest

from freshet_serving.processor.errors import BadInput
from freshet_serving.serving.codecs import kserve
from tests.serving.fakes import PACKED

LENGTH = b"inference-header-content-length"


def tensor(name, datatype, shape, data=None, nbytes=None):
    described = {"name": name, "datatype": datatype, "shape": shape}
    if nbytes is not None:
        described["parameters"] = {"binary_data_size": nbytes}
    else:
        described["data"] = data
    return described


def binary(tensors, buffers, pad=0, **more):
    header = json.dumps({"inputs": tensors, **more}).encode() + b" " * pad
    return header + b"".join(buffers), {LENGTH: b"%d" % len(header)}


def prefixed(values):
    return b"".join(len(v).to_bytes(4, "little") + v for v in values)


IDS = np.arange(6, dtype=np.int64).reshape(2, 3)
FLOATS = np.arange(4, dtype=np.float32).reshape(2, 2)
PACKED_JSON = [tensor("ids", "INT64", [2, 3], IDS.tolist()), tensor("floats", "FP32", [2, 2], FLOATS.ravel().tolist())]


def decode_json(manifest=PACKED, headers=None, **document):
    return kserve.decode(json.dumps(document).encode(), headers or {}, manifest)


def refusal(manifest=PACKED, headers=None, **document):
    with pytest.raises(BadInput) as caught:
        decode_json(manifest, headers, **document)
    return str(caught.value)
