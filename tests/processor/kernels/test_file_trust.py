"""Compiled code is read only where this user or root alone can have written it."""

import grp
import os
import pwd
from types import SimpleNamespace

import pytest

from freshet_serving.processor.kernels import file_trust
from freshet_serving.processor.kernels.file_trust import is_trusted


@pytest.fixture
def file(tmp_path):
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o755)
    path = folder / "code.kernels"
    path.write_bytes(b"code")
    path.chmod(0o644)
    return path


def test_own_file_in_own_folder_is_trusted(file):
    assert is_trusted(file)
    assert is_trusted(file.parent)


@pytest.mark.parametrize("mode", [0o646, 0o666, 0o777])
def test_file_that_others_may_write_is_not_trusted(file, mode):
    file.chmod(mode)
    assert not is_trusted(file)


def test_folder_that_others_may_write_is_not_trusted(file):
    file.parent.chmod(0o777)
    assert not is_trusted(file)


def test_sticky_folder_protects_what_it_holds_but_may_be_filled_by_anybody(file):
    file.parent.chmod(0o1777)
    assert is_trusted(file)
    assert not is_trusted(file.parent)


def test_missing_file_and_link_to_nothing_are_not_trusted(file):
    link = file.with_name("link")
    link.symlink_to(file.with_name("missing"))
    assert not is_trusted(link)
    assert not is_trusted(file.with_name("missing"))


def test_link_is_judged_by_its_target(file, tmp_path):
    target = tmp_path / "target"
    target.write_bytes(b"")
    target.chmod(0o666)
    link = file.with_name("link")
    link.symlink_to(target)
    assert not is_trusted(link)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
@pytest.mark.parametrize("path", ["file", "folder"])
def test_owner_must_be_this_user_or_root(file, path):
    os.chown(file if path == "file" else file.parent, 12345, -1)
    assert not is_trusted(file)


def groups(monkeypatch, members=(), name="ann"):
    """Make the group of new files the primary group of the user `ann`, who runs this process."""
    gid = os.getegid()
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: SimpleNamespace(pw_name="ann", pw_gid=gid))
    monkeypatch.setattr(grp, "getgrgid", lambda gid: SimpleNamespace(gr_name=name, gr_mem=list(members)))
    assert file_trust.pwd is pwd


def test_write_permission_of_a_private_group_is_accepted(file, monkeypatch):
    os.chown(file, -1, os.getegid())
    file.chmod(0o664)
    groups(monkeypatch)
    assert is_trusted(file)


@pytest.mark.parametrize("shared", [{"members": ("ben",)}, {"name": "staff"}])
def test_write_permission_of_a_shared_group_is_refused(file, monkeypatch, shared):
    os.chown(file, -1, os.getegid())
    file.chmod(0o664)
    groups(monkeypatch, **shared)
    assert not is_trusted(file)


def test_group_without_an_entry_is_refused(file, monkeypatch):
    def missing(uid):
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", missing)
    file.chmod(0o664)
    assert not is_trusted(file)
