"""Memory of what a process has trusted, across restarts: an old state of a repository is signed too.

    <folder>/<model>.json      one small file per model

For a model: the newest version that was served, and how often its labels and its traffic were signed. For each version:
the edition of its manifest and the newest record, each with the SHA-256 of its bytes. All numbers only grow, so two
processes with one folder merge by taking the larger.

Invariants
- An entry is durable before what it describes is served.
- Anything older than what is remembered is refused, and so is different content under the same number. A person accepts
  it by `freshet keys accept`, which forgets the model.
- Only numbers and digests of a repository are stored.

Costs: one durable file for each poll that brings records. Limit: a lost folder, or a new replica, remembers nothing and
trusts the first signed state that it sees.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from freshet_serving.processor.errors import ACCEPT, BadInput, Corrupt, NotReady
from freshet_serving.processor.package import atomic_file, read_file

FORMAT = "freshet-trust/1"
MAX_MEMORY_NBYTES = 1 << 20
MOST_VERSIONS = 256


def default_memory(repository: str) -> Path:
    """Return the default folder of a repository's trust memory."""
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state")
    where = repository if "://" in repository else os.path.realpath(repository)
    return state / "freshet" / "trust" / hashlib.sha256(where.encode()).hexdigest()[:16]


@dataclass(slots=True)
class KnownVersion:
    """Trusted state of a version.

    Attributes:
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
    """Trusted state of a model; `serials` by file that is signed again when it changes."""

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
        """Return what is remembered of a model; raise NotReady if it cannot be read: trust is unknown then."""
        try:
            raw = json.loads(read_file(self._path(model), MAX_MEMORY_NBYTES).tobytes())
            if raw.pop("format") != FORMAT:
                raise ValueError
            versions = {int(v): KnownVersion(**fields) for v, fields in raw["versions"].items()}
            return KnownModel(int(raw["newest"]), versions, {str(n): int(s) for n, s in raw["serials"].items()})
        except FileNotFoundError:
            return KnownModel()
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, Corrupt):
            raise NotReady(f"trust: the saved state of {model!r} cannot be read; {ACCEPT}") from None

    def check_manifest(self, model: str, version: int, root: str, edition: int, digest: str) -> None:
        """Raise Corrupt for a manifest (root hash, SHA-256) that is older than a trusted one, or different."""
        trusted = self.of(model).versions.get(version)
        if trusted is None or trusted.edition < 0:
            return
        if root != trusted.root:
            raise Corrupt(f"manifest: expected version {version} as trusted here before, got a different one; {ACCEPT}")
        if edition < trusted.edition or (edition == trusted.edition and digest != trusted.manifest):
            got = f"edition {edition}" if edition < trusted.edition else "a different one"
            raise Corrupt(
                f"manifest: expected edition {trusted.edition} or newer as trusted here before, got {got}; {ACCEPT}"
            )

    def check_serial(self, model: str, what: str, serial: int) -> None:
        """Raise Corrupt for a file of a model that is older than a trusted one."""
        trusted = self.of(model).serials.get(what, 0)
        if serial < trusted:
            raise Corrupt(f"{what}: expected serial {trusted} or newer as trusted here before, got {serial}; {ACCEPT}")

    def note_version(self, model: str, version: int, root: str, edition: int, digest: str) -> None:
        """Remember a version (root hash, SHA-256 of its manifest) that is about to be served."""

        def change(memory: KnownModel) -> None:
            trusted = memory.versions.setdefault(version, KnownVersion())
            if edition > trusted.edition:
                trusted.root, trusted.edition, trusted.manifest = root, edition, digest
            memory.newest = max(memory.newest, version)

        self._change(model, change)

    def note_record(self, model: str, version: int, number: int, digest: str) -> None:
        """Remember a trusted record and the SHA-256 of its bytes."""

        def change(memory: KnownModel) -> None:
            trusted = memory.versions.setdefault(version, KnownVersion())
            if number > trusted.number:
                trusted.number, trusted.record = number, digest

        self._change(model, change)

    def note_serial(self, model: str, what: str, serial: int) -> None:
        """Remember a trusted file of a model."""
        self._change(model, lambda memory: memory.serials.update({what: max(serial, memory.serials.get(what, 0))}))

    def forget(self, model: str) -> bool:
        """Forget a model; return True if anything was remembered."""
        with self._alone(model):
            remembered = self._path(model).exists()
            self._path(model).unlink(missing_ok=True)
            return remembered

    def _change(self, model: str, change: Callable[[KnownModel], object]) -> None:
        try:
            with self._alone(model):
                memory = self.of(model)
                before = _bytes(memory)
                change(memory)
                for version in sorted(memory.versions)[:-MOST_VERSIONS]:
                    del memory.versions[version]
                if (after := _bytes(memory)) != before:
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


def _bytes(memory: KnownModel) -> bytes:
    document: dict[str, Any] = {"format": FORMAT, **asdict(memory)}
    return (json.dumps(document, sort_keys=True, indent=1) + "\n").encode()
