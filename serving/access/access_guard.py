"""Admit or refuse a request by its bearer token, scope and rate limits.

    address's rate ─▶ key (401) ─▶ scope (403) ─▶ key's rate ─▶ in-flight limits of address and key
         429                                         429               429

The address comes first: a client that guesses keys is slowed down before a hash is computed. Without configured keys
there is no guard.

One guard belongs to one thread (serving.access.rate_limiter). Its keys are replaced as a whole, from any thread; an
admitted request stays admitted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from freshet_serving.processor.clock import Clock, SystemClock
from freshet_serving.processor.errors import FreshetError, Overloaded
from freshet_serving.serving.access.rate_limiter import RateLimiter, Slots
from freshet_serving.serving.access.scopes import OPEN

if TYPE_CHECKING:
    from freshet_serving.serving.access.key_file import ApiKey, ApiKeys, RateLimits

# Retry time of a client with too many requests in flight: some may have ended by then.
IN_FLIGHT_RETRY_S = 1.0


class Forbidden(FreshetError):
    """An operation that this server does not perform for this client."""

    http_status = 403
    grpc_code = "PERMISSION_DENIED"


class Unauthenticated(FreshetError):
    """A request without the key that it needs."""

    http_status = 401
    grpc_code = "UNAUTHENTICATED"

    def __init__(self, message: str = "authorization: expected a valid bearer token") -> None:
        super().__init__(message)


class Permit:
    """An admitted request. end() is called when it is answered or given up, and is idempotent."""

    __slots__ = ("_rate_limiter", "_slots")

    def __init__(self, rate_limiter: RateLimiter, slots: tuple[Slots, ...] = ()) -> None:
        self._rate_limiter, self._slots = rate_limiter, slots

    def end(self) -> None:
        slots, self._slots = self._slots, ()
        for each in slots:
            self._rate_limiter.release(each)


class AccessGuard:
    """Checks requests; `keys` may be replaced at any time, and `no_permit` is a permit that holds nothing."""

    def __init__(self, keys: ApiKeys, rate_limiter: RateLimiter, clock: Clock | None = None) -> None:
        self.keys = keys
        self._rate_limiter, self._clock = rate_limiter, clock or SystemClock()
        self.no_permit = Permit(rate_limiter)

    def authorize(self, scope: str, authorization: bytes | None) -> ApiKey:
        """Return the key of a request if it has the scope, and count nothing; raises as acquire()."""
        key = self._find(authorization)
        if key is None or key.expires_s <= self._clock.unix_s():
            raise Unauthenticated
        if scope not in key.scopes:
            raise Forbidden(f"authorization: expected a key with the scope {scope}, got {key.name!r} without it")
        return key

    def acquire(self, scope: str, authorization: bytes | None, address: str) -> Permit:
        """Admit a request and count it.

        Args:
            address: The client's address; "" if unknown.

        Raises:
            Unauthenticated: The key is missing, unknown or expired.
            Forbidden: The key does not have the scope.
            Overloaded: A rate limit or an in-flight limit is exceeded.
        """
        if scope == OPEN:
            return self.no_permit
        limits = self.keys.address
        slots = self._meet(limits, address)
        key = self.authorize(scope, authorization)
        name_of_key = f"key {key.name!r}"
        self._take(key.limits, key.slots, name_of_key)
        if not key.limits.concurrency and (slots is None or not limits.concurrency):
            return self.no_permit
        entered: list[Slots] = []
        visited = ((limits, slots, "address"), (key.limits, key.slots, name_of_key))
        for most, whose, name in visited:
            if whose is None or not most.concurrency:
                continue
            if not self._rate_limiter.try_acquire(whose, most.concurrency):
                Permit(self._rate_limiter, tuple(entered)).end()
                raise Overloaded(
                    f"{name}: expected at most {most.concurrency} requests in flight, got more", IN_FLIGHT_RETRY_S
                )
            entered.append(whose)
        return Permit(self._rate_limiter, tuple(entered))

    def authorize_stream(self, scope: str, authorization: bytes | None, address: str) -> None:
        """Admit a stream whose requests are admitted one by one later; raises as acquire()."""
        if scope != OPEN:
            self._meet(self.keys.address, address)
            self.authorize(scope, authorization)

    def has(self, scope: str, authorization: bytes | None) -> bool:
        key = self._find(authorization)
        return key is not None and scope in key.scopes

    def name_of(self, authorization: bytes | None) -> str:
        """Return the name of a request's key; "" if it has none or an unknown one."""
        key = self._find(authorization)
        return "" if key is None else key.name

    def _find(self, authorization: bytes | None) -> ApiKey | None:
        kind, _, secret = (authorization or b"").partition(b" ")
        return self.keys.find(secret.strip()) if kind.lower() == b"bearer" else None

    def _meet(self, limits: RateLimits, address: str) -> Slots | None:
        """Take a token for one more request from its address; return the address's slots if it has limits."""
        if not (limits.rate or limits.concurrency) or not address:
            return None
        slots = self._rate_limiter.address_slots(address)
        self._take(limits, slots, "address")
        return slots

    def _take(self, limits: RateLimits, slots: Slots, name: str) -> None:
        if limits.rate and (wait_s := self._rate_limiter.take_token(slots, limits.rate)):
            raise Overloaded(f"{name}: expected at most {limits.rate:g} requests a second, got more", wait_s)
