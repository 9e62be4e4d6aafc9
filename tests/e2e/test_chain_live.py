"""Two servers of one repository: what one rolls back the other does too, and one name is one content on both."""

import json

import grpc
import numpy as np
import pytest

from freshet_serving.processor.package.delta import write_delta
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.model_repository import Repository
from freshet_serving.serving.codecs.messages import message
from tests.e2e.servers import ALONE, LiveServer
from tests.support.packages import make_delta, make_weights, reference, tag_id, write_package
from tests.support.waiting import until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.long,
    pytest.mark.unguarded("each delta brings other weights, so that scores tell the generation"),
]

USERS = list(range(20))
PROBE = [0, 3, 7, 19, 55]
INPUTS = {"user": PROBE, "tags": [[] for _ in PROBE], "floats": [[0.0, 0.0, 0.0, 0.0]] * len(PROBE)}
TAGS = dict.fromkeys([tag_id(t) for t in "abc"], 0)


def expected(step):
    """Scores of the probe once delta `step` (all users, new dense weights) is served."""
    floats = np.zeros((len(PROBE), 4), np.float32)
    return reference(dict.fromkeys(USERS, step), TAGS, make_weights(step), PROBE, [[] for _ in PROBE], floats)


@pytest.fixture
def pair(tmp_path):
    repository = tmp_path / "repository"
    write_package(repository, users=USERS)
    servers = (
        LiveServer(repository, *ALONE, log=tmp_path / "one.log"),
        LiveServer(repository, "--workers", "2", log=tmp_path / "other.log"),
    )
    with servers[0] as one, servers[1] as other:
        one.repository = repository
        yield one, other


def publish(repository, step, parent=None):
    """A delta of all users and all weights, as a trainer publishes it."""
    change_log = ChangeLog.of(Repository(repository).version("small", 1))
    return change_log.publish(make_delta(step, USERS, parent=parent, dense_seed=step))


def chain(server):
    return json.loads(server.get("/admin/models", admin=True)[2])["models"]["small"]["served"]["1"]["chain"]


def asked(server):
    """(generation, digest, scores) of one prediction over HTTP."""
    body = json.dumps({"inputs": INPUTS}).encode()
    status, headers, data = server.request("POST", "/v1/models/small:predict", body, {"x-model-digest": "1"})
    assert status == 200, data
    headers = {name.lower(): value for name, value in headers.items()}
    return headers["x-model-generation"], headers["x-model-digest"], np.ravel(json.loads(data)["outputs"])


def wait_until(servers, generation, within_s):
    until(lambda: [asked(server)[0] for server in servers] == [generation] * len(servers), within_s=within_s)


def test_rollback_on_one_server_is_served_by_both(pair):
    one, _ = pair
    links = {step: publish(one.repository, step) for step in range(1, 8)}
    wait_until(pair, "1.7", 10)
    status, reply = one.post_json("/admin/models/small/rollback", {"generation": "1.4", "reason": "late labels"})
    assert status == 200, reply
    assert (reply["generation"], reply["undone"], reply["next"]) == ("1.4", ["1.5", "1.6", "1.7"], "1.8")
    wait_until(pair, "1.4", 1)
    for server in pair:
        generation, digest, scores = asked(server)
        assert (generation, digest) == ("1.4", links[4].digest)
        np.testing.assert_allclose(scores, expected(4), atol=1e-5)

    link = publish(one.repository, 8, parent=4)
    wait_until(pair, "1.8", 5)
    for server in pair:
        generation, digest, scores = asked(server)
        assert (generation, digest) == ("1.8", link.digest)
        np.testing.assert_allclose(scores, expected(8), atol=1e-5)
        assert chain(server) == {
            "state": "CURRENT", "reason": "", "digest": link.digest, "records": 9, "next_step": 9, "behind": 0,
                "obstacle": "",
        }  # fmt: skip


def test_digest_is_returned_over_grpc_on_request(pair):
    one, _ = pair
    link = publish(one.repository, 1)
    wait_until(pair, "1.1", 10)
    request = message("inference.ModelInferRequest")(model_name="small")
    for name, dtype, shape in (("user", "INT64", [1]), ("floats", "FP32", [1, 4])):
        tensor = request.inputs.add(name=name, datatype=dtype, shape=shape)
        contents = tensor.contents.int64_contents if dtype == "INT64" else tensor.contents.fp32_contents
        contents.extend([0] * int(np.prod(shape)))
    request.inputs.add(name="tags", datatype="BYTES", shape=[0])
    splits = request.inputs.add(name="tags.row_splits", datatype="INT64", shape=[2])
    splits.contents.int64_contents.extend([0, 0])
    with grpc.insecure_channel(f"127.0.0.1:{one.grpc_port}") as channel:
        infer = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            lambda m: m.SerializeToString(),
            message("inference.ModelInferResponse").FromString,
        )
        for wanted in ((), (("x-model-digest", "1"),)):
            _, call = infer.with_call(request, metadata=wanted, timeout=30)
            metadata = dict(call.trailing_metadata())
            assert metadata["x-model-generation"] == "1.1"
            assert metadata.get("x-model-digest") == (link.digest if wanted else None)


def test_replaced_served_delta_stops_both_servers_and_is_reported(pair, tmp_path):
    one, _ = pair
    publish(one.repository, 1)
    link = publish(one.repository, 2)
    wait_until(pair, "1.2", 10)
    path = one.repository / "small/1/deltas/2.safetensors"
    good = path.read_bytes()
    write_delta(path, make_delta(2, USERS, dense_seed=9, tag=9))
    until(lambda: [chain(server)["state"] for server in pair] == ["DIVERGED"] * 2)
    for server in pair:
        generation, digest, scores = asked(server)
        assert (generation, digest) == ("1.2", link.digest)
        np.testing.assert_allclose(scores, expected(2), atol=1e-5)
        status, reply = server.upload("small", _bytes_of(tmp_path, make_delta(3, USERS)))
        assert status == 409
        assert "DIVERGED: delta 1.2: is served, but its file was replaced" in reply["error"]
        assert (
            b'freshet_version_chain_state{model="small",state="DIVERGED",version="1"} 1.0' in server.get("/metrics")[2]
        )
    # Who starts now does not serve another content under that name.
    with LiveServer(one.repository, *ALONE, log=tmp_path / "third.log") as third:
        assert asked(third)[0] == "1.1"
        assert chain(third)["state"] == "DIVERGED"

    path.write_bytes(good)
    for server in pair:
        assert server.post_json("/admin/models/small/versions/1/load", {})[0] == 200
        assert chain(server)["state"] == "CURRENT"
    publish(one.repository, 3)
    wait_until(pair, "1.3", 5)


def _bytes_of(tmp_path, delta):
    write_delta(tmp_path / "made", delta)
    return (tmp_path / "made").read_bytes()
