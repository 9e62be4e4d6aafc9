"""Keys at rest: what the file may say, what it never says, and who may read it."""

import contextlib
import fcntl
import hashlib
import math
import os
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.processor.errors import BadInput, Conflict, NotFound
from freshet_serving.serving.access.key_file import ApiKey, ApiKeys, RateLimits, changing, read_private
from freshet_serving.serving.access.scopes import SCOPES

DIGEST = "ab" * 32
KEY = f'[[keys]]\nname = "web"\nsha256 = "{DIGEST}"\nscopes = ["predict"]\n'

limits = st.builds(
    RateLimits, st.one_of(st.just(0.0), st.floats(1e-3, 1e6)), st.one_of(st.just(0), st.integers(1, 1 << 20))
)
keys = st.lists(
    st.builds(
        ApiKey,
        st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True),
        st.binary(min_size=32, max_size=32),
        st.frozensets(st.sampled_from(SCOPES), min_size=1),
        st.one_of(st.just(math.inf), st.integers(0, 4_000_000_000).map(float)),
        limits,
    ),
    max_size=8,
    unique_by=(lambda key: key.name, lambda key: key.sha256),
)


@given(keys, limits)
def test_key_file_round_trips(found, address):
    told = ApiKeys(tuple(found), address)
    assert ApiKeys.parse(told.text().encode()) == told


@given(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(lambda text: (KEY + text).encode())))
def test_arbitrary_bytes_are_keys_or_refused_in_one_line(data):
    told = ""
    try:
        ApiKeys.parse(data)
    except BadInput as error:
        told = str(error)
    assert not told or told.isprintable()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("keys = 1", r"keys: expected \[\[keys\]\] tables, got a number"),
        ("a = " + "[" * 100_000, "api_keys: expected TOML"),
        (KEY + "colour = 1", r"keys\[0\]: expected .*, got 'colour'"),
        (KEY.replace("web", "w b"), r"keys\[0\].name: expected up to 64 letters"),
        (KEY.replace('"web"', "5"), r"keys\[0\].name: expected up to 64 letters, .*, got 5$"),
        (KEY.replace("web", "w" * 80), r"keys\[0\].name: expected up to 64 letters, .*, got 'w{64}'$"),
        (KEY.replace(DIGEST, DIGEST.upper()), r"keys\[0\].sha256: expected 64 hexadecimal digits"),
        (KEY.replace('"predict"', ""), r"keys\[0\].scopes: expected a list of predict"),
        (KEY.replace("predict", "root"), r"keys\[0\].scopes: expected some of predict, .*, got 'root'"),
        (KEY + "expires = 2027-01-01", r"expires: expected a time with its zone"),
        (KEY + "expires = 2027-01-01T00:00:00", r"expires: expected a time with its zone"),
        (KEY + "rate = nan", r"keys\[0\].rate: expected requests a second"),
        (KEY + "rate = 0", r"keys\[0\].rate: expected requests a second"),
        (KEY + "rate = true", r"keys\[0\].rate: expected requests a second"),
        (KEY + "concurrency = -1", r"keys\[0\].concurrency: expected 1 to"),
        (KEY + f"concurrency = -{10**80}", r"keys\[0\].concurrency: expected 1 to \d+, got -10{62}$"),
        (KEY + KEY, "expected each name once, got the one of 'web' again"),
        (KEY + KEY.replace("web", "other"), "expected each sha256 once, got the one of 'web' again"),
        ("[address]\nrate = 1\nburst = 2", "address: expected concurrency, rate, got 'burst'"),
        ("[[keys]]\n" * 5000, "expected at most 4096 keys, got 5000"),
    ],
)
def test_invalid_key_file_is_refused_with_its_field(text, said):
    with pytest.raises(BadInput, match=said):
        ApiKeys.parse(text.encode())


def test_key_is_found_by_its_hash_only():
    known, secret = ApiKeys().added("web", ["predict"])
    assert known.find(secret.encode()).name == "web"
    for wrong in (
        b"",
        secret[:-1].encode(),
        secret.encode() + b"x",
        known.keys[0].sha256,
        known.keys[0].sha256.hex().encode(),
    ):
        assert known.find(wrong) is None


def test_secrets_are_unique_and_not_stored_in_the_file():
    known = ApiKeys()
    secrets = []
    for number in range(20):
        known, secret = known.added(f"k{number}", ["predict"])
        secrets.append(secret)
    assert len(set(secrets)) == 20
    assert all(len(secret) >= 50 and secret not in known.text() for secret in secrets)
    assert hashlib.sha256(secrets[0].encode()).hexdigest() in known.text()


def test_duplicate_name_and_revoking_a_missing_key_are_refused():
    known, _ = ApiKeys().added("web", ["predict"])
    with pytest.raises(Conflict, match="'web' already exists"):
        known.added("web", ["metrics"])
    with pytest.raises(BadInput, match="scopes: expected"):
        known.added("other", [])
    with pytest.raises(NotFound, match="key does not exist: 'other'"):
        known.without("other")
    assert known.without("web") == ApiKeys()


def test_admin_token_is_a_key_with_admin_scopes_and_features():
    assert ApiKeys().with_admin_token("") == ApiKeys()
    assert ApiKeys().with_admin_token("t0ken").find(b"t0ken").scopes == {"admin:read", "admin:write", "features"}


def test_key_file_is_private_and_replaced_atomically(tmp_path):
    path = tmp_path / "keys.toml"
    with changing(path) as held:
        held[0], _ = held[0].added("web", ["predict"])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.read_bytes()
    with contextlib.suppress(ZeroDivisionError), changing(path) as held:
        held[0] = ApiKeys()
        raise ZeroDivisionError
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["keys.toml"]


def test_second_writer_waits_for_the_first(tmp_path):
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        with changing(tmp_path / "keys.toml"), pytest.raises(BlockingIOError):
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(folder)


def test_keys_that_no_server_would_read_are_not_written(tmp_path, monkeypatch):
    path = tmp_path / "keys.toml"
    monkeypatch.setattr("freshet_serving.serving.access.key_file.MAX_FILE_NBYTES", 100)
    with pytest.raises(BadInput, match=r"^keys: expected at most 100 bytes, got 203$"), changing(path) as held:
        held[0], _ = held[0].added("web", ["predict"])
    assert not path.exists()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o666])
def test_file_accessible_to_others_is_refused_with_a_fix_command(tmp_path, mode):
    path = tmp_path / "key.pem"
    path.write_bytes(b"secret")
    path.chmod(mode)
    with pytest.raises(BadInput, match=f"tls_key: .* got mode {mode:04o}; chmod 600 {path}"):
        read_private(path, "tls_key", 100)
    path.chmod(0o600)
    assert read_private(path, "tls_key", 100) == b"secret"


def test_file_of_a_different_owner_may_be_group_readable(tmp_path, monkeypatch):
    path = tmp_path / "key.pem"
    path.write_bytes(b"secret")
    monkeypatch.setattr("os.geteuid", lambda: path.stat().st_uid + 1)
    path.chmod(0o440)
    assert read_private(path, "tls_key", 100) == b"secret"
    path.chmod(0o444)
    with pytest.raises(BadInput, match="chmod 440"):
        read_private(path, "tls_key", 100)


def test_missing_or_oversized_file_is_refused(tmp_path):
    with pytest.raises(BadInput, match=r"api_keys: .*No such file"):
        read_private(tmp_path / "none", "api_keys", 100)
    tmp_path.chmod(0o700)
    with pytest.raises(BadInput, match="api_keys: expected a regular file, got a folder"):
        read_private(tmp_path, "api_keys", 100)
    (tmp_path / "large").write_bytes(b"x" * 101)
    (tmp_path / "large").chmod(0o600)
    with pytest.raises(BadInput, match="expected at most 100 bytes, got 101"):
        read_private(tmp_path / "large", "api_keys", 100)
