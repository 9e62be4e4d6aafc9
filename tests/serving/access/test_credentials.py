"""Files of keys while they change: what is taken, when, and that what is broken changes nothing."""

import pytest

from freshet_serving.processor.errors import BadInput
from freshet_serving.serving.access.access_guard import Unauthenticated
from freshet_serving.serving.access.credentials import AccessControl, CredentialFiles, Credentials
from freshet_serving.serving.access.key_file import changing
from freshet_serving.serving.access.rate_limiter import rate_limiter_memory
from tests.serving.access.keyed import Keyed
from tests.support.counters import counted


@pytest.fixture
def keyed(tmp_path):
    return Keyed(tmp_path)


@pytest.fixture
def access():
    return AccessControl("", rate_limiter_memory(2))


def lets_in(guard, keyed, name):
    try:
        guard.acquire("predict", keyed.headers(name)["authorization"].encode(), "")
    except Unauthenticated:
        return False
    return True


def settle(files):
    """Looks until nothing changes any more: a change is taken once it has stood still."""
    files.poll_once()
    files.poll_once()


def test_added_and_revoked_keys_take_effect_while_serving(keyed, access):
    early = access.guard(0)
    files = CredentialFiles({"api_keys": str(keyed.path)}, access.take)
    assert lets_in(early, keyed, "predict")
    keyed.add("late", ["predict"])
    assert not lets_in(early, keyed, "late")
    settle(files)
    assert lets_in(early, keyed, "late")
    assert lets_in(access.guard(1), keyed, "late")
    keyed.revoke("predict")
    settle(files)
    assert not lets_in(early, keyed, "predict")
    assert counted(files) == {"reloads": 2, "failures": 0}
    files.poll_once()
    assert counted(files) == {"reloads": 2, "failures": 0}


def test_changed_file_is_loaded_only_once_it_is_stable(keyed, access):
    guard = access.guard(0)
    files = CredentialFiles({"api_keys": str(keyed.path)}, access.take)
    for number in range(3):
        keyed.add(f"k{number}", ["predict"])
        files.poll_once()
        assert not lets_in(guard, keyed, f"k{number}")
    files.poll_once()
    assert lets_in(guard, keyed, "k2")
    assert counted(files)["reloads"] == 1


def test_broken_file_changes_nothing_and_is_reported_once(keyed, access, caplog):
    guard = access.guard(0)
    files = CredentialFiles({"api_keys": str(keyed.path)}, access.take)
    whole = keyed.path.read_bytes()
    keyed.path.write_bytes(whole[:-20])
    for _ in range(4):
        files.poll_once()
    assert lets_in(guard, keyed, "predict")
    assert caplog.text.count("keeping the old ones: ") == 1
    assert counted(files) == {"reloads": 0, "failures": 1}
    keyed.path.unlink()
    settle(files)
    assert lets_in(guard, keyed, "predict")
    assert counted(files)["failures"] == 2
    keyed.path.write_bytes(whole)
    keyed.path.chmod(0o600)
    settle(files)
    assert counted(files) == {"reloads": 1, "failures": 2}


def test_file_readable_by_others_is_loaded_once_made_private(keyed, access):
    keyed.path.chmod(0o644)
    with pytest.raises(BadInput, match=r"api_keys: .* chmod 600"):
        CredentialFiles({"api_keys": str(keyed.path)}, access.take)
    keyed.path.chmod(0o600)
    files = CredentialFiles({"api_keys": str(keyed.path)}, access.take)
    keyed.path.chmod(0o644)
    settle(files)
    assert counted(files)["failures"] == 1
    keyed.path.chmod(0o600)
    settle(files)
    assert counted(files)["reloads"] == 1


def test_other_process_uses_the_same_keys_and_no_older_ones(keyed, access):
    there, told = AccessControl("", rate_limiter_memory(2)), []
    files = CredentialFiles({"api_keys": str(keyed.path)}, access.take)
    access.pass_on(lambda credentials: told.append(credentials.message()))
    guard = there.guard(1)
    assert not lets_in(guard, keyed, "predict")
    keyed.revoke("predict")
    settle(files)
    first, second = map(Credentials.of, told)
    there.take(second)
    there.take(first)
    assert not lets_in(guard, keyed, "predict")
    assert lets_in(guard, keyed, "all")


def test_without_files_nothing_is_read_and_no_thread_starts(access):
    files = CredentialFiles({"api_keys": ""}, access.take)
    files.start()
    assert not files._thread.is_alive()
    files.close()


def test_thread_polls_without_being_called_and_ends(keyed, access, monkeypatch):
    from tests.support.waiting import until

    monkeypatch.setattr("freshet_serving.serving.access.credentials.LOOK_S", 0.01)
    files = CredentialFiles({"api_keys": str(keyed.path)}, access.take)
    files.start()
    with changing(keyed.path) as held:
        held[0] = held[0].without("all")
    until(lambda: counted(files)["reloads"] == 1)
    files.close()
    assert not files._thread.is_alive()


def test_admin_token_equals_a_key_with_the_admin_scopes(keyed):
    access = AccessControl("t0ken", rate_limiter_memory(2))
    guard = access.guard(0)
    CredentialFiles({"api_keys": str(keyed.path)}, access.take)
    for scope in ("admin:read", "admin:write"):
        guard.acquire(scope, b"Bearer t0ken", "")
        guard.acquire(scope, keyed.headers(scope.replace(":", "-"))["authorization"].encode(), "")
