"""Deltas on a live server: hot loads under traffic, refusals, rollback, restarts."""

import http.client
import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest

from freshet_serving.processor.package.delta import write_delta
from freshet_serving.processor.package.tensors import parse_tensors
from tests.e2e.servers import ALONE, LiveServer
from tests.support.packages import make_delta, make_inputs, make_weights, reference, tag_id, write_package
from tests.support.waiting import until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.long,
    pytest.mark.unguarded("every row gets a value that tells the delta, so all scores move"),
]

USERS = list(range(20))
PROBE = [0, 3, 7, 19, 55]
TAGS = [["a", "zz", "b", "c"][: u % 5] for u in range(len(PROBE))]
FLOATS = make_inputs(PROBE)["floats"]
INPUTS = {"user": PROBE, "tags": TAGS, "floats": FLOATS.tolist()}
TAG_MODEL = dict.fromkeys([tag_id(t) for t in "abc"], 0)


def expected(step):
    """Scores of the probe once delta `step` (all users, new dense weights) is served."""
    return reference(dict.fromkeys(USERS, step), TAG_MODEL, make_weights(step), PROBE, TAGS, FLOATS)


def delta_bytes(tmp_path, step, users=USERS, dense_seed=True, **changes):
    path = tmp_path / f"upload-{step}.safetensors"
    write_delta(path, make_delta(step, users, dense_seed=step if dense_seed else None, **changes))
    return path.read_bytes()


@pytest.fixture
def live(tmp_path):
    repository = tmp_path / "repository"
    write_package(repository, users=USERS)
    with LiveServer(repository, *ALONE, log=tmp_path / "serve.log") as server:
        server.repository = repository
        yield server


def test_every_reply_equals_its_named_generation_during_deltas(live, tmp_path):
    wanted = {f"1.{step}": expected(step) for step in range(31)}
    stop, problems, seen = threading.Event(), [], set()

    def client():
        connection = http.client.HTTPConnection("127.0.0.1", live.http_port, timeout=60)
        while not stop.is_set():
            try:
                scores, generation = live.predict("small", INPUTS, connection)
            except Exception as error:
                problems.append(error)
                return
            seen.add(generation)
            if not np.allclose(np.ravel(scores), wanted[generation], atol=1e-5):
                problems.append((generation, scores))
        connection.close()

    clients = [threading.Thread(target=client) for _ in range(4)]
    for thread in clients:
        thread.start()
    try:
        for step in range(1, 31):
            if step % 2:
                status, reply = live.upload("small", delta_bytes(tmp_path, step))
                assert (status, reply["generation"]) == (200, f"1.{step}"), reply
                assert reply["rows"] == len(USERS)
            else:
                write_delta(
                    live.repository / "small/1/deltas" / f"{step}.safetensors", make_delta(step, USERS, dense_seed=step)
                )
                until(lambda step=step: live.generation("small") == f"1.{step}")
    finally:
        stop.set()
        for thread in clients:
            thread.join()
    assert not problems
    assert len(seen) > 5


def spoil_nan(data):
    arrays = dict(parse_tensors(np.frombuffer(data, np.uint8), "delta").arrays)
    start = data.index(arrays["tables/user/rows"].tobytes())
    return data[:start] + np.float32(np.nan).tobytes() + data[start + 4 :]


BAD = {
    "truncated": (lambda d, t: d[: len(d) // 2], 400),
    "empty": (lambda d, t: b"", 400),
    "bit flipped in a row": (lambda d, t: d[:-5] + bytes([d[-5] ^ 1]) + d[-4:], 400),
    "bit flipped in the header": (lambda d, t: d[:200] + bytes([d[200] ^ 1]) + d[201:], 400),
    "not a number in a row": (lambda d, t: spoil_nan(d), 400),
    "a gap in the chain": (lambda d, t: delta_bytes(t, 3), 409),
    "an old step again": (lambda d, t: delta_bytes(t, 1), 409),
    "a wrong parent": (lambda d, t: delta_bytes(t, 2, parent=0), 409),
    "another version's": (lambda d, t: delta_bytes(t, 2, version=9), 409),
    "an unknown table": (lambda d, t: rename_table(t), 400),
    "a wrong shape": (lambda d, t: wrong_shape(t), 400),
    "a NaN that its checksum covers": (lambda d, t: honest_nan(t), 400),
}


def rename_table(tmp_path):
    delta = make_delta(2, [1])
    delta.tables["other"] = delta.tables.pop("user")
    write_delta(tmp_path / "x.safetensors", delta)
    return (tmp_path / "x.safetensors").read_bytes()


def wrong_shape(tmp_path):
    delta = make_delta(2, [1], dense_seed=2)
    delta.dense["mlp_0/bias"] = np.zeros(3, np.float32)
    write_delta(tmp_path / "x.safetensors", delta)
    return (tmp_path / "x.safetensors").read_bytes()


def honest_nan(tmp_path):
    delta = make_delta(2, [1])
    delta.tables["user"].rows[0, 0] = np.nan
    write_delta(tmp_path / "x.safetensors", delta)
    return (tmp_path / "x.safetensors").read_bytes()


def test_invalid_delta_is_a_clear_4xx_and_changes_nothing(live, tmp_path):
    assert live.upload("small", delta_bytes(tmp_path, 1))[0] == 200
    good = delta_bytes(tmp_path, 2)
    files = sorted(p.name for p in (live.repository / "small/1/deltas").iterdir())
    for name, (spoil, wanted) in BAD.items():
        status, reply = live.upload("small", spoil(good, tmp_path))
        assert status == wanted, (name, reply)
        assert set(reply) == {"error"}
        assert str(live.repository) not in reply["error"]
        scores, generation = live.predict("small", INPUTS)
        assert generation == "1.1", name
        np.testing.assert_allclose(np.ravel(scores), expected(1), atol=1e-5)
    assert sorted(p.name for p in (live.repository / "small/1/deltas").iterdir()) == files
    assert live.upload("small", good)[0] == 200
    assert live.predict("small", INPUTS)[1] == "1.2"


def test_rollback_is_served_at_once_and_survives_a_restart(live, tmp_path):
    for step in (1, 2, 3):
        assert live.upload("small", delta_bytes(tmp_path, step))[0] == 200
    status, reply = live.post_json("/admin/models/small/rollback", {"generation": "1.1"})
    assert status == 200, reply
    scores, generation = live.predict("small", INPUTS)
    assert generation == "1.1"
    np.testing.assert_allclose(np.ravel(scores), expected(1), atol=1e-5)
    with LiveServer(live.repository, *ALONE, log=tmp_path / "second.log") as second:
        scores, generation = second.predict("small", INPUTS)
        assert generation == "1.1"
        np.testing.assert_allclose(np.ravel(scores), expected(1), atol=1e-5)


def test_killed_server_restarts_at_the_last_acknowledged_generation(live, tmp_path):
    for step in (1, 2):
        assert live.upload("small", delta_bytes(tmp_path, step))[0] == 200
    os.kill(live.process.pid, signal.SIGKILL)
    live.process.wait()
    with LiveServer(live.repository, *ALONE, log=tmp_path / "second.log") as second:
        scores, generation = second.predict("small", INPUTS)
        assert generation == "1.2"
        np.testing.assert_allclose(np.ravel(scores), expected(2), atol=1e-5)


def test_new_version_takes_over_without_a_failed_request(live):
    stop, problems, seen = threading.Event(), [], set()

    def client():
        while not stop.is_set():
            try:
                seen.add(live.predict("small", INPUTS)[1])
            except Exception as error:
                problems.append(error)
                return

    thread = threading.Thread(target=client)
    thread.start()
    try:
        write_package(live.repository, version=2, users=USERS, seed=9)
        until(lambda: "2.0" in seen or problems)
    finally:
        stop.set()
        thread.join()
    assert not problems
    assert seen == {"1.0", "2.0"}


def test_server_of_a_compiled_package_does_not_load_tensorflow(live):
    live.predict("small", INPUTS)
    maps = Path(f"/proc/{live.process.pid}/maps").read_text()
    assert "onnxruntime" in maps
    assert "tensorflow" not in maps
