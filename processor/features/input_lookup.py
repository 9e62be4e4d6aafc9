"""Look up inputs that a request leaves out in stores outside of the process, before it is bound.

Invariants
- A replica has at most one lookup, made when it is opened: a request asks for no extension.
- find() says what a request leaves out, once; peek() fills it from memory and never waits, so an event loop may call
  it; fill() may wait for a store, and belongs on another thread.
- What a request sends wins: a lookup adds absent inputs only.

The extension that has the stores implements it (processor.ports.InputStores); without one, configuring a store is
refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from freshet_serving.processor.clock import Clock
from freshet_serving.processor.columns import Column
from freshet_serving.processor.counter_block import Snapshot
from freshet_serving.processor.errors import BadInput, first_of
from freshet_serving.processor.package import Manifest
from freshet_serving.processor.ports import ENGINE, InputStores, missing

ONLINE_STORES, EXTENSION = "online_stores", "online_features"


class FilledInputs(NamedTuple):
    """A request's inputs after the lookup.

    Attributes:
        looked_up: Those that were looked up, as they are used.
        defaulted: Those of them with a default in at least one row, and why, in lower case.
    """

    inputs: Mapping[str, Column]
    looked_up: Mapping[str, Column]
    defaulted: Mapping[str, str]


class InputLookup(Protocol):
    """Fills inputs of one version's requests. Thread-safe."""

    def find(self, inputs: Mapping[str, Column]) -> Any:
        """Return what a request leaves out, for peek() and fill(); raise BadInput for a bad key or a missing store."""

    def peek(self, inputs: Mapping[str, Column], left_out: Any) -> FilledInputs | None:
        """Add what find() returned, from memory; return None if a store would have to be asked."""

    def fill(self, inputs: Mapping[str, Column], end_s: float = ..., left_out: Any = None) -> FilledInputs:
        """Add what any lookup's find() returned, or finds, by end_s on the clock's now_s(); errors as of find()."""

    def counted(self) -> Snapshot:
        """Return the counters since the version was loaded."""


class InputLookups(Protocol):
    """The stores of one process."""

    def of(self, manifest: Manifest) -> InputLookup | None:
        """Return what fills inputs of a version; None if it needs no store."""

    def close(self) -> None:
        """Close the stores."""


class NoLookups:
    """The lookups of a process without stores."""

    def of(self, manifest: Manifest) -> InputLookup | None:
        return None

    def close(self) -> None:
        """Do nothing."""


NO_LOOKUPS: InputLookups = NoLookups()


def input_stores() -> InputStores | None:
    """Return what parses and opens online stores; None if there is no such extension."""
    make = ENGINE.get("input_stores", ONLINE_STORES)
    return None if make is None else make()


def parse_stores(sections: Mapping[str, Any]) -> list[Any]:
    """Return the settings of stores, by name an address or a section of the server's file; raise BadInput."""
    if not sections:
        return []
    stores = input_stores()
    if stores is None:
        raise missing(f"{ONLINE_STORES}.{first_of(sections)[:64]}", EXTENSION)
    return [stores.parse(name, section) for name, section in sections.items()]


def named_addresses(texts: Sequence[str], option: str) -> dict[str, str]:
    """Return the addresses of stores by name, from NAME=ADDRESS each; raise BadInput that names the option.

    A text without a name is a further host of the address before it, which has commas itself.
    """
    addresses: dict[str, str] = {}
    for text in texts:
        name, equals, address = text.partition("=")
        if not equals and not addresses:
            raise BadInput(f"{option}: expected NAME=redis://HOST:PORT, got no name")
        if not equals:
            addresses[first_of(reversed(addresses))] += f",{text}"
        elif name in addresses:
            raise BadInput(f"{option}: expected {name[:64]!r} once, got it twice")
        else:
            addresses[name] = address
    return addresses


def open_lookups(settings: Sequence[Any], clock: Clock) -> InputLookups:
    """Open a process' stores, from parse_stores() or mappings of such fields; returns at once. Raises BadInput."""
    stores = input_stores()
    if stores is not None:
        lookups: InputLookups = stores.open(settings, clock)
        return lookups
    if settings:
        raise missing(ONLINE_STORES, EXTENSION)
    return NO_LOOKUPS
