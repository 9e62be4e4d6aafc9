"""Metric families of a repository in an object store: requests to the store, and the disk use of its mirror.

A repository in a folder has none.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from freshet_serving.processor.extensions.object_stores.mirrored_repository import MirroredRepository


def mirror_families(repository: MirroredRepository) -> Iterator[Metric]:
    """Yield the metric families of this process's mirror. With workers, only the supervisor has a mirror."""
    mirror = repository.mirror
    requests = CounterMetricFamily(
        "freshet_store_requests", "Requests to the object store, by kind and outcome.", labels=("kind", "outcome")
    )
    for (kind, answered), count in sorted(mirror.store.requests.copy().items()):
        requests.add_metric((kind, "answered" if answered else "failed"), count)
    nbytes = CounterMetricFamily("freshet_store_bytes", "Bytes of objects received and sent.", labels=("direction",))
    for direction, count in sorted(mirror.store.nbytes.copy().items()):
        nbytes.add_metric((direction,), count)
    yield from (requests, nbytes)
    yield GaugeMetricFamily(
        "freshet_store_poll_age_seconds",
        "Seconds since the object store was last polled for changes of all followed versions.",
        mirror.seen_s(),
    )
    yield GaugeMetricFamily(
        "freshet_store_listing_age_seconds",
        "Seconds since the last complete listing of the object store, which finds new models, versions and labels.",
        mirror.listing.ended_ago_s(),
    )
    yield GaugeMetricFamily("freshet_mirror_bytes", "Disk used by the mirror.", mirror.nbytes)
    yield GaugeMetricFamily("freshet_mirror_limit_bytes", "Maximum disk use of the mirror.", mirror.max_nbytes)
