"""`freshet version` and `freshet rollback`, against a server and straight on a repository."""

import pytest

from freshet_serving.processor.errors import Conflict, FreshetError, NotFound
from freshet_serving.serving.commands.version_commands import version_line
from tests.serving.commands.running import run
from tests.support.packages import write_package


@pytest.fixture
def root(tmp_path):
    for version in (1, 2):
        write_package(tmp_path, version, users=range(2))
    return tmp_path


def test_rollback_asks_the_server_for_a_version_or_what_was_before(admin):
    address, processor = admin
    where = ("--admin", address)
    reached, note = run("rollback", "ctr", "2", "--reason", "bad night", *where).splitlines()
    assert reached == "ctr 2.9"
    assert note.startswith("Version 3 is withdrawn")
    with pytest.raises(FreshetError):
        run("rollback", "ctr", *where)
    assert run("delta", "rollback", "ctr", "3.16", *where) == run("rollback", "ctr", "3.16", *where)
    assert [call[2:4] for call in processor.calls] == [("2", "bad night"), ("", ""), ("3.16", ""), ("3.16", "")]


def test_versions_of_a_server_are_listed_and_decided(admin):
    address, processor = admin
    where = ("--admin", address)
    assert run("version", "list", "ctr", *where).splitlines() == [
        "ctr 4: withdrawn; by rollback; 1970-01-01 00:00:01 UTC: labels were all 0",
        "ctr 3: served as 3.17 by default; labels stable",
    ]
    assert run("version", "release", "ctr", "4", *where) == "ctr 4: released\n"
    assert run("version", "reject", "ctr", "4", "--reason", "again", *where) == "ctr 4: rejected\n"
    assert processor.calls == [("release_version", "ctr", 4, ""), ("reject_version", "ctr", 4, "again")]


def test_line_says_what_no_gate_judged_and_what_one_reported():
    entry = {
        "version": 3, "state": "available", "generation": "3.0", "default": True, "unjudged": "start", "reason": "",
        "by": "", "at": None, "gate": {"reasons": [], "reported": ["odds 1.1 times as high", "input 'age' is missing"]},
    }  # fmt: skip
    assert version_line("ctr", entry) == (
        "ctr 3: served as 3.0 by default; unjudged (start): reported: odds 1.1 times as high: "
        "reported: input 'age' is missing"
    )
    assert version_line("ctr", {**entry, "unjudged": "", "gate": None}) == "ctr 3: served as 3.0 by default"


def test_versions_of_a_repository_need_no_server(root):
    where = ("--repository", str(root))
    assert run("version", "list", "small", *where) == "small 2: available\nsmall 1: available\n"
    run("version", "reject", "small", "2", "--reason", "labels were all 0", *where)
    newest, _ = run("version", "list", "small", *where).splitlines()
    assert newest.startswith("small 2: withdrawn; ")
    assert newest.endswith("UTC: labels were all 0")
    with pytest.raises(Conflict, match="the only one that can be served"):
        run("version", "reject", "small", "1", *where)
    run("version", "release", "small", "2", *where)
    assert run("version", "list", "small", *where).startswith("small 2: available; ")
    with pytest.raises(NotFound):
        run("version", "release", "small", "7", *where)
