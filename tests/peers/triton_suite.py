"""A sample of Triton's QA: L0_http, L0_input_validation, L0_infer_shape, L0_shared_memory, extensions and metrics.

real_triton.py asks them of a real Triton.
"""

from __future__ import annotations

import json
import struct
from multiprocessing import shared_memory
from typing import Any

import numpy as np

from tests.peers.expectations import ERROR, Anything, Expectation, Has, Where, row

MODEL = "/v2/models/default"
INFER = f"{MODEL}/infer"
INTS = "/v2/models/ints/infer"
LENGTH = "Inference-Header-Content-Length"
# Where its QA asks for no more than that a request is refused: Triton's parser answers 500, its core 400 or 404.
REFUSED = Where(lambda status: status in (400, 404, 500))
METRICS = "metrics have names of their own: promtool refuses those that end in _us and _count"
HALVES = "other datatypes are taken where nothing is lost: a value of FP16 is one of FP32"
EMPTY = "an empty body is a request without inputs, as bad JSON is: Triton takes it for no rows of raw data"
NEGATIVE = "a client's mistake is 400, so that clients do not ask again: Triton's parser answers 500"
X = {"name": "x", "datatype": "FP32", "shape": [2], "data": [2.0, 4.0]}
VALUES = np.array([2.0, 4.0], np.float32)


def infer(
    name: str, body: Any, status: Any, document: Any, path: str = INFER, headers: Any = None, miss: str = ""
) -> Expectation:
    return row(name, "POST", path, body, status, document, miss, headers)


def bad(name: str, inputs: Any, path: str = INFER, status: Any = 400, miss: str = "", **more: Any) -> Expectation:
    return infer(name, {"inputs": inputs, **more}, status, ERROR, path, miss=miss)


def binary(
    name: str,
    datatype: str,
    shape: list[int],
    data: bytes,
    expected: Any,
    *,
    model: str = "default",
    size: int | None = None,
    status: Any = 200,
    miss: str = "",
) -> Expectation:
    """A request whose one input lies behind its JSON."""
    parameters = {"binary_data_size": len(data) if size is None else size}
    header = json.dumps(
        {"inputs": [{"name": "x", "datatype": datatype, "shape": shape, "parameters": parameters}]}
    ).encode()
    headers = {LENGTH: str(len(header))}
    return infer(name, header + data, status, expected, f"/v2/models/{model}/infer", headers, miss)


def in_binary(name: str, parameters: dict[str, Any]) -> Expectation:
    """A request whose reply is to be binary."""

    def ask(server: Any) -> list[Any]:
        status, headers, data = server.request("POST", INFER, json.dumps({"inputs": [X], **parameters}).encode())
        length = int({key.lower(): value for key, value in headers.items()}[LENGTH.lower()])
        return [status, json.loads(data[:length])["outputs"][0]["name"], np.frombuffer(data[length:], "<f4").tolist()]

    return Expectation(name, ask, [200, "y", [3.0, 4.0]])


def _y(*values: float) -> Has:
    return Has({"outputs": [Has({"name": "y", "shape": [len(values)], "data": list(values)})]})


def _prefixed(*texts: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


HTTP = [
    binary("binary FP32", "FP32", [2], VALUES.tobytes(), _y(3.0, 4.0)),
    binary("binary INT32", "INT32", [1, 2], np.array([1, 2], np.int32).tobytes(), Has({"outputs": [Has({"datatype": "INT32", "data": [1, 2]})]}), model="ints"),
    binary("binary BOOL", "BOOL", [2], b"\1\0", Has({"outputs": [Has({"datatype": "BOOL", "data": [False, True]})]}), model="flags"),
    binary("binary FP64", "FP64", [1], np.array([0.5]).tobytes(), _y(0.5), model="doubles"),
    binary("binary FP16 for FP32", "FP16", [2], VALUES.astype(np.float16).tobytes(), ERROR, status=400, miss=HALVES),
    binary("binary BYTES", "BYTES", [2], _prefixed(b"a", b"bcd"), Has({"outputs": [Has({"data": [1, 3]})]}), model="strings"),
    infer("raw binary", VALUES.tobytes(), 200, Anything(), headers={LENGTH: "0"}),
    infer("raw binary of half a value", VALUES.tobytes()[:-1], 400, ERROR, headers={LENGTH: "0"}),
    infer("a header length beyond the body", json.dumps({"inputs": [X]}).encode(), 400, ERROR, headers={LENGTH: "9999"}),
    infer("a header length that is no number", json.dumps({"inputs": [X]}).encode(), 400, ERROR, headers={LENGTH: "x"}),
    in_binary("all outputs in binary", {"parameters": {"binary_data_output": True}}),
    in_binary("one output in binary", {"outputs": [{"name": "y", "parameters": {"binary_data": True}}]}),
    infer("an output in JSON against the default", {"inputs": [X], "parameters": {"binary_data_output": True}, "outputs": [{"name": "y", "parameters": {"binary_data": False}}]}, 200, _y(3.0, 4.0)),
    infer("a request id", {"id": "7", "inputs": [X]}, 200, Has({"id": "7"})),
    infer("a priority and a timeout", {"inputs": [X], "parameters": {"priority": 2, "timeout": 10_000_000}}, 200, _y(3.0, 4.0)),
    infer("content types other than JSON", json.dumps({"inputs": [X]}).encode(), 200, _y(3.0, 4.0), headers={"Content-Type": "text/plain"}),
    infer("bad JSON", b"{", REFUSED, ERROR),
    infer("an empty body", b"", 200, Has({"outputs": [Has({"name": "y", "shape": [0]})]}), miss=EMPTY),
    infer("an unknown model", {"inputs": [X]}, 404, ERROR, "/v2/models/nobody/infer"),
]  # fmt: skip
VALIDATION = [
    bad("an input too few", []),
    bad("an input too many", [X, {**X, "name": "z"}]),
    bad("an input twice", [X, X]),
    bad("fewer elements than the shape", [{**X, "data": [2.0]}], status=REFUSED),
    bad("more elements than the shape", [{**X, "data": [2.0, 4.0, 6.0]}], status=REFUSED),
    bad("another datatype", [{**X, "datatype": "BYTES"}], status=REFUSED),
    bad("strings in numbers", [{**X, "data": ["a", "b"]}], status=REFUSED),
    bad("an unknown output", [X], outputs=[{"name": "z"}]),
    binary("fewer bytes than the shape", "FP32", [2], VALUES.tobytes()[:4], ERROR, status=400),
    binary("more bytes than the shape", "FP32", [2], VALUES.tobytes() + b"1234", ERROR, status=400),
    binary("a size beyond the body", "FP32", [2], VALUES.tobytes(), ERROR, size=800, status=400),
    binary("a size below zero", "FP32", [2], VALUES.tobytes(), ERROR, size=-8, status=REFUSED),
    binary("a string beyond its tensor", "BYTES", [1], struct.pack("<I", 99) + b"a", ERROR, model="strings", status=400),
    binary("strings fewer than the shape", "BYTES", [2], _prefixed(b"a"), ERROR, model="strings", status=400),
]  # fmt: skip
SHAPES = [
    bad("another number of columns", [{"name": "x", "datatype": "INT32", "shape": [1, 3], "data": [1, 2, 3]}], INTS),
    bad("a dimension too many", [{"name": "x", "datatype": "INT32", "shape": [1, 1, 2], "data": [1, 2]}], INTS),
    bad("a dimension too few", [{"name": "x", "datatype": "INT32", "shape": [2], "data": [1, 2]}], INTS),
    bad("a dimension below zero", [{**X, "shape": [-2]}], status=500, miss=NEGATIVE),
    bad("a dimension beyond int32", [{**X, "shape": [2**33]}]),
    bad("a shape that overflows", [{"name": "x", "datatype": "INT32", "shape": [2**31 - 1, 2**31 - 1], "data": [1]}], INTS),
]  # fmt: skip


def _memory(server: Any) -> list[Any]:
    """Registers a region, reads an input from it, writes the output into it, unregisters."""
    region = shared_memory.SharedMemory(create=True, size=64)
    try:
        region.buf[:8] = VALUES.tobytes()
        base = "/v2/systemsharedmemory/region/peer"
        body = json.dumps({"key": f"/{region.name.lstrip('/')}", "offset": 0, "byte_size": 64}).encode()
        told = [server.request("POST", f"{base}/register", body)[0]]
        told.append(server.request("POST", f"{base}/register", body)[0])
        place = {"shared_memory_region": "peer", "shared_memory_byte_size": 8}
        asked = {"inputs": [{**{k: X[k] for k in ("name", "datatype", "shape")}, "parameters": place}]}
        asked["outputs"] = [{"name": "y", "parameters": {**place, "shared_memory_offset": 32}}]
        told.append(server.request("POST", INFER, json.dumps(asked).encode())[0])
        written = np.frombuffer(bytes(region.buf[32:40]), "<f4").tolist()
        told.append(json.loads(server.request("GET", f"{base}/status")[2])[0]["name"])
        told.append(server.request("POST", f"{base}/unregister")[0])
        return [*told, written]
    finally:
        region.close()
        region.unlink()


EXTENSIONS = [
    Expectation("system shared memory", _memory, [200, 400, 200, "peer", 200, [3.0, 4.0]]),
    row("an unknown region", "POST", INFER, {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "parameters": {"shared_memory_region": "nobody", "shared_memory_byte_size": 8}}]}, REFUSED, ERROR),
    row("the index of the repository", "POST", "/v2/repository/index", {}, 200, Where(lambda index: ("default", "123", "READY") in [(m["name"], m["version"], m["state"]) for m in index])),
    row("statistics move", "GET", f"{MODEL}/stats", None, 200, Has({"model_stats": [Has({"last_inference": Where(lambda ms: ms > 1.7e12), "batch_stats": Where(bool), "inference_stats": Has({"compute_infer": Where(lambda d: d["count"] > 0 and d["ns"] > 0)})})]})),
    row("configuration", "GET", f"{MODEL}/config", None, 200, Has({"name": "default", "input": [Has({"name": "x", "data_type": "TYPE_FP32"})]})),
    row("metadata of extensions", "GET", "/v2", None, 200, Has({"extensions": Where(lambda names: {"binary_tensor_data", "statistics", "system_shared_memory"} <= set(names))})),
    row("metrics by Triton's names", "GET", "/metrics", None, 200, Where(lambda text: "nv_inference_request_success" in text), METRICS),
]  # fmt: skip
SUITE = [*HTTP, *VALIDATION, *SHAPES, *EXTENSIONS]
