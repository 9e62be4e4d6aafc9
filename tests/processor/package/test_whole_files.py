"""What of a repository is opened: regular files of a bounded size, and nothing that holds up or ends who reads it."""

import hashlib
import os
import socket

import pytest

from freshet_serving.processor.errors import Corrupt, NotFound
from freshet_serving.processor.package import file_sha256, inside, open_regular, read_file, whole_files


def put(kind, path):
    """Something that is no regular file, at this path."""
    if kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a socket":
        with socket.socket(socket.AF_UNIX) as held:
            held.bind(str(path))
    elif kind == "a device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    return path


@pytest.mark.parametrize("kind", ["a pipe", "a socket", "a device", "a folder"])
def test_file_that_is_not_regular_is_refused_at_once(tmp_path, kind):
    path = put(kind, tmp_path / "model.json")
    for read in (open_regular, file_sha256, lambda path: read_file(path, 1 << 20)):
        with pytest.raises(Corrupt, match=f"model.json: expected a regular file, got {kind}"):
            read(path)


def test_pipe_that_replaces_a_file_is_refused_without_blocking(tmp_path, monkeypatch):
    path, stat = tmp_path / "file", os.stat
    path.write_bytes(b"x")

    def replaced_meanwhile(asked):
        found = stat(asked)
        os.unlink(path)
        os.mkfifo(path)
        return found

    monkeypatch.setattr(whole_files.os, "stat", replaced_meanwhile)
    with pytest.raises(Corrupt, match="got a pipe"):
        open_regular(path)


def test_file_is_read_whole_from_pieces_of_any_size(tmp_path, monkeypatch):
    path, data = tmp_path / "file", os.urandom(1000)
    path.write_bytes(data)
    monkeypatch.setattr(whole_files, "READ_NBYTES", 7)
    assert read_file(path, 1000).tobytes() == data
    assert file_sha256(path) == hashlib.sha256(data).hexdigest()
    path.write_bytes(b"")
    assert read_file(path, 0).tobytes() == b""


def test_file_over_its_size_limit_is_refused_before_allocating_memory(tmp_path):
    path = tmp_path / "sparse"
    path.touch()
    os.truncate(path, 1 << 40)
    with pytest.raises(Corrupt, match=f"sparse: expected at most 100 bytes, got {1 << 40}"):
        read_file(path, 100)


def test_file_truncated_while_being_read_is_an_error(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100)
    monkeypatch.setattr(whole_files, "READ_NBYTES", 10)
    empty = whole_files.np.empty

    def shortened(*arguments):
        os.truncate(path, 50)
        return empty(*arguments)

    monkeypatch.setattr(whole_files.np, "empty", shortened)
    with pytest.raises(Corrupt, match="file: was cut short while it was read"):
        read_file(path, 100)


def test_missing_file_is_reported_as_missing(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "nothing", 1)


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../x", "a\0b", "\udc80\0"])
def test_relative_path_never_leaves_its_root(tmp_path, path):
    with pytest.raises(NotFound) as refused:
        inside(tmp_path, path)
    assert str(tmp_path) not in str(refused.value)


def test_paths_that_stay_inside_are_resolved(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").symlink_to("a")
    assert inside(tmp_path, "b/x/../y") == tmp_path.resolve() / "a" / "y"
    assert inside(tmp_path, "") == tmp_path.resolve()
