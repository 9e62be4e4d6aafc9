"""A server that trusts one key, and a stranger who can write to its repository: requests go on, one line says why."""

import json
import shutil

import pytest

from freshet_serving.processor.package.signature import new_key
from freshet_serving.processor.repository.keyring import Keyring
from freshet_serving.processor.repository.log.chain_record import record_name
from freshet_serving.processor.repository.log.change_log import ChangeLog
from freshet_serving.processor.repository.model_repository import Repository
from tests.e2e.servers import ALONE, LiveServer
from tests.support.packages import make_delta, write_package
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.long]

USERS = list(range(20))
OCTETS = {"content-type": "application/octet-stream"}
INPUTS = {"user": [0, 3], "tags": [[], []], "floats": [[0.0] * 4] * 2}


def publish(root, step, keyring):
    version = Repository(root).with_keys(keyring).version("small", 1)
    return ChangeLog.of(version).publish(make_delta(step, USERS, dense_seed=step))


def generation(server):
    body = json.dumps({"inputs": INPUTS}).encode()
    status, headers, data = server.request("POST", "/v1/models/small:predict", body)
    assert status == 200, data
    return {name.lower(): value for name, value in headers.items()}["x-model-generation"]


def reason(server):
    chain = server.about()["models"]["small"]["served"]["1"]["chain"]
    return f"{chain['state']}: {chain['reason']}"


@pytest.mark.parametrize("workers", [ALONE, ("--workers", "2")])
def test_foreign_records_are_refused_in_one_line_while_serving_continues(tmp_path, workers):
    root, memory = tmp_path / "repository", str(tmp_path / "memory")
    private, public, key = new_key(str(tmp_path / "prod"))
    ours, theirs = Keyring.of(private), Keyring.of(new_key(str(tmp_path / "theirs"))[0], [public])
    write_package(root, users=USERS, keyring=ours)
    # Each delta brings other weights, which a guard would hold as soon as it has enough requests to see that.
    options = (*workers, "--delta-guard", "off", "--trust", str(public), "--trust-memory", memory)
    with LiveServer(root, *options, log=tmp_path / "log") as server:
        publish(root, 1, ours)
        until(lambda: generation(server) == "1.1")
        older = tmp_path / "older"
        shutil.copytree(root, older)
        publish(root, 2, ours)
        until(lambda: generation(server) == "1.2")
        publish(root, 3, theirs)
        until(lambda: reason(server).startswith(f"DIVERGED: record 3: expected a signature by key {key}, got key"))
        assert generation(server) == "1.2"
        write_package(root, 2, users=USERS)
        data = (root / "small/1/deltas/1.safetensors").read_bytes()
        until(lambda: "version 2 refused: manifest: expected a signature by key" in (tmp_path / "log").read_text())
        assert generation(server) == "1.2"
        status, _, answer = server.request("POST", "/admin/models/small/deltas", data, OCTETS, admin=True)
        assert (status, b"FRESHET_KEY" in answer) == (409, True), answer
        (root / "small/1" / record_name(3)).unlink()
        for name in ("chain/0000000002.json", "deltas/2.safetensors"):
            (root / "small/1" / name).unlink()
        until(lambda: reason(server).startswith("DIVERGED"))
        assert generation(server) == "1.2"
    shutil.rmtree(root / "small" / "2")
    again = LiveServer(root, *options, log=tmp_path / "again")
    try:
        wanted = "record 2: expected the one that was trusted here before, got a change log that ends before it"
        until(lambda: wanted in (tmp_path / "again").read_text(), within_s=30)
    finally:
        again.process.terminate()
        # Longer than the server's own budget for its end, which a slow machine may use up while workers start.
        again.process.wait(60)
