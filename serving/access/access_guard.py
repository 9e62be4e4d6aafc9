"""The guard: lets a request in by its bearer token, or says why not.

    address's rate ─▶ key (401) ─▶ scope (403) ─▶ key's rate ─▶ what address and key have in flight
         429                                         429               429

The address comes first: who guesses keys is slowed down before a hash is computed. Where no keys are configured there
is no guard, and nobody asks for one with a request.

One guard belongs to one thread (serving.access.meters). Its keys are replaced whole, from any thread; a request that
was let in stays in.
"""

from __future__ import annotations

from freshet_serving.processor.clock import Clock, SystemClock
from freshet_serving.processor.errors import FreshetError, Overloaded
from freshet_serving.serving.access.key_file import ApiKey, ApiKeys, AskLimits
from freshet_serving.serving.access.meters import Meters, Slots
from freshet_serving.serving.access.scopes import OPEN

# Whoever has too much in flight hears of it when something may have ended.
IN_FLIGHT_RETRY_S = 1.0


class Forbidden(FreshetError):
    """What this server does not do for this client."""

    http_status = 403
    grpc_code = "PERMISSION_DENIED"


class Unauthenticated(FreshetError):
    """A request without the key that it needs."""

    http_status = 401
    grpc_code = "UNAUTHENTICATED"

    def __init__(self, message: str = "authorization: a valid bearer token wanted") -> None:
        super().__init__(message)


class Visit:
    """A request that was let in. end() is called when it is answered or given up; more than once does no harm."""

    __slots__ = ("_meters", "_slots")

    def __init__(self, meters: Meters, slots: tuple[Slots, ...] = ()) -> None:
        self._meters, self._slots = meters, slots

    def end(self) -> None:
        slots, self._slots = self._slots, ()
        for each in slots:
            self._meters.leave(each)


class AccessGuard:
    """See the module. keys: may be replaced at any time."""

    def __init__(self, keys: ApiKeys, meters: Meters, clock: Clock | None = None) -> None:
        self.keys = keys
        self._meters, self._clock = meters, clock or SystemClock()
        self.nothing = Visit(meters)
        """A visit that holds nothing."""

    def check(self, scope: str, authorization: bytes | None) -> ApiKey:
        """The key of a request, which may do what the scope says; counts nothing. Raises Unauthenticated, Forbidden.
        authorization: the header."""
        key = self._find(authorization)
        if key is None or key.expires_s <= self._clock.unix_s():
            raise Unauthenticated
        if scope not in key.scopes:
            raise Forbidden(f"authorization: a key with the scope {scope} wanted, got {key.name!r} without it")
        return key

    def admit(self, scope: str, authorization: bytes | None, address: str) -> Visit:
        """Lets a request in; raises Unauthenticated, Forbidden, Overloaded. address: of its client, "" for none that
        is known."""
        if scope == OPEN:
            return self.nothing
        limits = self.keys.address
        slots = self._meet(limits, address)
        key = self.check(scope, authorization)
        name_of_key = f"key {key.name!r}"
        self._take(key.limits, key.slots, name_of_key)
        if not key.limits.concurrency and (slots is None or not limits.concurrency):
            return self.nothing
        entered: list[Slots] = []
        visited = ((limits, slots, "address"), (key.limits, key.slots, name_of_key))
        for most, whose, name in visited:
            if whose is None or not most.concurrency:
                continue
            if not self._meters.enter(whose, most.concurrency):
                Visit(self._meters, tuple(entered)).end()
                raise Overloaded(
                    f"{name}: at most {most.concurrency} requests in flight wanted, got more", IN_FLIGHT_RETRY_S
                )
            entered.append(whose)
        return Visit(self._meters, tuple(entered))

    def open(self, scope: str, authorization: bytes | None, address: str) -> None:
        """Lets in a stream, each request of which is admitted by itself; raises as admit() does."""
        if scope != OPEN:
            self._meet(self.keys.address, address)
            self.check(scope, authorization)

    def name_of(self, authorization: bytes | None) -> str:
        """The name of the key that a request brings; "" where it brings none that is known any more."""
        key = self._find(authorization)
        return "" if key is None else key.name

    def _find(self, authorization: bytes | None) -> ApiKey | None:
        kind, _, secret = (authorization or b"").partition(b" ")
        return self.keys.find(secret.strip()) if kind.lower() == b"bearer" else None

    def _meet(self, limits: AskLimits, address: str) -> Slots | None:
        """Takes what one more request takes of its address's rate; the address's slots, where it has limits."""
        if limits == NO_LIMITS or not address:
            return None
        slots = self._meters.address_slots(address)
        self._take(limits, slots, "address")
        return slots

    def _take(self, limits: AskLimits, slots: Slots, name: str) -> None:
        if limits.rate and (wait_s := self._meters.take(slots, limits.rate)):
            raise Overloaded(f"{name}: at most {limits.rate:g} requests a second wanted, got more", wait_s)


NO_LIMITS = AskLimits()
