"""The seam to a row store: small immutable values by key, many at a time.

Everything above this seam (layout, push, remote) works with any store that can do these five things; a test's store
is a dictionary. Calls may come from any thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class StoreReply:
    """values: in the order of the keys, None where a value could not be had. problem: why, in a few words, or ""."""

    values: list[bytes | None]
    problem: str = ""


class RowStore(Protocol):
    """A key-value store outside of this process."""

    def fetch(self, keys: Sequence[bytes], max_nbytes: int) -> StoreReply:
        """Fetch the values of a batch in one round trip, all within the store's timeout.

        Args:
            keys: what to fetch.
            max_nbytes: of all values together; a store that sends more has failed.

        Returns:
            The values, None for each that could not be had. A store's failure is never raised.
        """
        ...

    def read(self, key: bytes, max_nbytes: int) -> bytes | None:
        """Read the value of one key, of at most `max_nbytes`; None when there is none.

        Raises:
            NotReady: the store does not answer, or not with a value.
        """
        ...

    def write(self, values: Mapping[bytes, bytes]) -> None:
        """Stores values; raises NotReady when not all of them could be."""
        ...

    def delete(self, keys: Sequence[bytes]) -> None:
        """Removes keys, also those that are not there; raises NotReady when not all of them could be."""
        ...

    def close(self) -> None:
        """Gives up the store's connections."""
        ...
