"""Define the interface of a row store: small immutable values by key, many at a time.

Everything above this interface (processor.extensions.remote_rows) works with any store that has these five methods and
that an extension offers for the scheme of its URL (processor.ports). Calls may come from any thread.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from freshet_serving.processor.clock import Clock
from freshet_serving.processor.errors import BadInput
from freshet_serving.processor.ports import ENGINE, missing

SCHEME = re.compile(r"[a-z][a-z0-9+]{0,31}")


@dataclass(frozen=True, slots=True)
class StoreReply:
    """Result of a fetch: values in the order of the keys, None for each that is unavailable, and why in a few words."""

    values: list[bytes | None]
    problem: str = ""


class RowStore(Protocol):
    """A key-value store outside of this process."""

    def fetch(self, keys: Sequence[bytes], max_nbytes: int) -> StoreReply:
        """Fetch the values of a batch in one round trip, all within the store's timeout.

        A store that sends more than max_nbytes in all has failed. A store's failure is never raised.
        """

    def read(self, key: bytes, max_nbytes: int) -> bytes | None:
        """Return the value, of at most max_nbytes, of one key, or None; raise NotReady if the store does not answer."""

    def write(self, values: Mapping[bytes, bytes]) -> None:
        """Store values; raises NotReady unless all of them were stored."""

    def delete(self, keys: Sequence[bytes]) -> None:
        """Remove keys, including missing ones; raises NotReady unless all of them were removed."""

    def close(self) -> None:
        """Close the store's connections."""


def row_store_scheme(url: str) -> str:
    """Return the scheme of a row store's URL; raise BadInput if there is no row store, or none of that scheme."""
    schemes = ENGINE.offers("row_stores")
    if not schemes:
        raise missing("remote.url", "remote_rows")
    scheme, address, _ = url.partition("://")
    if scheme not in schemes:
        # What is no scheme may be a password.
        got = f", got {scheme}://: no extension has it" if address and SCHEME.fullmatch(scheme) else ""
        raise BadInput(f"remote.url: expected one of {', '.join(s + '://' for s in schemes)}{got}")
    return scheme


def open_store(url: str, timeout_s: float, clock: Clock) -> RowStore:
    """Return the store at a URL, never shown because of its password, which connects at first use; raise BadInput.

    timeout_s limits a new connection, and all replies of a batch.
    """
    store: RowStore = ENGINE.get("row_stores", row_store_scheme(url))(url, timeout_s, clock)
    return store
