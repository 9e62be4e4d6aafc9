"""One record of a change log: its fields, its bytes, and the digests that link it to everything before it.

A record is a small JSON file, <version>/chain/<number>.json with ten digits, created once and never changed. `previous`
is the SHA-256 of the record before it (of record 1: the version's root hash): one hash chain from the manifest on. A
generation's digest identifies content: that of step 0 is the root digest, that of a delta follows from its parent's
digest and its file's SHA-256. So two servers with the same digest serve the same rows and weights, whatever was undone
in between.

The bytes of a delta's record follow from the record before it and the delta's file alone: every writer that adopts a
dropped file writes the same bytes.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from freshet_serving.processor.errors import BadInput, Corrupt, NotReady, printable
from freshet_serving.processor.package import KEY_ID, SIGNATURE, SIGNED, Manifest, read_file, sha256
from freshet_serving.processor.repository.storage import VersionStorage
from freshet_serving.processor.repository.version import WARMUP

if TYPE_CHECKING:
    from freshet_serving.processor.package import Signer

FORMAT, SIGNED_FORMAT = "freshet-record/1", "freshet-record/2"
CHAIN = "chain"
KINDS = DELTA, ROLLBACK, SNAPSHOT, HOLD, RELEASE, REPAIR = (
    "delta", "rollback", "snapshot", "hold", "release", "repair",
)  # fmt: skip
DIGITS = 10
MAX_RECORD_NBYTES = 16 << 10
MAX_REASON = 500
DIGEST_DIGITS = 32
HEX64, DIGEST = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{32}")
FILE = re.compile(r"(deltas|snapshots)/[A-Za-z0-9_-][A-Za-z0-9_.-]{0,80}(/snapshot\.json)?")
# Files that may be added or replaced after the commit, because they do not change a score.
LATER = ("compiled/", WARMUP)
# Keys of a manifest that do not change a score.
BESIDE = frozenset({"arch", "created_at", "event_time", "executables", "format", "graphs", "notes", *SIGNED})


@dataclass(frozen=True, slots=True)
class ChainRecord:
    """One record of a change log. processor.repository.log.history defines what each kind means.

    Attributes:
        kind: One of KINDS.
        previous: SHA-256 of the record before it; of record 1: the version's root hash.
        step: Step of the generation that it leads to.
        digest: Digest of that generation.
        parent_step: Step of the generation that a delta continues; otherwise of the head before the record.
        parent: Digest of that generation.
        top: The highest step ever used, this record's included.
        snapshot: Number of the newest snapshot's record; 0 for none.
        file: File of a delta, or file list of a snapshot.
        nbytes: Size of `file`.
        sha256: SHA-256 of `file`; of a repair: of the records that it sets aside (processor.repository.log.repair).
        since: Of a snapshot: the record that led to its generation, from which its readers start. Of a repair: the
            first record that it sets aside.
        at: Time in Unix seconds; of a delta: its publication time.
        reason: Reason of a hold or rollback, as it was written; see `why`.
        key: Id of the key that signed to_sign(); "" for none, without `signature` then.
    """

    model: str
    version: int
    number: int
    kind: str
    previous: str
    step: int
    digest: str
    parent_step: int
    parent: str
    top: int
    snapshot: int = 0
    file: str = ""
    nbytes: int = 0
    sha256: str = ""
    since: int = 0
    at: float = 0.0
    reason: str = ""
    key: str = ""
    signature: str = ""

    @property
    def why(self) -> str:
        """The reason for people; control and bidirectional characters of another program are escaped."""
        return printable(self.reason)

    def to_bytes(self) -> bytes:
        """Return the bytes of its file: one line of JSON, keys sorted, without spaces."""
        document = {"format": FORMAT, **{name: getattr(self, name) for name in _TYPES}}
        if self.key:
            document |= {"format": SIGNED_FORMAT, "key": self.key, "signature": self.signature}
            if not self.signature:
                del document["signature"]
        return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode() + b"\n"

    def to_sign(self, root: str) -> bytes:
        """Return what its signature covers: the version's root hash (so it belongs to one manifest) and the record."""
        return f"{root}\n".encode() + dataclasses.replace(self, signature="").to_bytes()

    def signed(self, signer: Signer, root: str) -> ChainRecord:
        """Return the record signed for the version with this root hash."""
        unsigned = dataclasses.replace(self, key=signer.id, signature="")
        return dataclasses.replace(unsigned, signature=signer.sign(unsigned.to_sign(root)))

    @classmethod
    def from_bytes(cls, data: bytes, number: int) -> ChainRecord:
        """Parse a record's file; raise Corrupt for anything that to_bytes() would not have written."""
        where = f"record {number}"
        record = cls(**parsed_fields(data[:MAX_RECORD_NBYTES], where, _FORMATS))
        record._check(number)
        if record.to_bytes() != data:
            raise Corrupt(f"{where}: not in canonical form")
        return record

    def _check(self, number: int) -> None:
        where = f"record {number}"
        if self.number != number:
            raise Corrupt(f"{where}: number: expected {number}, got {self.number}")
        if self.kind not in KINDS:
            raise Corrupt(f"{where}: kind: expected one of {', '.join(KINDS)}, got {self.kind[:32]!r}")
        named = HEX64.fullmatch(self.previous) and DIGEST.fullmatch(self.digest) and DIGEST.fullmatch(self.parent)
        if not named:
            raise Corrupt(f"{where}: expected previous, digest and parent in hexadecimal digits")
        if self.kind in (DELTA, SNAPSHOT):
            if not (FILE.fullmatch(self.file) and HEX64.fullmatch(self.sha256)):
                raise Corrupt(f"{where}: expected a file of the version and its sha256")
        elif self.kind == REPAIR:
            if self.file or self.nbytes or not HEX64.fullmatch(self.sha256) or not 0 < self.since < self.number:
                raise Corrupt(f"{where}: expected a sha256 and the first of the records that it sets aside")
        elif self.file or self.sha256 or self.nbytes:
            raise Corrupt(f"{where}: expected no file for kind {self.kind}")
        if not 0 <= self.at < 1e12 or len(self.reason) > MAX_REASON or self.top < self.step:
            raise Corrupt(f"{where}: at, reason or top out of bounds")
        signed = KEY_ID.fullmatch(self.key) and SIGNATURE.fullmatch(self.signature)
        if (self.key or self.signature) and not signed:
            raise Corrupt(f"{where}: expected a key and its signature in hexadecimal digits")


def field_types(record: type[Any]) -> dict[str, type]:
    """Return the types of a record's fields: int, str or float."""
    return {f.name: {"int": int, "str": str, "float": float}[str(f.type)] for f in dataclasses.fields(record)}


def parsed_fields(data: bytes, where: str, formats: Mapping[str, Mapping[str, type]]) -> dict[str, Any]:
    """Parse a record of one of these formats (the types of its fields); raise Corrupt, which calls it `where`."""
    try:
        raw = json.loads(data)
    except (ValueError, RecursionError):
        raise Corrupt(f"{where}: expected a JSON object") from None
    form = raw.pop("format", None) if isinstance(raw, dict) else None
    if not isinstance(form, str) or form not in formats:
        raise Corrupt(f"{where}: expected format {' or '.join(map(repr, formats))}")
    if raw.keys() != formats[form].keys():
        raise Corrupt(f"{where}: expected the keys {', '.join(formats[form])}")
    for name, kind in formats[form].items():
        whole = type(raw[name]) is int and 0 <= raw[name] < 10**18
        if whole and kind is float:
            raw[name] = float(raw[name])
        if type(raw[name]) is not kind or (kind is int and not whole):
            raise Corrupt(f"{where}: {name}: expected {kind.__name__}")
    return dict(raw)


_SIGNED_TYPES = field_types(ChainRecord)
_TYPES = {name: kind for name, kind in _SIGNED_TYPES.items() if name not in ("key", "signature")}
_FORMATS = {FORMAT: _TYPES, SIGNED_FORMAT: _SIGNED_TYPES}


def record_name(number: int) -> str:
    """Return a record's file, relative to the version's folder."""
    return f"{CHAIN}/{number:0{DIGITS}d}.json"


def record_bytes(storage: VersionStorage, number: int) -> bytes | None:
    """Return the bytes under a record's name, or None; raise Corrupt if they cannot be a record's, or NotReady."""
    storage.look_for(record_name(number))
    try:
        return read_file(storage.folder / record_name(number), MAX_RECORD_NBYTES).tobytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        # If the folder cannot be read, a search for the last record would never end.
        raise NotReady(f"record {number}: cannot be read: {os.strerror(error.errno or 0)}") from None


def root_hash(manifest: Manifest) -> str:
    """Return the SHA-256 of all that scores follow from: not executables, recorded requests, notes, signatures."""
    # Leave out SHA-256 of files: signing an unsigned version must not change a digest.
    files = {n: dataclasses.replace(f, sha256="") for n, f in manifest.files.items() if not n.startswith(LATER)}
    document = _json_value(dataclasses.replace(manifest, files=files))
    hashed = {key: value for key, value in document.items() if key not in BESIDE}
    return sha256(json.dumps(hashed, sort_keys=True).encode())


def _json_value(value: Any) -> Any:
    """Return `value` as JSON, without fields that have their default: a new field must not change a digest."""
    if dataclasses.is_dataclass(value):
        parts = ((f, getattr(value, f.name)) for f in dataclasses.fields(value))
        return {f.name: _json_value(part) for f, part in parts if f.init and part != _default(f)}
    if isinstance(value, Mapping):
        return {key: _json_value(part) for key, part in value.items()}
    return [_json_value(part) for part in value] if isinstance(value, (list, tuple)) else value


def _default(spec: dataclasses.Field[Any]) -> Any:
    factory = spec.default_factory
    return spec.default if factory is dataclasses.MISSING else factory()


def root_digest(manifest: Manifest) -> str:
    """Return the digest of a version's step 0."""
    return root_hash(manifest)[:DIGEST_DIGITS]


def delta_digest(parent: str, file_sha256: str) -> str:
    """Return the digest of the generation that a delta leads to."""
    return sha256(f"{parent} {file_sha256}".encode())[:DIGEST_DIGITS]


def check_reason(reason: str) -> str:
    """Return `reason` if a record can carry it; raise BadInput."""
    if len(reason) > MAX_REASON or not reason.isprintable():
        raise BadInput(f"reason: expected at most {MAX_REASON} printable characters, got {len(reason)}")
    return reason
