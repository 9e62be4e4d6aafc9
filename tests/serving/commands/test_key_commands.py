"""The life of a key by the command line: made, trusted, replaced by another, and what a server remembers forgotten."""

import pytest

from freshet_serving.processor.errors import BadInput, Conflict
from freshet_serving.processor.repository.keyring import Keyring
from freshet_serving.processor.repository.trust_memory import TrustMemory
from tests.processor.versions.models import USERS
from tests.serving.commands.running import run
from tests.support.packages import write_package
from tests.support.signing import signed_delta


@pytest.fixture
def keys(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("old", "new"):
        run("keys", "new", "--out", name)
    return tmp_path


def shown(name):
    return run("keys", "show", name).strip()


def test_repository_moves_from_unsigned_to_a_key_and_the_next(keys):
    write_package(keys / "repository", users=USERS)
    old, new = shown("old.pub"), shown("new.key")
    re_sign = ("keys", "resign", "small", "--repository", "repository")
    told = run(*re_sign, "--key", "old.key", "--unsigned")
    assert f"small 1: signed by key {old}, edition 1" in told
    signed_delta(keys / "repository", 1, [1], keyring=Keyring.of("old.key"))
    inspect = ("inspect", "small", "--repository", "repository")
    assert f"small 1: signed by key {old}: " in run(*inspect, "--trust", "old.pub")
    assert f"signed by key {old}, edition 1" in run(*inspect)
    assert f"key {old}" in run("delta", "list", "small", "--repository", "repository").replace("\n", " ")
    told = run(*re_sign, "--key", "new.key", "--trust", "old.pub")
    assert f"small 1: signed by key {new}, edition 2, and vouches for 1 records" in told
    assert f"small 1: signed by key {new}: " in run(*inspect, "--trust", "new.pub")
    failed = run(*inspect, "--trust", "old.pub", code=1)
    assert f"small 1: manifest: expected a signature by key {old}, got key {new}" in failed


def test_keys_are_not_replaced_and_resigning_needs_one(keys):
    with pytest.raises(Conflict, match="never replaced"):
        run("keys", "new", "--out", "old")
    write_package(keys / "repository", users=USERS)
    with pytest.raises(BadInput, match="key: expected --key or FRESHET_KEY"):
        run("keys", "resign", "small", "--repository", "repository")


def test_accept_forgets_the_trusted_state(keys):
    TrustMemory(keys / "memory").note_record("small", 1, 3, "ab" * 32)
    accept = ("keys", "accept", "small", "--trust-memory", "memory")
    assert run(*accept) == "small: forgot what was trusted\n"
    assert run(*accept) == "small: nothing to forget\n"
    with pytest.raises(BadInput, match="trust_memory: "):
        run("keys", "accept", "small")
