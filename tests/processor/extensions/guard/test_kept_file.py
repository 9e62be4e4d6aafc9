"""Kept requests over a restart: one file a model, which is believed only if it is whole, recent and of these inputs."""

import json
import os

import numpy as np
import pytest

from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.extensions.guard.kept_file import NOTHING, OLDEST_S, KeptFiles, ServedBefore
from freshet_serving.processor.extensions.guard.kept_requests import (
    MOST_NBYTES,
    KeptRequest,
    dump_requests,
    parse_requests,
)
from freshet_serving.processor.package.manifest_entries import Input
from freshet_serving.processor.versions.erasure import ErasedUser

INPUTS = [Input("user", "int64"), Input("floats", "float32", columns=4)]


@pytest.fixture
def files(tmp_path):
    return KeptFiles(tmp_path, "repository", FakeClock(unix_s=os.stat(tmp_path).st_mtime))


def only(folder):
    (path,) = folder.iterdir()
    return path


def test_requests_are_read_again_after_a_restart(files, tmp_path):
    files.write("small", INPUTS, b"requests", [["mean", "ctr", [0.1]]])
    restarted = KeptFiles(tmp_path, "repository", FakeClock(unix_s=os.stat(tmp_path).st_mtime))
    assert restarted.read("small", INPUTS[::-1]) == (b"requests", [["mean", "ctr", [0.1]]])
    assert restarted.read("other", INPUTS) == NOTHING
    assert KeptFiles(tmp_path, "elsewhere", FakeClock()).read("small", INPUTS) == NOTHING


def test_what_was_served_is_known_after_a_restart(files, tmp_path):
    before = ServedBefore(2, {1: "a", 2: "b"})
    files.write("small", INPUTS, b"requests", [], before)
    assert files.served("small") == before
    assert files.read("small", INPUTS) == (b"requests", [])
    assert files.served("other") is None
    files.write("small", INPUTS, b"requests", [])
    assert files.served("small") is None


@pytest.mark.parametrize("served", [[], [1], ["x", {}], [1, {"x": "a"}], [1, {"1": 2}], [1, []], [1e999, {}], 7])
def test_malformed_record_of_what_was_served_counts_as_none(files, tmp_path, served):
    files.write("small", INPUTS, b"requests", [])
    line, _, requests = only(tmp_path).read_bytes().partition(b"\n")
    only(tmp_path).write_bytes(json.dumps({**json.loads(line), "served": served}).encode() + b"\n" + requests)
    assert files.served("small") is None
    assert files.read("small", INPUTS) == (b"requests", [])


def test_file_is_readable_by_its_user_alone(files, tmp_path):
    files.write("small", INPUTS, b"requests", [])
    assert only(tmp_path).stat().st_mode & 0o777 == 0o600


def test_other_inputs_discard_the_requests(files, caplog):
    caplog.set_level("INFO", logger="freshet.gate")
    files.write("small", INPUTS, b"requests", [])
    assert files.read("small", [Input("user", "string"), INPUTS[1]]) == NOTHING
    assert "kept requests of small are discarded: its inputs are others now" in caplog.text


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"[" * 5000,
        b"[]\nrequests",
        json.dumps({"format": "other"}).encode() + b"\nrequests",
        bytes(3 * MOST_NBYTES),
    ],
)
def test_damaged_file_is_ignored_with_a_line(files, tmp_path, caplog, content):
    files.write("small", INPUTS, b"requests", [])
    only(tmp_path).write_bytes(content)
    assert files.read("small", INPUTS) == NOTHING
    assert "the file in the scratch folder cannot be read" in caplog.text


@pytest.mark.parametrize("cut", [slice(0, -1), slice(1, None)])
def test_cut_file_is_ignored(files, tmp_path, cut):
    files.write("small", INPUTS, b"requests", [])
    path = only(tmp_path)
    path.write_bytes(path.read_bytes()[cut])
    assert files.read("small", INPUTS) == NOTHING


def test_link_and_pipe_are_no_files(files, tmp_path):
    files.write("small", INPUTS, b"requests", [])
    path = only(tmp_path)
    elsewhere = path.rename(tmp_path / "elsewhere")
    path.symlink_to(elsewhere)
    assert files.read("small", INPUTS) == NOTHING
    path.unlink()
    os.mkfifo(path)
    assert files.read("small", INPUTS) == NOTHING


def test_old_requests_are_not_read(tmp_path):
    clock = FakeClock(unix_s=os.stat(tmp_path).st_mtime)
    files = KeptFiles(tmp_path, "repository", clock)
    files.write("small", INPUTS, b"requests", [])
    clock.advance(OLDEST_S + 60)
    assert files.read("small", INPUTS) == NOTHING


def test_unchanged_requests_are_not_written_again(files, tmp_path):
    files.write("small", INPUTS, b"requests", [])
    only(tmp_path).unlink()
    files.write("small", INPUTS, b"requests", [])
    assert not list(tmp_path.iterdir())
    files.write("small", INPUTS, b"requests", [["mean", "ctr", [0.1]]])
    assert list(tmp_path.iterdir())
    files.write("small", INPUTS, b"others", [])
    assert files.read("small", INPUTS) == (b"others", [])


def test_folder_that_cannot_be_written_to_is_a_line_in_the_log(tmp_path, caplog):
    files = KeptFiles(tmp_path / "gone", "repository", FakeClock())
    files.write("small", INPUTS, b"requests", [])
    assert "cannot keep the requests of small in the scratch folder: No such file" in caplog.text


USER = 0x5EC2E7


def test_erased_user_is_in_no_file(files, tmp_path):
    requests = [KeptRequest({"user": np.array([user])}, 1) for user in (3, USER, 5)]
    learned, served = [["mean", "ctr", [0.1]]], ServedBefore(2, {2: "b"})
    files.write("small", INPUTS, dump_requests(requests), learned, served)
    assert files.erase(ErasedUser("other", ("user",), str(USER))) == 0
    assert files.erase(ErasedUser("small", ("user",), str(USER))) == 1
    assert USER.to_bytes(8, "little") not in only(tmp_path).read_bytes()
    kept, still = files.read("small", INPUTS)
    assert (still, files.served("small")) == (learned, served)
    assert sorted(int(request.inputs["user"][0]) for request in parse_requests(kept)) == [3, 5]
    assert files.erase(ErasedUser("small", ("user",), str(USER))) == 0


@pytest.mark.parametrize("content", [b"", b"no json\n", b"[]\nrequests", b"{}\nrequests"])
def test_file_that_cannot_be_read_does_not_survive_an_erasure(files, tmp_path, content):
    files.write("small", INPUTS, b"requests", [])
    only(tmp_path).write_bytes(content)
    files.erase(ErasedUser("small", ("user",), str(USER)))
    assert files.read("small", INPUTS) == NOTHING
    assert all(b"requests" not in path.read_bytes() for path in tmp_path.iterdir())
