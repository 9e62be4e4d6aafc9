"""The cache against a model of it, and flights of several threads."""

import threading

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from freshet_serving.processor.clock import FakeClock
from freshet_serving.processor.extensions.online_features.entity_cache import ENTRY_NBYTES, EntityCache

KEYS = st.sampled_from([b"a", b"b", b"c", b"d"])
TTL_S = 10.0


class CacheAgainstModel(RuleBasedStateMachine):
    """Each claim is settled later, or not at all before others claim the same key."""

    @initialize(entries=st.integers(0, 3), ttl_s=st.sampled_from([0.0, TTL_S]))
    def begin(self, entries, ttl_s):
        self.clock, self.ttl_s = FakeClock(), ttl_s
        self.room = entries * (ENTRY_NBYTES + 1)
        self.cache = EntityCache(ttl_s, self.room, self.clock)
        self.kept, self.flights, self.erased = {}, {}, set()
        self.count = 0

    @rule(keys=st.lists(KEYS, unique=True, max_size=4))
    def claim(self, keys):
        claim = self.cache.claim(keys)
        assert sorted([*claim.found, *claim.owned, *claim.joined]) == sorted(keys)
        for key, value in claim.found.items():
            assert self.kept[key][1] == value
            assert self.clock.now_s() < self.kept[key][0] + self.ttl_s
        assert set(claim.joined) == set(keys) & set(self.flights) - set(claim.found)
        for key in claim.owned:
            self.flights[key] = self.clock.now_s()
            self.erased.discard(key)

    @rule(keys=st.sets(KEYS), begins=st.booleans())
    def erase(self, keys, begins):
        self.cache.erase(*(sorted(keys), ()) if begins else ((), keys))
        self.erased |= keys & set(self.flights)
        for key in keys:
            self.kept.pop(key, None)
            assert self.cache.peek([key]) is None

    @rule(key=KEYS, found=st.booleans(), nbytes=st.integers(0, 2))
    def settle(self, key, found, nbytes):
        if key in self.flights:
            self.count += 1
            began_s = self.flights.pop(key)
            self.cache.settle(key, self.count if found else None, nbytes)
            if found and key not in self.erased:
                self.kept[key] = (began_s, self.count)

    @rule(keys=st.lists(KEYS, unique=True, max_size=4))
    def peek(self, keys):
        found = self.cache.peek(keys)
        if found is not None:
            assert list(found) == keys
            for key, value in found.items():
                assert self.kept[key][1] == value
                assert self.clock.now_s() < self.kept[key][0] + self.ttl_s

    @rule(seconds=st.floats(0.1, 2 * TTL_S))
    def wait(self, seconds):
        self.clock.advance(seconds)

    @invariant()
    def it_stays_within_its_bytes(self):
        assert 0 <= self.cache.nbytes <= self.room


CacheAgainstModel.TestCase.settings = settings(max_examples=30, stateful_step_count=30)
TestCacheAgainstModel = CacheAgainstModel.TestCase


def read(cache, key, value):
    (owned,) = cache.claim([key]).owned
    cache.settle(owned, value)


def test_entry_expires_ttl_after_its_read_began():
    clock = FakeClock()
    cache = EntityCache(TTL_S, 1 << 20, clock)
    assert cache.claim([b"a"]).owned == [b"a"]
    clock.advance(4)
    cache.settle(b"a", "value")
    clock.advance(5.9)
    assert cache.peek([b"a"]) == {b"a": "value"}
    clock.advance(0.2)
    assert cache.peek([b"a"]) is None
    assert cache.claim([b"a"]).owned == [b"a"]


def test_the_least_recently_used_goes_first():
    cache = EntityCache(TTL_S, 2 * (ENTRY_NBYTES + 1), FakeClock())
    for key in (b"a", b"b"):
        read(cache, key, "value")
    assert cache.peek([b"a"])
    read(cache, b"c", "value")
    assert [key for key in (b"a", b"b", b"c") if cache.peek([key])] == [b"a", b"c"]


def test_those_who_join_a_flight_get_what_its_owner_read():
    cache = EntityCache(0.0, 0, FakeClock())
    assert cache.claim([b"a"]).owned == [b"a"]
    flights = [cache.claim([b"a"]).joined[b"a"] for _ in range(4)]
    got = []
    threads = [threading.Thread(target=lambda f=f: got.append(f.wait(60))) for f in flights]
    for thread in threads:
        thread.start()
    cache.settle(b"a", "value")
    for thread in threads:
        thread.join()
    assert got == ["value"] * 4
    assert cache.claim([b"a"]).owned == [b"a"]


def test_a_flight_that_fails_or_is_late_gives_nothing():
    cache = EntityCache(TTL_S, 1 << 20, FakeClock())
    cache.claim([b"a"])
    flight = cache.claim([b"a"]).joined[b"a"]
    assert flight.wait(0) is None
    cache.settle(b"a", None)
    assert flight.wait(60) is None
    assert cache.claim([b"a"]).owned == [b"a"]
