"""Two servers of one repository: what one rolls back the other does too, and one name is one content on both."""

import numpy as np
import pytest

from freshet_serving import Ragged
from freshet_serving.processor.columns import Strings
from freshet_serving.processor.package.delta import write_delta
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.model_repository import Repository
from tests.e2e.dialects import kserve_grpc, tensorflow_columns
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
FLOATS = np.zeros((len(PROBE), 4), np.float32)
NO_TAGS = Ragged(Strings.of([]), np.zeros(len(PROBE) + 1, np.int64))
INPUTS = {"user": np.array(PROBE), "tags": NO_TAGS, "floats": FLOATS}
TAGS = dict.fromkeys([tag_id(t) for t in "abc"], 0)


def expected(step):
    """Scores of the probe once delta `step` (all users, new dense weights) is served."""
    return reference(dict.fromkeys(USERS, step), TAGS, make_weights(step), PROBE, [[]] * len(PROBE), FLOATS)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    repository = folder / "repository"
    write_package(repository, users=USERS)
    servers = (
        LiveServer(repository, *ALONE, "--delta-guard", "off", log=folder / "one.log"),
        LiveServer(repository, "--workers", "2", "--delta-guard", "off", log=folder / "other.log"),
    )
    with servers[0] as one, servers[1] as other:
        one.repository = repository
        yield one, other


def publish(repository, step, parent=None):
    """A delta of all users and all weights, as a trainer publishes it."""
    change_log = ChangeLog.of(Repository(repository).version("small", 1))
    return change_log.publish(make_delta(step, USERS, parent=parent, dense_seed=step))


def chain(server):
    return server.about()["models"]["small"]["served"]["1"]["chain"]


def asked(server, ask=tensorflow_columns):
    """(generation, digest, scores) of one prediction."""
    reply = ask(server, "small", INPUTS, {"x-model-digest": "1"})
    return reply.headers["x-model-generation"], reply.headers["x-model-digest"], np.ravel(reply.output("score"))


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
    step = one.next_step("small")
    link = publish(one.repository, step)
    wait_until(pair, f"1.{step}", 10)
    assert asked(one, kserve_grpc)[:2] == (f"1.{step}", link.digest)
    assert "x-model-digest" not in kserve_grpc(one, "small", INPUTS).headers


def test_replaced_served_delta_stops_both_servers_and_is_reported(pair, tmp_path):
    one, _ = pair
    step = one.next_step("small")
    publish(one.repository, step)
    link = publish(one.repository, step + 1)
    wait_until(pair, f"1.{step + 1}", 10)
    path = one.repository / f"small/1/deltas/{step + 1}.safetensors"
    good = path.read_bytes()
    write_delta(path, make_delta(step + 1, USERS, dense_seed=1, tag=1))
    until(lambda: [chain(server)["state"] for server in pair] == ["DIVERGED"] * 2)
    for server in pair:
        generation, digest, scores = asked(server)
        assert (generation, digest) == (f"1.{step + 1}", link.digest)
        np.testing.assert_allclose(scores, expected(step + 1), atol=1e-5)
        status, reply = server.upload("small", _bytes_of(tmp_path, make_delta(step + 2, USERS)))
        assert status == 409
        assert f"DIVERGED: delta 1.{step + 1}: is served, but its file was replaced" in reply["error"]
        assert (
            b'freshet_version_chain_state{model="small",state="DIVERGED",version="1"} 1.0' in server.get("/metrics")[2]
        )
    # Who starts now does not serve another content under that name.
    with LiveServer(one.repository, *ALONE, log=tmp_path / "third.log") as third:
        assert asked(third)[0] == f"1.{step}"
        assert chain(third)["state"] == "DIVERGED"

    path.write_bytes(good)
    for server in pair:
        assert server.post_json("/admin/models/small/versions/1/load", {})[0] == 200
        assert chain(server)["state"] == "CURRENT"
    publish(one.repository, step + 2)
    wait_until(pair, f"1.{step + 2}", 5)


def _bytes_of(tmp_path, delta):
    write_delta(tmp_path / "made", delta)
    return (tmp_path / "made").read_bytes()
