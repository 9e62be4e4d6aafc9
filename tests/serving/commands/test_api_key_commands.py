"""The life of an API key by the command line: made and shown once, listed without its secret, revoked."""

import stat

import pytest

from freshet_serving.processor.errors import BadInput, Conflict, NotFound
from freshet_serving.serving.access.key_file import ApiKeys
from tests.serving.commands.running import run


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path / "api-keys.toml"


def test_key_is_created_listed_and_revoked(path):
    made = ("key", "create", "web", "--scope", "predict", "--scope", "metrics", "--expires", "2030-01-01")
    secret = run(*made, "--rate", "100", "--concurrency", "8").strip()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert secret not in path.read_text()
    found = ApiKeys.parse(path.read_bytes()).find(secret.encode())
    assert (found.name, found.scopes, found.limits.rate, found.limits.concurrency) == (
        "web", {"predict", "metrics"}, 100.0, 8,
    )  # fmt: skip
    assert run("key", "list") == "web  scopes=metrics,predict expires=2030-01-01 rate=100.0 concurrency=8\n"
    assert run("key", "revoke", "web") == "web: revoked\n"
    assert ApiKeys.parse(path.read_bytes()) == ApiKeys()


def test_address_limits_can_be_set_and_removed(path):
    run("key", "create", "web", "--scope", "predict")
    assert run("key", "address", "--rate", "50") == "each address: rate=50.0 concurrency=any\n"
    assert "each address: rate=50.0 concurrency=any" in run("key", "list")
    run("key", "address")
    assert run("key", "list") == "web  scopes=predict expires=never rate=any concurrency=any\n"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("create", "web", "--scope", "root"), BadInput),
        (("create", "web", "--scope", "predict", "--scope", "admin"), BadInput),
        (("create", "web", "--scope", "predict", "--expires", "2020-01-01"), BadInput),
        (("create", "web", "--scope", "predict", "--expires", "0d"), BadInput),
        (("create", "w b", "--scope", "predict"), BadInput),
        (("create", "web", "--scope", "predict", "--expires", "soon"), BadInput),
        (("create", "web", "--scope", "predict", "--rate", "1e9"), BadInput),
        (("create", "there", "--scope", "predict"), Conflict),
        (("revoke", "other"), NotFound),
    ],
)
def test_failing_command_changes_nothing(path, arguments, error):
    run("key", "create", "there", "--scope", "predict")
    before = path.read_bytes()
    with pytest.raises(error):
        run("key", *arguments)
    assert path.read_bytes() == before
