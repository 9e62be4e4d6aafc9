"""Deltas on a live server: hot loads under traffic, refusals, rollback, restarts."""

from pathlib import Path

import numpy as np
import pytest

from freshet_serving.processor.package.delta import write_delta
from freshet_serving.processor.package.tensors import parse_tensors
from tests.e2e.askers import askers, problems
from tests.e2e.servers import ALONE, LiveServer
from tests.support.packages import make_delta, make_inputs, make_weights, reference, tag_id, write_package
from tests.support.waiting import until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.long,
    pytest.mark.unguarded("every row gets a value that tells the delta, so all scores move"),
]

UNGUARDED = (*ALONE, "--delta-guard", "off")
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


def expected_of(generation):
    return expected(int(generation.partition(".")[2]))


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    folder = tmp_path_factory.mktemp("deltas")
    write_package(folder / "repository", users=USERS)
    with LiveServer(folder / "repository", *UNGUARDED, log=folder / "serve.log") as server:
        server.repository = folder / "repository"
        yield server


def serves(server, step):
    scores, generation = server.predict("small", INPUTS)
    assert generation == f"1.{step}"
    np.testing.assert_allclose(np.ravel(scores), expected(step), atol=1e-5)


def test_server_of_a_compiled_package_does_not_load_tensorflow(live):
    serves(live, 0)
    maps = Path(f"/proc/{live.process.pid}/maps").read_text()
    assert "onnxruntime" in maps
    assert "tensorflow" not in maps


def test_every_reply_equals_its_named_generation_during_deltas(live, tmp_path):
    with askers(live, INPUTS, expected_of) as running:
        for step in range(1, 21):
            if step % 2:
                status, reply = live.upload("small", delta_bytes(tmp_path, step))
                assert (status, reply["generation"]) == (200, f"1.{step}"), reply
                assert reply["rows"] == len(USERS)
            else:
                delta = make_delta(step, USERS, dense_seed=step)
                write_delta(live.repository / "small/1/deltas" / f"{step}.safetensors", delta)
                until(lambda step=step: live.generation("small") == f"1.{step}")
    assert problems(running) == []
    assert len({generation for asker in running for generation in asker.generations}) > 5


def spoil_nan(data):
    arrays = dict(parse_tensors(np.frombuffer(data, np.uint8), "delta").arrays)
    start = data.index(arrays["tables/user/rows"].tobytes())
    return data[:start] + np.float32(np.nan).tobytes() + data[start + 4 :]


def rows_of_another_table(step):
    delta = make_delta(step, [1])
    delta.tables["other"] = delta.tables.pop("user")
    return delta


def bias_of_another_shape(step):
    delta = make_delta(step, [1], dense_seed=step)
    delta.dense["mlp_0/bias"] = np.zeros(3, np.float32)
    return delta


def nan_that_its_checksum_covers(step):
    delta = make_delta(step, [1])
    delta.tables["user"].rows[0, 0] = np.nan
    return delta


BAD_BYTES = {
    "truncated": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "bit flipped in a row": lambda data: data[:-5] + bytes([data[-5] ^ 1]) + data[-4:],
    "bit flipped in the header": lambda data: data[:200] + bytes([data[200] ^ 1]) + data[201:],
    "not a number in a row": spoil_nan,
}
BAD_DELTAS = {
    "a gap in the chain": (lambda step: make_delta(step + 1, USERS), 409),
    "an old step again": (lambda step: make_delta(step - 1, USERS), 409),
    "a wrong parent": (lambda step: make_delta(step, USERS, parent=0), 409),
    "another version's": (lambda step: make_delta(step, USERS, version=9), 409),
    "an unknown table": (rows_of_another_table, 400),
    "a wrong shape": (bias_of_another_shape, 400),
    "a NaN that its checksum covers": (nan_that_its_checksum_covers, 400),
}


def test_invalid_delta_is_a_clear_4xx_and_changes_nothing(live, tmp_path):
    step = live.next_step("small") + 1
    assert live.upload("small", delta_bytes(tmp_path, step - 1))[0] == 200
    good = delta_bytes(tmp_path, step)
    files = sorted(p.name for p in (live.repository / "small/1/deltas").iterdir())
    bad = {name: (spoil(good), 400) for name, spoil in BAD_BYTES.items()}
    for name, (make, status) in BAD_DELTAS.items():
        write_delta(tmp_path / "bad", make(step))
        bad[name] = (tmp_path / "bad").read_bytes(), status
    for name, (data, refused) in bad.items():
        status, reply = live.upload("small", data)
        assert status == refused, (name, reply)
        assert set(reply) == {"error"}
        assert str(live.repository) not in reply["error"]
        serves(live, step - 1)
    assert sorted(p.name for p in (live.repository / "small/1/deltas").iterdir()) == files
    assert live.upload("small", good)[0] == 200
    serves(live, step)


def test_new_version_takes_over_without_a_failed_request(live):
    before = live.generation("small")
    with askers(live, INPUTS, count=1) as running:
        write_package(live.repository, version=2, users=USERS, seed=9)
        until(lambda: "2.0" in running[0].generations)
    assert problems(running) == []
    assert running[0].generations == [before, "2.0"]


def test_rollback_is_served_at_once_and_survives_a_kill_and_a_restart(tmp_path):
    repository = tmp_path / "repository"
    write_package(repository, users=USERS)
    with LiveServer(repository, *ALONE, log=tmp_path / "first.log") as first:
        for step in (1, 2, 3):
            assert first.upload("small", delta_bytes(tmp_path, step))[0] == 200
        status, reply = first.post_json("/admin/models/small/rollback", {"generation": "1.1"})
        assert status == 200, reply
        serves(first, 1)
        first.process.kill()
    with LiveServer(repository, *ALONE, log=tmp_path / "second.log") as second:
        serves(second, 1)
        assert second.upload("small", delta_bytes(tmp_path, 4, parent=1))[0] == 200
        second.process.kill()
    with LiveServer(repository, *ALONE, log=tmp_path / "third.log") as third:
        serves(third, 4)
