"""A store in each of its states, a few reads each: nothing is raised, and what is counted is what was done to it."""

from loadtest.bench.store_outages import FEATURES, measure_outages
from tests.processor.extensions.remote_rows.fakes import needs_redis

READS = 40


@needs_redis
def test_every_state_is_answered_and_counted():
    outages = {outage.state: outage for outage in measure_outages(READS)}
    assert list(outages) == [
        "well",
        "slowed to 1 s",
        "another type under every key",
        "8 MiB under every 20th key",
        "stopped",
        "just started again",
        "half a second later",
    ]
    for outage in outages.values():
        assert sum(outage.values.values()) == READS * FEATURES
    assert set(outages["slowed to 1 s"].losses) <= {"late", "not_asked", "unreachable"}
    assert set(outages["stopped"].values) == {"late"}
    assert outages["another type under every key"].values.get("damaged", 0) > 0
