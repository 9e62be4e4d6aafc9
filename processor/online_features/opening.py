"""Open the online stores that a server is configured with; redis-py is imported only if there is one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from freshet_serving.processor.clock import Clock
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.extras import needed
from freshet_serving.processor.online_features.online_store import OpenStore
from freshet_serving.processor.online_features.store_settings import OnlineStoreSettings


def open_stores(settings: Iterable[OnlineStoreSettings], clock: Clock) -> dict[str, OpenStore]:
    """Open stores; returns at once, also if they cannot be reached. A process that forks opens them after the fork.

    Args:
        settings: Their settings.
        clock: The clock.

    Returns:
        The stores by name; the caller closes them.

    Raises:
        BadInput: redis-py is not installed, or two stores have one name.
    """
    settings = list(settings)
    # Before the first is opened: its thread would try to connect for as long as the process lives.
    for name, count in Counter(one.name for one in settings).items():
        if count > 1:
            raise BadInput(f"online_stores.{name}: expected a store once, got it {count} times")
    stores: dict[str, OpenStore] = {}
    for one in settings:
        with needed("an online store"):
            from freshet_serving.processor.online_features.redis_store import RedisOnlineStore
        stores[one.name] = OpenStore(RedisOnlineStore(one, clock), one.cache_ttl_s, one.cache_bytes)
    return stores
