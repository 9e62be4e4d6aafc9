"""Keys of one process: the signing key, the trusted keys, and a memory of what was trusted before (trust_memory).

Reading keys, and the memory, are loaded by what has keys.

Invariants
- Without keys nothing is signed and no signature is required.
- A process with trusted keys accepts only what one of them has signed: manifests, records, labels and traffic. Files of
  a version and of a snapshot are identified by their SHA-256, which is part of what is signed.
- A process with a signing key trusts only its own key by default: it does not vouch for another party's content by
  building on it.
- A process without a key writes nothing where signatures are required, or where the existing content is signed
  (SigningKeyRequired): a server rolls back, or holds a delta, on this server alone.

Rejected: adopting a file without a record where signatures are required: anyone who can write to a bucket could then
have rows signed. Certificates and expiry: a key file is what deployments know how to distribute and to revoke.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from freshet_serving.processor.errors import ACCEPT, BadInput, Corrupt, SigningKeyRequired

if TYPE_CHECKING:
    from freshet_serving.processor.package import PublicKey, Signer
    from freshet_serving.processor.repository.trust_memory import TrustMemory

KEY_VARIABLE, TRUST_VARIABLE = "FRESHET_KEY", "FRESHET_TRUST"


@dataclass(frozen=True, slots=True)
class Keyring:
    """The keys of a process.

    Attributes:
        signer: Key to sign with; None for none.
        trusted: Trusted public keys by id; signatures are required if there are any.
        memory: What was trusted before; None in commands.
    """

    signer: Signer | None = None
    trusted: Mapping[str, PublicKey] = field(default_factory=dict)
    memory: TrustMemory | None = None

    @classmethod
    def of(cls, key: str | Path = "", trust: Iterable[str | Path] = (), memory: str | Path = "") -> Keyring:
        """Return the keyring of a signing key's file ("" for none), public keys' files and a folder; raise BadInput."""
        trust = list(trust)
        if not key and not trust:
            return NO_KEYS
        from freshet_serving.processor.package import PublicKey, Signer
        from freshet_serving.processor.repository.trust_memory import TrustMemory

        signer = Signer.read(key) if key else None
        keys = [PublicKey.read(path) for path in trust]
        if signer is not None:
            keys.append(signer.public)
        return cls(signer, {public.id: public for public in keys}, TrustMemory(Path(memory)) if memory else None)

    @classmethod
    def of_writer(cls, key: str | Path = "", trust: Iterable[str | Path] = ()) -> Keyring:
        """Return a writer's keyring; raise BadInput.

        The key is by default the environment's; the environment's public keys are trusted beside these.
        """
        listed = os.environ.get(TRUST_VARIABLE, "")
        named = [path.strip() for path in listed.split(",") if path.strip()]
        if listed and not named:
            raise BadInput(f"{TRUST_VARIABLE}: expected files of public keys separated by commas, got {listed[:64]!r}")
        return cls.of(key or os.environ.get(KEY_VARIABLE, ""), [*trust, *named])

    def check_signature(self, what: str, key: str, signature: str, data: bytes) -> None:
        """Raise Corrupt unless a trusted key, which `key` names ("" for none), has signed these bytes.

        Passes if signatures are not required; the message calls the data `what`.
        """
        if not self.trusted:
            return
        expected = f"{what}: expected a signature by key {' or '.join(self.trusted)}"
        if not key:
            raise Corrupt(f"{expected}, got none")
        if key not in self.trusted:
            raise Corrupt(f"{expected}, got key {key}")
        if not self.trusted[key].verify(signature, data):
            raise Corrupt(f"{expected}, got a signature that does not match the content")

    def key_for(self, what: str, signed: str = "") -> Signer | None:
        """Return the key that must sign what is about to be written; None if nothing is signed.

        `signed` is the id of the key that signed the existing content; "" for none. Raises SigningKeyRequired if a
        signature is required and there is no key.
        """
        if self.signer is None and (self.trusted or signed):
            why = f"is signed by key {signed}" if signed else "accepts only signed files"
            raise SigningKeyRequired(f"{what}: the repository {why}, and this process has no key; set {KEY_VARIABLE}")
        return self.signer


NO_KEYS = Keyring()


def check_downgrade(newest: int, number: int) -> None:
    """Raise Corrupt if a version is older than the newest that was trusted."""
    if number < newest:
        raise Corrupt(f"expected version {newest} or newer as trusted here before, got {number}; {ACCEPT}")
