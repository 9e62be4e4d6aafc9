import pytest

from freshet_serving.processor.errors import BadInput, NotReady
from freshet_serving.processor.extensions.online_features.store_settings import (
    CLUSTER,
    SENTINEL,
    SINGLE,
    SOCKET,
    StoreAddress,
    parse_store,
)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://redis", StoreAddress(SINGLE, False, (("redis", 6379),), "", 0)),
        ("rediss://10.0.0.1:7000/3", StoreAddress(SINGLE, True, (("10.0.0.1", 7000),), "", 3)),
        ("redis://[::1]:7000", StoreAddress(SINGLE, False, (("::1", 7000),), "", 0)),
        ("redis+cluster://a:1,b:2", StoreAddress(CLUSTER, False, (("a", 1), ("b", 2)), "", 0)),
        ("rediss+sentinel://a,b:2/mine/1", StoreAddress(SENTINEL, True, (("a", 26379), ("b", 2)), "mine", 1)),
        ("unix:///run/redis.sock", StoreAddress(SOCKET, False, (), "/run/redis.sock", 0)),
    ],
)
def test_an_address_names_hosts_and_what_they_are(url, address):
    assert parse_store("main", url).address() == address


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("localhost:6379", r"online_stores.main.url: expected one of redis://, rediss://"),
        ("http://a", r"online_stores.main.url: expected one of redis://"),
        ("redis://me:secret@a", r"url: expected no user or password in the address; use username and password_file"),
        ("redis://a/0?password=secret", r"url: expected no options in the address"),
        ("redis://a/x", r"url: expected the database as a number after the /"),
        ("redis://a,b", r"url: expected one host"),
        ("redis://a:port", r"url: expected HOST:PORT"),
        ("redis://", r"url: expected HOST:PORT"),
        ("redis+cluster://a/1", r"url: expected no database \(a cluster has one\)"),
        ("redis+sentinel://a", r"got no master's name"),
        ("unix://run/redis.sock", r"url: expected unix:///path"),
        ({}, r"online_stores.main.url: expected redis://HOST:PORT, got nothing"),
        (
            {"url": "redis://a", "pasword_file": "x"},
            r"pasword_file: there is no such option \(did you mean 'password_file'",
        ),
        ({"url": "redis://a", "pool_size": "4"}, r"pool_size: expected an integer, got a string"),
        ({"url": "redis://a", "pool_size": True}, r"pool_size: expected an integer, got true or false"),
        ({"url": "redis://a", "pool_size": 0}, r"online_stores.main.pool_size: expected 1 to 1024, got 0"),
        ({"url": "redis://a", "cache_ttl_s": -1}, r"cache_ttl_s: expected 0"),
        ({"url": "redis://a", "password_env": "A", "password_file": "b"}, r"expected only one of password_env"),
        ({"url": "redis://a", "ca_file": "b"}, r"ca_file: expected a rediss:// address"),
        ({"url": "rediss://a", "cert_file": "b"}, r"expected cert_file and key_file together"),
    ],
)
def test_refusals_never_repeat_a_password(section, message):
    with pytest.raises(BadInput, match=message) as refused:
        parse_store("main", section)
    assert "secret" not in str(refused.value)


def test_password_is_read_anew_from_file_or_environment(tmp_path, monkeypatch):
    assert parse_store("main", "redis://a").password() == ""
    file = tmp_path / "password"
    settings = parse_store("main", {"url": "redis://a", "password_file": str(file)})
    with pytest.raises(NotReady, match=r"^online store main: password_file cannot be read$"):
        settings.password()
    for password in ("one", "two"):
        file.write_text(password + "\n")
        assert settings.password() == password
    settings = parse_store("main", {"url": "redis://a", "password_env": "REDIS_PASSWORD"})
    monkeypatch.delenv("REDIS_PASSWORD", raising=False)
    with pytest.raises(NotReady, match="REDIS_PASSWORD is not set"):
        settings.password()
    monkeypatch.setenv("REDIS_PASSWORD", "three")
    assert settings.password() == "three"
    assert "three" not in repr(settings)
