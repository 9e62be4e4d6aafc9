import subprocess
import sys
import threading

import pytest

from freshet_serving.processor.clock import SystemClock
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.extensions.online_features.opening import open_stores
from freshet_serving.processor.extensions.online_features.store_settings import parse_store


def test_redis_is_imported_only_where_a_store_is_configured():
    code = (
        "import sys\n"
        "from freshet_serving.processor.clock import SystemClock\n"
        "from freshet_serving.processor.extensions.online_features import group_sections, opening, reader\n"
        "assert opening.open_stores([], SystemClock()) == {}\n"
        "print('redis' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"


def test_unreachable_store_opens():
    stores = open_stores([parse_store("main", {"url": "redis://127.0.0.1:1", "cache_ttl_s": 3})], SystemClock())
    assert stores["main"].cache_ttl_s == 3
    stores["main"].store.close()


def test_a_name_is_of_one_store():
    settings = parse_store("main", "redis://127.0.0.1:1")
    threads = set(threading.enumerate())
    with pytest.raises(BadInput, match=r"online_stores.main: expected a store once, got it 2 times"):
        open_stores([settings, settings], SystemClock())
    assert set(threading.enumerate()) <= threads
