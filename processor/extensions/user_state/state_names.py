"""Names of user states: keyed hashes of whose a state is, and of what it was computed by and from.

A name is 128 bits of BLAKE2b under a key that the processes of one server share and nobody else knows. So two states
never have one name, nobody can make inputs whose state is another's, and what lies in the arena does not tell a user's
id to someone who tries all ids.
"""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct

from freshet_serving.processor.extensions.user_state.state_store import StateName

EVERYBODY = b""
"""Owner of the states of requests that have none, on a listener without keys."""

UNKNOWN = 1
"""Subject of the states of requests that do not say whose they are: whoever is erased, these are, too."""

_lengths, _halves = Struct("<q").pack, Struct("<qq").unpack


class StateNames:
    def __init__(self, secret: bytes) -> None:
        self._new = blake2b(key=secret, digest_size=16)
        # As many as there are API keys.
        self._owners: dict[bytes, int] = {}

    def name(self, owner: bytes, scope: bytes, content: bytes | memoryview, subject: bytes = b"") -> StateName:
        """Return the name of an owner's state, by what it is computed by: the loaded version and the subgraph.

        Content is what it is computed from, or the id that it is kept under; the user's key is b"" if it is not known.
        """
        high, low = self._hash(b"state", owner, scope, content)
        return StateName(high, low, self.owner(owner), self.subject(subject) if subject else UNKNOWN)

    def owner(self, owner: bytes) -> int:
        """Return the hash of an owner, never 0."""
        if (number := self._owners.get(owner)) is None:
            number = self._owners[owner] = self._hash(b"owner", owner)[0] or 1
        return number

    def subject(self, subject: bytes) -> int:
        """Return the hash of a user, the same for all owners, neither 0 nor UNKNOWN."""
        hashed = self._hash(b"subject", subject)[0]
        return hashed if hashed not in (0, UNKNOWN) else 2

    def _hash(self, *parts: bytes | memoryview) -> tuple[int, int]:
        digest = self._new.copy()
        for part in parts:
            digest.update(_lengths(len(part)))
            digest.update(part)
        high, low = _halves(digest.digest())
        return high, low
