"""Keys of one process: the signing key, the trusted keys, and a memory of what was trusted before.

Invariants
- Without keys nothing is signed and no signature is required: every byte that is written is the same as before
  signatures were introduced.
- A process with trusted keys accepts only what one of them has signed: manifests, records, labels and traffic. Files of
  a version and of a snapshot are identified by their SHA-256, which is part of what is signed.
- A process with a signing key also trusts, by default only its own key: it never vouches for content that another party
  has put into a repository by building on it.
- A process without a key writes nothing where signatures are required, or where the existing content is signed
  (SigningKeyRequired): if a server is requested to roll back, or its guard holds a delta, it does so on this server
  alone.

Rejected: adopting a file without a record where signatures are required, even by a process that could sign: anyone who
can write to a bucket could then have rows signed. Certificates and expiry: a key file that is trusted is what
deployments know how to distribute and to revoke.

TrustMemory remembers across restarts what a process has trusted, because an old state of a repository is signed too.

    <folder>/<model>.json      one small file per model

For a model: the newest version that was served, and how often its labels and its traffic were signed. For each version:
the edition of its manifest and the newest record, each with the SHA-256 of its bytes. All numbers only grow, so two
processes with one folder merge by taking the larger.

Invariants
- An entry is durable before what it describes is served.
- Anything older than what is remembered is refused, and so is different content under the same number. A person accepts
  it by `freshet keys accept`, which forgets the model.
- Nothing of a repository is written here except numbers and digests.

Costs: one durable file for each poll that brings records. Limit: a lost folder, or a new replica, remembers nothing:
the first state that it sees is trusted if it is signed.
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

from freshet_serving.processor.errors import BadInput, Corrupt, NotReady, SigningKeyRequired
from freshet_serving.processor.package import PublicKey, Signer, atomic_file, read_file

KEY_VARIABLE, TRUST_VARIABLE = "FRESHET_KEY", "FRESHET_TRUST"


@dataclass(frozen=True, slots=True)
class Keyring:
    """The signing key and the trusted keys of a process.

    Attributes:
        signer: Key to sign with; None for none.
        trusted: Trusted public keys by id; signatures are required if there are any.
        memory: What was trusted before; None if nothing is remembered, as in commands.
    """

    signer: Signer | None = None
    trusted: Mapping[str, PublicKey] = field(default_factory=dict)
    memory: TrustMemory | None = None

    @classmethod
    def of(cls, key: str | Path = "", trust: Iterable[str | Path] = (), memory: str | Path = "") -> Keyring:
        """Return the keyring of these files; raise BadInput.

        Args:
            key: File of the signing key; "" for none.
            trust: Files of trusted public keys.
            memory: Folder of the trust memory; "" for none.
        """
        signer = Signer.read(key) if key else None
        keys = [PublicKey.read(path) for path in trust]
        if signer is not None:
            keys.append(signer.public)
        return cls(signer, {one.id: one for one in keys}, TrustMemory(Path(memory)) if memory and keys else None)

    @classmethod
    def of_writer(cls, key: str | Path = "", trust: Iterable[str | Path] = ()) -> Keyring:
        """Return the keyring of a process that writes to repositories; raise BadInput.

        Args:
            key: File of the signing key; "" for the one in the environment.
            trust: Files of public keys to trust in addition to those in the environment.
        """
        listed = os.environ.get(TRUST_VARIABLE, "")
        named = [one.strip() for one in listed.split(",") if one.strip()]
        if listed and not named:
            raise BadInput(f"{TRUST_VARIABLE}: expected files of public keys separated by commas, got {listed[:64]!r}")
        return cls.of(key or os.environ.get(KEY_VARIABLE, ""), [*trust, *named])

    def check_signature(self, what: str, key: str, signature: str, data: bytes) -> None:
        """Raise Corrupt unless a trusted key has signed these bytes; pass if signatures are not required.

        Args:
            what: Name of the data, for the message.
            key: Id of the key that is named as the signer; "" for none.
            signature: The signature; "" for none.
            data: The signed bytes.
        """
        if not self.trusted:
            return
        wanted = f"{what}: expected a signature by key {' or '.join(self.trusted)}"
        if not key:
            raise Corrupt(f"{wanted}, got none")
        if key not in self.trusted:
            raise Corrupt(f"{wanted}, got key {key}")
        if not self.trusted[key].verify(signature, data):
            raise Corrupt(f"{wanted}, got a signature that does not match the content")

    def key_for(self, what: str, signed: str = "") -> Signer | None:
        """Return the key that must sign what is about to be written; None if nothing is signed.

        Args:
            what: Name of the data, for the message.
            signed: Id of the key that signed the existing content; "" for none.

        Raises:
            SigningKeyRequired: A signature is required and there is no key.
        """
        if self.signer is None and (self.trusted or signed):
            why = f"is signed by key {signed}" if signed else "accepts only signed files"
            raise SigningKeyRequired(
                f"{what}: the repository {why}, and this process has no key; set --key or {KEY_VARIABLE}"
            )
        return self.signer


NO_KEYS = Keyring()


FORMAT = "freshet-trust/1"
MAX_MEMORY_NBYTES = 1 << 20
MOST_VERSIONS = 256
ACCEPT = "`freshet keys accept` resets the trusted state"


def default_memory(repository: str) -> Path:
    """Return the default folder of the trust memory of a repository."""
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state")
    where = repository if "://" in repository else os.path.realpath(repository)
    return state / "freshet" / "trust" / hashlib.sha256(where.encode()).hexdigest()[:16]


@dataclass(slots=True)
class KnownVersion:
    """Trusted state of a version.

    Attributes:
        root: Its root hash.
        edition: Edition of its manifest; -1 if unknown.
        manifest: SHA-256 of its manifest.
        number: Number of its newest record.
        record: SHA-256 of that record.
    """

    root: str = ""
    edition: int = -1
    manifest: str = ""
    number: int = 0
    record: str = ""


@dataclass(slots=True)
class KnownModel:
    """Trusted state of a model.

    Attributes:
        newest: Newest version that was served.
        versions: Trusted state of each version.
        serials: Newest serial number of each file that is signed again when it changes.
    """

    newest: int = 0
    versions: dict[int, KnownVersion] = field(default_factory=dict)
    serials: dict[str, int] = field(default_factory=dict)


class TrustMemory:
    """A folder of trust memory. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        """Raise BadInput if the folder is not writable."""
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            probe = folder / f".probe-{os.getpid()}"
            probe.write_bytes(b"")
            probe.unlink()
        except OSError as error:
            raise BadInput(f"trust_memory: the folder cannot be written: {error.strerror}") from None

    def of(self, model: str) -> KnownModel:
        """Return what is remembered of a model; raise NotReady if it cannot be read, because trust is unknown then."""
        try:
            raw = json.loads(read_file(self._path(model), MAX_MEMORY_NBYTES).tobytes())
            if raw.pop("format") != FORMAT:
                raise ValueError
            versions = {int(v): KnownVersion(**known) for v, known in raw["versions"].items()}
            return KnownModel(int(raw["newest"]), versions, {str(n): int(s) for n, s in raw["serials"].items()})
        except FileNotFoundError:
            return KnownModel()
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, Corrupt):
            raise NotReady(f"trust: the saved state of {model!r} cannot be read; {ACCEPT}") from None

    def check_manifest(self, model: str, version: int, root: str, edition: int, digest: str) -> None:
        """Raise Corrupt for a manifest that is older than a trusted one, or different.

        Args:
            model: Name of the model.
            version: The version.
            root: Its root hash.
            edition: Edition of its manifest.
            digest: SHA-256 of its manifest.
        """
        known = self.of(model).versions.get(version)
        if known is None or known.edition < 0:
            return
        if root != known.root:
            raise Corrupt(f"manifest: expected version {version} as trusted here before, got a different one; {ACCEPT}")
        if edition < known.edition or (edition == known.edition and digest != known.manifest):
            got = f"edition {edition}" if edition < known.edition else "a different one"
            raise Corrupt(
                f"manifest: expected edition {known.edition} or newer as trusted here before, got {got}; {ACCEPT}"
            )

    def check_serial(self, model: str, what: str, serial: int) -> None:
        """Raise Corrupt for a file of a model that is older than a trusted one.

        Args:
            model: Name of the model.
            what: Name of the file.
            serial: Its serial number.
        """
        known = self.of(model).serials.get(what, 0)
        if serial < known:
            raise Corrupt(f"{what}: expected serial {known} or newer as trusted here before, got {serial}; {ACCEPT}")

    def note_version(self, model: str, version: int, root: str, edition: int, digest: str) -> None:
        """Remember a version that is about to be served.

        Args:
            model: Name of the model.
            version: The version.
            root: Its root hash.
            edition: Edition of its manifest.
            digest: SHA-256 of its manifest.
        """

        def change(known: KnownModel) -> None:
            one = known.versions.setdefault(version, KnownVersion())
            if edition > one.edition:
                one.root, one.edition, one.manifest = root, edition, digest
            known.newest = max(known.newest, version)

        self._change(model, change)

    def note_record(self, model: str, version: int, number: int, digest: str) -> None:
        """Remember a trusted record.

        Args:
            model: Name of the model.
            version: The version.
            number: Number of the record.
            digest: SHA-256 of its bytes.
        """

        def change(known: KnownModel) -> None:
            one = known.versions.setdefault(version, KnownVersion())
            if number > one.number:
                one.number, one.record = number, digest

        self._change(model, change)

    def note_serial(self, model: str, what: str, serial: int) -> None:
        """Remember a trusted file of a model.

        Args:
            model: Name of the model.
            what: Name of the file.
            serial: Its serial number.
        """
        self._change(model, lambda known: known.serials.update({what: max(serial, known.serials.get(what, 0))}))

    def forget(self, model: str) -> bool:
        """Forget a model; return True if anything was remembered."""
        with self._alone(model):
            there = self._path(model).exists()
            self._path(model).unlink(missing_ok=True)
            return there

    def _change(self, model: str, change: Callable[[KnownModel], object]) -> None:
        """Change what is remembered, durably; raise NotReady."""
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
            raise NotReady(f"trust: the state cannot be saved: {error.strerror}") from None

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


def check_downgrade(newest: int, number: int) -> None:
    """Raise Corrupt if a version is older than the newest that was trusted.

    Args:
        newest: The newest trusted version.
        number: The version to serve.
    """
    if number < newest:
        raise Corrupt(f"expected version {newest} or newer as trusted here before, got {number}; {ACCEPT}")


def _bytes(known: KnownModel) -> bytes:
    said: dict[str, Any] = {"format": FORMAT, **asdict(known)}
    return (json.dumps(said, sort_keys=True, indent=1) + "\n").encode()
