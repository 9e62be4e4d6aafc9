"""The keys of one process: the one that it signs with, those that it trusts, and what it has trusted before.

Invariants
- Without keys nothing is signed and nothing is asked for: every byte that is written is what it was before there were
  signatures.
- Who trusts takes nothing that one of the trusted keys has not signed: manifests, records, labels and traffic. Files
  of a version and of a snapshot are known by their SHA-256, which what is signed says.
- Who signs trusts, by default the own key alone: what somebody else has put into a repository is never vouched for by
  building on it.
- Who has no key writes nothing where signatures are asked for, or where what is there is signed (SigningKeyRequired): a server
  that is told to roll back, or whose guard holds, does so here alone.

Refused: adopting what is dropped without a record where signatures are asked for, also by who could sign: everybody who
can write to a bucket could then have rows signed. Certificates and expiry: a file of a key that is trusted is what
deployments know how to hand out and to take back.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from freshet_serving.processor.errors import BadInput, Corrupt, SigningKeyRequired
from freshet_serving.processor.package.signature import PublicKey, Signer
from freshet_serving.processor.repository.trust_memory import TrustMemory

KEY_VARIABLE, TRUST_VARIABLE = "FRESHET_KEY", "FRESHET_TRUST"


@dataclass(frozen=True, slots=True)
class Keyring:
    """See above. memory: None where nothing is remembered, as by commands."""

    signer: Signer | None = None
    trusted: Mapping[str, PublicKey] = field(default_factory=dict)
    memory: TrustMemory | None = None

    @classmethod
    def of(cls, key: str | Path = "", trust: Iterable[str | Path] = (), memory: str | Path = "") -> Keyring:
        """The keyring of these files. memory: the folder of what was trusted before. Raises BadInput."""
        signer = Signer.read(key) if key else None
        keys = [PublicKey.read(path) for path in trust]
        if signer is not None:
            keys.append(signer.public)
        return cls(signer, {one.id: one for one in keys}, TrustMemory(Path(memory)) if memory and keys else None)

    @classmethod
    def of_writer(cls, key: str | Path = "", trust: Iterable[str | Path] = ()) -> Keyring:
        """The keyring of a process that writes to repositories: the key that is given, or else the environment's, and
        the keys that the environment trusts, and `trust`. Raises BadInput."""
        listed = os.environ.get(TRUST_VARIABLE, "")
        named = [one.strip() for one in listed.split(",") if one.strip()]
        if listed and not named:
            raise BadInput(f"{TRUST_VARIABLE}: expected files of public keys separated by commas, got {listed[:64]!r}")
        return cls.of(key or os.environ.get(KEY_VARIABLE, ""), [*trust, *named])

    @property
    def trusts(self) -> bool:
        """Whether signatures are asked for."""
        return bool(self.trusted)

    def check_signature(self, what: str, key: str, signature: str, data: bytes) -> None:
        """Raises Corrupt unless a trusted key has signed these bytes; fine where signatures are not asked for.
        key, signature: as they are said to be, "" for none."""
        if not self.trusted:
            return
        wanted = f"{what}: signed by key {' or '.join(self.trusted)} wanted"
        if not key:
            raise Corrupt(f"{wanted}, got no signature")
        if key not in self.trusted:
            raise Corrupt(f"{wanted}, got key {key}")
        if not self.trusted[key].verify(signature, data):
            raise Corrupt(f"{wanted}, got a signature that is not of these bytes")

    def key_for(self, what: str, signed: str = "") -> Signer | None:
        """Who is to sign what is about to be written; None where nothing is signed. signed: the key that signed what is
        there already. Raises SigningKeyRequired where a signature is needed and there is no key."""
        if self.signer is None and (self.trusted or signed):
            why = f"is signed by key {signed}" if signed else "takes nothing unsigned"
            raise SigningKeyRequired(f"{what}: the repository {why}, and there is no key here: --key or {KEY_VARIABLE} wanted")
        return self.signer


NO_KEYS = Keyring()
