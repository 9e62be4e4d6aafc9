import subprocess
import sys

import pytest

from freshet_serving.processor.clock import SystemClock
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.extras import how_to_install
from freshet_serving.processor.tables.remote.settings import RemoteConfig, open_store


def config(**changes):
    return RemoteConfig(**({"url": "redis://host:1", "tables": ["ctr/user"]} | changes))


def test_tables_are_named_one_by_one_or_all_of_a_model():
    named = config(tables=["ctr/user", "rank/*"])
    assert named.is_remote("ctr", "user")
    assert not named.is_remote("ctr", "item")
    assert named.is_remote("rank", "item")
    assert not named.is_remote("other", "user")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"url": "http://secret@host"}, "^remote.url: expected one of redis://, "),
        ({"url": ""}, "remote.url"),
        ({"tables": []}, "expected at least one 'model/table'"),
        ({"tables": ["user"]}, "expected 'model/table' or 'model/\\*', got 'user'"),
        ({"tables": ["*/user"]}, "expected 'model/table' or 'model/\\*', got '\\*/user'"),
        ({"tables": ["ctr/a/b"]}, "got 'ctr/a/b'"),
        ({"timeout_s": 0}, "remote.timeout_s: expected 0.001 to 60, got 0"),
        ({"on_error": "ignore"}, "remote.on_error: expected one of default, fail, got 'ignore'"),
        ({"cache_rows": -1}, "remote.cache_rows"),
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused_by_name(changes, message):
    with pytest.raises(BadInput, match=message) as refused:
        config(**changes)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("url", ["redis://h:port", "redis://:pw@[::1", "redis://h?socket_timeout=x"])
def test_a_url_that_cannot_be_read_is_refused_without_being_quoted(url):
    with pytest.raises(BadInput, match=r"^remote.url: expected redis://\[user:password@\]host:port\[/db\]$"):
        open_store(url, 1.0, SystemClock())


def test_a_server_without_remote_tables_does_not_load_the_redis_client():
    code = "import sys, freshet_serving.processor.engine; print('redis' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


def test_without_the_client_the_message_says_what_to_install():
    code = (
        "import sys; sys.modules['redis'] = None\n"
        "from freshet_serving.processor.clock import SystemClock\n"
        "from freshet_serving.processor.tables.remote.settings import open_store\n"
        "open_store('redis://h', 1.0, SystemClock())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert f"BadInput: a remote table needs redis, which is not installed: {how_to_install('redis')}" in run.stderr
