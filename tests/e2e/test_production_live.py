"""Models in production, on live servers: a bad canary goes, versions are warm before they are ready, requests are
recorded and asked again, shadows are compared. With one process and with two workers."""

import json
import re

import grpc
import numpy as np
import pytest

from freshet_serving.processor.repository.version import WARMUP, VersionReader
from tests.e2e.asking import rpc_messages
from tests.e2e.servers import LiveServer
from tests.serving.commands.running import run
from tests.support.packages import make_weights, write_package
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.long]

USERS = range(6)
INPUTS = {"user": [0, 1, 2, 3], "tags": [["a"], [], ["b"], ["c"]], "floats": [[0.1, 0.2, 0.3, 0.4]]}
GIVE_UP_S = 60


def broken_weights(seed):
    weights = make_weights(seed)
    weights["mlp_out/kernel"][:] = np.nan
    return weights


@pytest.fixture(params=[1, 2], ids=["one process", "two workers"])
def start(request, tmp_path):
    """Starts a server on versions 1 and 2 under a policy."""

    def begin(policy, *options, weights=make_weights):
        if not (tmp_path / "repository").exists():
            write_package(tmp_path / "repository", users=USERS)
            write_package(tmp_path / "repository", 2, users=USERS, weights=weights)
        (tmp_path / "serve.toml").write_text(policy)
        return LiveServer(
            tmp_path / "repository", "--workers", str(request.param), "--config", str(tmp_path / "serve.toml"),
            *options, log=tmp_path / "serve.log",
        )  # fmt: skip

    return begin


SPLIT = """
[model.small]
labels = { stable = 1, canary = 2 }
split = { stable = 50, canary = 50 }
[model.small.guard]
min_requests = 20
min_scores = 20
"""


def ask(server, key=None):
    """The version that answered a request."""
    headers = {"x-sticky-key": key} if key else {}
    status, found, _ = server.request(
        "POST", "/v1/models/small:predict", json.dumps({"inputs": INPUTS}).encode(), headers
    )
    assert status == 200
    return int({k.lower(): v for k, v in found.items()}["x-model-version"])


def model(server):
    return server.about()["models"]["small"]


def sample(server, name):
    """The value of a metric, summed over its labels."""
    text = server.get("/metrics")[2].decode()
    return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE))


def test_sticky_keys_keep_their_side_in_every_process_and_protocol(start):
    with start(SPLIT) as server:
        key_has_the_same_side_in_every_protocol(server)
        sides = {key: {ask(server, key) for _ in range(6)} for key in (f"user-{n}" for n in range(12))}
        assert all(len(side) == 1 for side in sides.values())
        assert {version for side in sides.values() for version in side} == {1, 2}
        status, reply = server.post_json(
            "/admin/models/small/policy", {"split": {"stable": 90, "canary": 10}}, method="PUT"
        )
        assert (status, reply["policy"]["split"]) == (200, {"stable": 90, "canary": 10})
        for key, side in sides.items():
            now = ask(server, key)
            assert now in side or now == 1


RPC_REQUESTS = rpc_messages(INPUTS["user"], INPUTS["tags"], INPUTS["floats"])


def ask_rpc(server, channel, key=None):
    """The versions that answered a request of either gRPC service, and the id that came back."""
    metadata = [("x-request-id", "abc"), *([("x-sticky-key", key)] if key else [])]
    for method, made in RPC_REQUESTS.items():
        _, call = channel.unary_unary(method).with_call(made, metadata=metadata, timeout=GIVE_UP_S)
        told = dict(call.trailing_metadata())
        yield int(told["x-model-version"]), told["x-request-id"]


def key_has_the_same_side_in_every_protocol(server):
    options = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}", options) for _ in range(4)]
    sides = {key: ask(server, key) for key in (f"user-{n}" for n in range(12))}
    for n, (key, side) in enumerate(sides.items()):
        assert list(ask_rpc(server, channels[n % 4], key)) == [(side, "abc")] * 2
    without = [version for _ in range(20) for version, _ in ask_rpc(server, channels[0])]
    assert 15 <= without.count(2) <= 25
    for channel in channels:
        channel.close()


def test_bad_canary_is_ejected_automatically_and_stays_out(start, tmp_path):
    with start(SPLIT, weights=broken_weights) as server:
        until(lambda: model(server)["out"], lambda: ask(server))
        assert model(server)["shares"] == {"1": 1.0}
        assert {ask(server) for _ in range(40)} == {1}
        assert model(server)["out"]["2"]["reason"].startswith("nonfinite: ")
        assert "small version 2 is removed from the split: " in (tmp_path / "serve.log").read_text()
        assert sample(server, "freshet_version_ejected") == 1
        assert sample(server, "freshet_scores_nonfinite_total") > 0
    with start(SPLIT) as server:
        assert {ask(server) for _ in range(20)} == {1}
        assert server.post_json("/admin/models/small/versions/2/readmit", {})[0] == 200
        until(lambda: ask(server) == 2)


def test_recorded_requests_warm_the_next_version_before_it_is_ready(start, tmp_path):
    recordings = tmp_path / "recordings"
    with start("", "--record", str(recordings), "--record-share", "1") as server:
        for _ in range(10):
            ask(server)
        until(lambda: sample(server, "freshet_recorded_requests_total") == 10)
    assert list(recordings.glob("small-w*.parquet"))
    pytest.importorskip("pyarrow")
    repository = tmp_path / "repository"
    said = run("recordings", "warmup", "small", "--recordings", str(recordings), "--repository", str(repository))
    assert said == "small 2: 10 requests stored for warm-up\n"
    reader = VersionReader(repository / "small" / "2")
    reader.verify()
    assert WARMUP in reader.manifest.files
    with start("") as server:
        # It answers for a moment before it says so.
        log = until(lambda: (text := (tmp_path / "serve.log").read_text()).count("freshet: ready in") == 2 and text)
        warm = [m.start() for m in re.finditer("small version 2 is warm: 10 requests, 3 buckets", log)]
        assert len(warm) == (1 if "--workers 1" in " ".join(server.process.args) else 2)
        assert warm[-1] < log.rindex("freshet: ready in")
        assert ask(server) == 2


def test_shadow_scores_answered_requests_and_reports_the_difference(start):
    policy = """
[model.small]
versions = "all"
labels = { stable = 1, next = 2 }
split = { stable = 1 }
shadow = "next"
shadow_share = 1.0
"""
    with start(policy) as server:
        assert model(server)["shadow"] == 2
        until(lambda: sample(server, "freshet_shadow_requests_total") >= 20, lambda: ask(server))
        assert sample(server, "freshet_shadow_difference_mean") == 0
        assert sample(server, "freshet_shadow_failures_total") == 0
        assert {ask(server) for _ in range(10)} == {1}
