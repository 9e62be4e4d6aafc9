"""What clients may hold of a process."""

import resource

import pytest

from freshet_serving.serving.front.resource_limits import (
    MAX_DESCRIPTORS,
    BodyMemory,
    BodyMemoryFull,
    ConnectionLimits,
    descriptor_limit,
)


def test_body_exceeding_the_memory_limit_is_refused_as_retryable():
    bodies = BodyMemory(100)
    bodies.nbytes = 100
    bodies.check()
    bodies.nbytes += 1
    bodies.check(spare_nbytes=1)
    with pytest.raises(BodyMemoryFull) as caught:
        bodies.check()
    assert caught.value.http_status == 503
    assert caught.value.retry_after_s > 0


@pytest.mark.parametrize("descriptors", [64, 256, 1024, 20_000, 1 << 20])
def test_ports_leave_descriptors_for_files(descriptors):
    shares = ConnectionLimits.of(descriptors)
    assert all(share > 0 for share in shares)
    assert sum(shares) <= descriptors * 7 // 8


def test_unlimited_process_gets_a_default_descriptor_limit(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, resource.RLIM_INFINITY))
    assert descriptor_limit() == MAX_DESCRIPTORS
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    assert descriptor_limit() == 4096
    assert ConnectionLimits.here() == ConnectionLimits.of(4096)
