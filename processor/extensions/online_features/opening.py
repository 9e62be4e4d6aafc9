"""Open the online stores that a server is configured with; redis-py is imported only if there is one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from freshet_serving.processor.clock import Clock
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.extensions.online_features.online_store import OpenStore
from freshet_serving.processor.extensions.online_features.section import groups_of
from freshet_serving.processor.extensions.online_features.store_settings import OnlineStoreSettings, parse_store
from freshet_serving.processor.extras import needed
from freshet_serving.processor.features.input_lookup import InputLookup
from freshet_serving.processor.package import Manifest
from freshet_serving.processor.ports import InputStores

if TYPE_CHECKING:
    from freshet_serving.processor.extensions.online_features.list_writer import ListWriter


def open_stores(settings: Iterable[OnlineStoreSettings], clock: Clock) -> dict[str, OpenStore]:
    """Open stores, by name; returns at once, also if they cannot be reached. The caller closes them.

    A process that forks opens them after the fork. Raises BadInput if redis-py is not installed, or two stores have one
    name.
    """
    settings = list(settings)
    # Before the first is opened: its thread would try to connect for as long as the process lives.
    for name, count in Counter(store.name for store in settings).items():
        if count > 1:
            raise BadInput(f"online_stores.{name}: expected a store once, got it {count} times")
    stores: dict[str, OpenStore] = {}
    for store in settings:
        with needed("an online store"):
            from freshet_serving.processor.extensions.online_features.redis_store import RedisOnlineStore
        stores[store.name] = OpenStore(RedisOnlineStore(store, clock), store.cache_ttl_s, store.cache_bytes)
    return stores


class OnlineLookups:
    """The online stores of one process, and lookups in them (processor.features.input_lookup.InputLookups)."""

    def __init__(self, settings: Iterable[OnlineStoreSettings | Mapping[str, Any]], clock: Clock) -> None:
        """Open the stores, as open_stores() does, by their settings or mappings of their fields."""
        typed = [each if isinstance(each, OnlineStoreSettings) else OnlineStoreSettings(**each) for each in settings]
        self._stores, self._clock = open_stores(typed, clock), clock

    def of(self, manifest: Manifest) -> InputLookup | None:
        if not groups_of(manifest):
            return None
        # Most servers have no such version.
        from freshet_serving.processor.extensions.online_features.feature_lookup import FeatureLookup

        return FeatureLookup(manifest, self._stores, self._clock)

    def close(self) -> None:
        for opened in self._stores.values():
            opened.store.close()


def _list_writer(settings: OnlineStoreSettings, manifest: Manifest, inputs: Collection[str]) -> ListWriter:
    with needed("an online store"):
        from freshet_serving.processor.extensions.online_features.list_writer import ListWriter
        from freshet_serving.processor.extensions.online_features.redis_writer import RedisWriter
    return ListWriter(settings.name, RedisWriter(settings), manifest, inputs)


STORES = InputStores(parse_store, OnlineLookups, _list_writer)
