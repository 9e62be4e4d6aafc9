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

TrustMemory: what a process has trusted, remembered across restarts: an old state of a repository is signed too.

    <folder>/<model>.json      one small file a model

Of a model the newest version that was served and how often its labels and its traffic were signed; of each version the
edition of its manifest and the newest record, each with the SHA-256 of its bytes. All that counts only grows, so two
processes with one folder merge by the larger.

Invariants
- What is remembered is durable before what it is about is served.
- Something older than what is remembered is refused, and so is something else under the same number. A person accepts
  it by `freshet keys accept`, which forgets the model.
- Nothing of a repository is written here but numbers and digests.

What it costs: a file made durable for each look that brings records. What it cannot do: a folder that is lost, or a
replica that is new, knows nothing: the first state that it meets, if it is signed, is believed.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from freshet_serving.processor.errors import BadInput, Corrupt, SigningKeyRequired, NotReady
from freshet_serving.processor.package import atomic_file
from freshet_serving.processor.package import read_file
from freshet_serving.processor.package import PublicKey, Signer

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


FORMAT = "freshet-trust/1"
MAX_MEMORY_NBYTES = 1 << 20
MOST_VERSIONS = 256
ACCEPT = "`freshet keys accept` forgets that"


def default_memory(repository: str) -> Path:
    """Where what was trusted of a repository is remembered unless somebody says otherwise."""
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state")
    where = repository if "://" in repository else os.path.realpath(repository)
    return state / "freshet" / "trust" / hashlib.sha256(where.encode()).hexdigest()[:16]


@dataclass(slots=True)
class KnownVersion:
    """Of a version: its root hash, its manifest's edition and SHA-256, its newest record's number and SHA-256."""

    root: str = ""
    edition: int = -1
    manifest: str = ""
    number: int = 0
    record: str = ""


@dataclass(slots=True)
class KnownModel:
    """Of a model: see above. serials: of each file that is signed anew when it changes, the newest serial number."""

    newest: int = 0
    versions: dict[int, KnownVersion] = field(default_factory=dict)
    serials: dict[str, int] = field(default_factory=dict)


class TrustMemory:
    """One folder of it. Threads may share it."""

    def __init__(self, folder: Path) -> None:
        """Raises BadInput where nothing can be written there."""
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            probe = folder / f".probe-{os.getpid()}"
            probe.write_bytes(b"")
            probe.unlink()
        except OSError as error:
            raise BadInput(f"trust_memory: a folder that can be written wanted: {error.strerror}") from None

    def of(self, model: str) -> KnownModel:
        """What is remembered of a model; raises NotReady where that cannot be read: then nobody knows."""
        try:
            raw = json.loads(read_file(self._path(model), MAX_MEMORY_NBYTES).tobytes())
            if raw.pop("format") != FORMAT:
                raise ValueError
            versions = {int(v): KnownVersion(**known) for v, known in raw["versions"].items()}
            return KnownModel(int(raw["newest"]), versions, {str(n): int(s) for n, s in raw["serials"].items()})
        except FileNotFoundError:
            return KnownModel()
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, Corrupt):
            raise NotReady(f"trust: what is remembered of {model!r} cannot be read; {ACCEPT}") from None

    def check_manifest(self, model: str, version: int, root: str, edition: int, digest: str) -> None:
        """Raises Corrupt for a manifest that is older than one that was trusted, or another one."""
        known = self.of(model).versions.get(version)
        if known is None or known.edition < 0:
            return
        if root != known.root:
            raise Corrupt(f"manifest: version {version} that was trusted here wanted, got another one; {ACCEPT}")
        if edition < known.edition or (edition == known.edition and digest != known.manifest):
            got = f"edition {edition}" if edition < known.edition else "another one"
            raise Corrupt(f"manifest: edition {known.edition} or newer was trusted here, got {got}; {ACCEPT}")

    def check_serial(self, model: str, what: str, serial: int) -> None:
        """Raises Corrupt for a file of a model that is older than one that was trusted."""
        known = self.of(model).serials.get(what, 0)
        if serial < known:
            raise Corrupt(f"{what}: serial {known} or newer was trusted here, got {serial}; {ACCEPT}")

    def note_version(self, model: str, version: int, root: str, edition: int, digest: str) -> None:
        """A version is about to be served. root, edition, digest: see KnownVersion."""

        def change(known: KnownModel) -> None:
            one = known.versions.setdefault(version, KnownVersion())
            if edition > one.edition:
                one.root, one.edition, one.manifest = root, edition, digest
            known.newest = max(known.newest, version)

        self._change(model, change)

    def note_record(self, model: str, version: int, number: int, digest: str) -> None:
        """A record was trusted. digest: SHA-256 of its bytes."""

        def change(known: KnownModel) -> None:
            one = known.versions.setdefault(version, KnownVersion())
            if number > one.number:
                one.number, one.record = number, digest

        self._change(model, change)

    def note_serial(self, model: str, what: str, serial: int) -> None:
        """A file of a model was trusted."""
        self._change(model, lambda known: known.serials.update({what: max(serial, known.serials.get(what, 0))}))

    def forget(self, model: str) -> bool:
        """Forgets a model; whether there was something to forget."""
        with self._alone(model):
            there = self._path(model).exists()
            self._path(model).unlink(missing_ok=True)
            return there

    def _change(self, model: str, change: Callable[[KnownModel], object]) -> None:
        """Changes what is remembered, durably; raises NotReady."""
        try:
            with self._alone(model):
                known = self.of(model)
                before = _bytes(known)
                change(known)
                for version in sorted(known.versions)[:-MOST_VERSIONS]:
                    del known.versions[version]
                if (after := _bytes(known)) != before:
                    with atomic_file(self._path(model)) as file:
                        file.write(after)
        except OSError as error:
            raise NotReady(f"trust: what was trusted cannot be remembered: {error.strerror}") from None

    @contextmanager
    def _alone(self, model: str) -> Iterator[None]:
        fd = os.open(self.folder / f".{model}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _path(self, model: str) -> Path:
        return self.folder / f"{model}.json"


def newest_trusted(memory: TrustMemory | None, model: str) -> int:
    """Return the newest version of a model that was served before; 0 where nothing is remembered."""
    return memory.of(model).newest if memory is not None else 0


def check_downgrade(newest: int, number: int) -> None:
    """Raise Corrupt for an older version in the place of the newest that was trusted."""
    if number < newest:
        raise Corrupt(f"version {newest} that was trusted here wanted, got {number}; {ACCEPT}")


def _bytes(known: KnownModel) -> bytes:
    said: dict[str, Any] = {"format": FORMAT, **asdict(known)}
    return (json.dumps(said, sort_keys=True, indent=1) + "\n").encode()
