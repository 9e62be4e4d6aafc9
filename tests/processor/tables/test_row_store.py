"""Row stores by the scheme of their URL."""

import subprocess
import sys

import pytest

from freshet_serving.processor.clock import FakeClock, SystemClock
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.extras import how_to_install
from freshet_serving.processor.tables.row_store import open_store
from tests.support.extensions import needs


@needs("remote_rows")
@pytest.mark.parametrize(
    ("url", "got"), [("http://secret@host", ", got http://: no extension has it"), ("secret", ""), ("s3cret-x://", "")]
)
def test_scheme_that_nobody_offers_is_refused_with_those_offered(url, got):
    with pytest.raises(BadInput, match=rf"^remote\.url: expected one of redis://, .*, unix://{got}$"):
        open_store(url, 1.0, FakeClock())


def test_store_is_refused_by_name_without_the_extension(without_extensions):
    without_extensions("remote_rows")
    with pytest.raises(BadInput, match=r"^remote\.url needs the extension 'remote_rows'"):
        open_store("redis://host", 1.0, FakeClock())


@needs("remote_rows")
@pytest.mark.parametrize("url", ["redis://h:port", "redis://:pw@[::1", "redis://h?socket_timeout=x"])
def test_unreadable_url_is_refused_without_being_quoted(url):
    with pytest.raises(BadInput, match=r"^remote.url: expected redis://\[user:password@\]host:port\[/db\]$"):
        open_store(url, 1.0, SystemClock())


@needs("remote_rows")
def test_missing_client_error_names_the_package_to_install():
    code = (
        "import sys; sys.modules['redis'] = None\n"
        "from freshet_serving.processor.clock import SystemClock\n"
        "from freshet_serving.processor.tables.row_store import open_store\n"
        "open_store('redis://h', 1.0, SystemClock())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    reason = f"a remote table needs redis, which is not installed: {how_to_install('redis')}"
    assert f"MissingLibrary: {reason}" in run.stderr
