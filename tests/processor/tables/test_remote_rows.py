import pytest

from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.tables.remote_rows import RemoteConfig, open_remote_tables
from tests.support.extensions import needs

pytestmark = needs("remote_rows")


def config(**changes):
    return RemoteConfig(**({"url": "redis://host:1", "tables": ["ctr/user"]} | changes))


def test_tables_are_selected_by_name_or_by_model():
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
def test_invalid_configuration_is_refused_by_name(changes, message):
    with pytest.raises(BadInput, match=message) as refused:
        config(**changes)
    assert "secret" not in str(refused.value)


def test_configuration_is_refused_by_name_without_the_extension(without_extensions):
    without_extensions("remote_rows")
    with pytest.raises(BadInput, match=r"^remote\.url needs the extension 'remote_rows'"):
        config()


def test_tables_are_refused_by_name_without_the_extension(without_extensions):
    remote = config()
    without_extensions("remote_rows")
    assert open_remote_tables(None, FakeClock()) is None
    with pytest.raises(BadInput, match=r"^remote needs the extension 'remote_rows'"):
        open_remote_tables(remote, FakeClock())
