"""The table of protocol_cases, case by case against one live server."""

import http.client
import json

import grpc
import numpy as np
import pytest
from google.protobuf.json_format import MessageToDict, ParseDict

from freshet_serving.processor.package.manifest_entries import Feature, Input
from freshet_serving.processor.repository.version import DENSE
from freshet_serving.processor.repository.version_writer import VersionWriter
from freshet_serving.serving.codecs.messages import POOL, message
from tests.e2e import protocol_cases as cases
from tests.e2e.servers import LiveServer
from tests.support.packages import make_artefact, make_weights, manifest, write_executables, write_package

pytestmark = pytest.mark.e2e


def write_flat(repository):
    """Model `flat`: the dense graph alone, its 12 columns one input."""
    with VersionWriter(repository, "flat", 1) as writer:
        writer.tensors(DENSE, make_weights(0))
        write_executables(writer, make_artefact())
        made = manifest(model="flat")
        made.inputs[:] = [Input("x", "float32", columns=12)]
        made.features[:] = [Feature(f"x{j}", "float", "x", column=j, offset=j) for j in range(12)]
        made.tables.clear()
        writer.commit(made)


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cases")
    write_package(folder / "repository")
    write_flat(folder / "repository")
    with LiveServer(folder / "repository", log=folder / "serve.log") as server:
        status, _ = server.post_json("/admin/models/small/labels/stable", {"version": 1}, "PUT")
        assert status == 200
        server.channel = grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}")
        yield server
        server.channel.close()


def matches(expected, document, error):
    """Whether a reply, or an error's message, is what was expected."""
    if expected is None:
        return True
    if isinstance(expected, str):
        return error == expected or (expected.endswith("…") and error.startswith(expected[:-1]))
    if isinstance(expected, cases.Scores):
        flat = np.ravel(
            [s[-1][-1] if isinstance(s, list) and isinstance(s[0], list) else s for s in document[expected.key]]
        )
        return list(document) == [expected.key] and len(flat) == expected.count and np.isfinite(flat).all()
    if isinstance(expected, cases.Holds):
        return all(document[key] == value for key, value in expected.items())
    return document == expected


@pytest.mark.parametrize("case", cases.HTTP, ids=lambda case: f"{case[0]} {case[1][:50]} {case[3]}")
def test_http_request_is_answered_as_the_table_says(live, case):
    method, path, body, status, expected, *headers = case
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    connection = http.client.HTTPConnection("127.0.0.1", live.http_port, timeout=60)
    try:
        connection.request(method, path, data, headers[0] if headers else {})
        reply = connection.getresponse()
        content = reply.read()
    finally:
        connection.close()
    assert reply.status == status, content[:300]
    if method == "HEAD":
        return
    length = int(reply.headers.get("inference-header-content-length", len(content)))
    document = json.loads(content[:length])
    if status != 200:
        assert list(document) == ["error"]
    assert matches(expected, document, document["error"] if status != 200 else ""), document
    if status == 200 and method == "POST" and path.endswith((":predict", ":regress", ":classify", "/infer")):
        assert reply.headers["x-model-version"] == "1"
        assert reply.headers["x-model-generation"] == "1.0"


@pytest.mark.parametrize("case", cases.GRPC, ids=lambda case: f"{case[1]} {case[3]}")
def test_grpc_call_is_answered_as_the_table_says(live, case):
    service, method, document, code, expected = case
    described = POOL.FindServiceByName(service).FindMethodByName(method)
    request = ParseDict(document, message(described.input_type.full_name)(), descriptor_pool=POOL)
    call = live.channel.unary_unary(
        f"/{service}/{method}",
        request_serializer=lambda m: m.SerializeToString(),
        response_deserializer=message(described.output_type.full_name).FromString,
    )
    got, reply, error = "OK", {}, ""
    try:
        answered = call(request, timeout=60)
        reply = MessageToDict(answered, preserving_proto_field_name=True, descriptor_pool=POOL)
    except grpc.RpcError as refused:
        got, error = refused.code().name, refused.details()
    assert got == code, error
    assert matches(expected, reply, error), (reply, error)


def test_protocol_table_has_enough_cases():
    assert len(cases.HTTP) + len(cases.GRPC) >= 150
