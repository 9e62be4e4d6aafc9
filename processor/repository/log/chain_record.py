"""One record of a chain: what it says, its bytes, and the digests that tie it to everything before it.

A record is a small JSON file, <version>/chain/<number>.json, created once and never changed. Its number has ten digits.
`previous` is the SHA-256 of the record before it (of record 1: the version's root digest), so the records of a version
are one hash chain from its manifest on. A generation's digest names content: that of step 0 is the root digest, that
of a delta is made of its parent's and of its file's SHA-256. So two servers that say the same digest serve the same
rows and weights, whatever was undone in between.

The bytes of a delta's record follow from the record before it and from the delta's file alone: whoever adopts a file
that somebody dropped into the folder writes the same bytes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from freshet_serving.processor.errors import BadInput, Corrupt, printable
from freshet_serving.processor.package import SIGNED as MANIFEST_SIGNED
from freshet_serving.processor.package import Manifest
from freshet_serving.processor.package import KEY_ID, SIGNATURE, Signer
from freshet_serving.processor.repository.warmup import WARMUP

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
# What may be added to a version after it was committed, or replaced, and what does not change a score's meaning.
LATER = ("compiled/", WARMUP)
# Of a manifest: what its scores do not follow from.
BESIDE = frozenset(
    {"arch", "created_at", "event_time", "executables", "format", "notes", "user_width", *MANIFEST_SIGNED}
)


@dataclass(frozen=True, slots=True)
class ChainRecord:
    """A record. kind: one of KINDS; what each means is processor.repository.log.history's to say.

    step, digest: the generation that it leads to. parent_step, parent: the one that a delta stands on; else those of
    the head before. top: the highest step ever used, this record's included. snapshot: number of the newest snapshot's
    record, 0 for none. file, nbytes, sha256: of a delta's file, or of a snapshot's list of files. since: of a snapshot,
    the record that led to its generation, from which on a reader of it reads; of a repair, the first record that it
    sets aside, and sha256 is of those (processor.repository.log.repair). at: Unix seconds; of a delta those of its publication.
    reason: why somebody held it or rolled back, as it was written: see `why`. key, signature: who has signed
    to_sign(), "" for nobody; a signed record has these two keys more.
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
        """Its reason for people to read: control and bidirectional characters, which a writer of another program may
        have put there, are escaped."""
        return printable(self.reason)

    def to_bytes(self) -> bytes:
        """Its file: one line of JSON, keys sorted, without blanks."""
        document = {"format": FORMAT, **{name: getattr(self, name) for name in _TYPES}}
        if self.key:
            document |= {"format": SIGNED_FORMAT, "key": self.key, "signature": self.signature}
            if not self.signature:
                del document["signature"]
        return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode() + b"\n"

    def to_sign(self, root: str) -> bytes:
        """What its signature is of: the root hash of its version, and its bytes without the signature. So a record is
        of one manifest, also for who begins at a snapshot."""
        return f"{root}\n".encode() + dataclasses.replace(self, signature="").to_bytes()

    def signed(self, signer: Signer, root: str) -> ChainRecord:
        """The same, signed. root: the version's root hash."""
        made = dataclasses.replace(self, key=signer.id, signature="")
        return dataclasses.replace(made, signature=signer.sign(made.to_sign(root)))

    @classmethod
    def from_bytes(cls, data: bytes, number: int) -> ChainRecord:
        """Reads a record's file; raises Corrupt for anything that to_bytes() would not have written."""
        where = f"record {number}"
        try:
            raw = json.loads(data[:MAX_RECORD_NBYTES])
        except (ValueError, RecursionError):
            raise Corrupt(f"{where}: a JSON object wanted") from None
        form = raw.pop("format", None) if isinstance(raw, dict) else None
        if form not in (FORMAT, SIGNED_FORMAT):
            raise Corrupt(f"{where}: format {FORMAT!r} or {SIGNED_FORMAT!r} wanted")
        types = _TYPES if form == FORMAT else _TYPES | dict.fromkeys(SIGNED, str)
        if raw.keys() != set(types):
            raise Corrupt(f"{where}: the keys {', '.join(types)} wanted")
        for name, kind in types.items():
            if type(raw[name]) is int and kind is float:
                raw[name] = float(raw[name])
            if type(raw[name]) is not kind or (kind is int and not 0 <= raw[name] < 10**18):
                raise Corrupt(f"{where}: {name}: {kind.__name__} wanted")
        record = cls(**raw)
        record._check(number)
        if record.to_bytes() != data:
            raise Corrupt(f"{where}: not spelled as records are")
        return record

    def _check(self, number: int) -> None:
        where = f"record {number}"
        if self.number != number:
            raise Corrupt(f"{where}: names itself {self.number}")
        if self.kind not in KINDS:
            raise Corrupt(f"{where}: kind {self.kind[:32]!r} is none of {', '.join(KINDS)}")
        named = HEX64.fullmatch(self.previous) and DIGEST.fullmatch(self.digest) and DIGEST.fullmatch(self.parent)
        if not named:
            raise Corrupt(f"{where}: previous, digest and parent wanted in hexadecimal digits")
        if self.kind in (DELTA, SNAPSHOT):
            if not (FILE.fullmatch(self.file) and HEX64.fullmatch(self.sha256)):
                raise Corrupt(f"{where}: a file of the version and its sha256 wanted")
        elif self.kind == REPAIR:
            if self.file or self.nbytes or not HEX64.fullmatch(self.sha256) or not 0 < self.since < self.number:
                raise Corrupt(f"{where}: a sha256 and the first of the records that it sets aside wanted")
        elif self.file or self.sha256 or self.nbytes:
            raise Corrupt(f"{where}: no file wanted for kind {self.kind}")
        if not 0 <= self.at < 1e12 or len(self.reason) > MAX_REASON or self.top < self.step:
            raise Corrupt(f"{where}: at, reason or top out of bounds")
        signed = KEY_ID.fullmatch(self.key) and SIGNATURE.fullmatch(self.signature)
        if (self.key or self.signature) and not signed:
            raise Corrupt(f"{where}: a key and its signature wanted in hexadecimal digits")


SIGNED = ("key", "signature")
_TYPES: dict[str, type] = {
    f.name: {"int": int, "str": str, "float": float}[str(f.type)]
    for f in dataclasses.fields(ChainRecord)
    if f.name not in SIGNED
}


def record_name(number: int) -> str:
    """The record's file, relative to the version's folder."""
    return f"{CHAIN}/{number:0{DIGITS}d}.json"


def sha256(data: Any) -> str:
    """Of a buffer, as 64 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def root_hash(manifest: Manifest) -> str:
    """SHA-256 of what a version's scores follow from: its inputs, transforms, features, tables and files of weights.
    Executables, recorded requests, notes and signatures may come later and are left out."""
    # Signing a version that was not signed moves no digest: what is served stays what it was.
    files = {n: dataclasses.replace(f, sha256="") for n, f in manifest.files.items() if not n.startswith(LATER)}
    document = _said(dataclasses.replace(manifest, files=files))
    kept = {key: value for key, value in document.items() if key not in BESIDE}
    return sha256(json.dumps(kept, sort_keys=True).encode())


def _said(value: Any) -> Any:
    """`value` as JSON, without fields that have their default: a field that is new to the format moves no digest."""
    if dataclasses.is_dataclass(value):
        parts = ((f, getattr(value, f.name)) for f in dataclasses.fields(value))
        return {f.name: _said(part) for f, part in parts if part != _default(f)}
    if isinstance(value, Mapping):
        return {key: _said(part) for key, part in value.items()}
    return [_said(part) for part in value] if isinstance(value, list) else value


def _default(spec: dataclasses.Field[Any]) -> Any:
    made = spec.default_factory
    return spec.default if made is dataclasses.MISSING else made()


def root_digest(manifest: Manifest) -> str:
    """The digest of a version's step 0."""
    return root_hash(manifest)[:DIGEST_DIGITS]


def delta_digest(parent: str, file_sha256: str) -> str:
    """The digest of the generation that a delta leads to."""
    return sha256(f"{parent} {file_sha256}".encode())[:DIGEST_DIGITS]


def check_reason(reason: str) -> str:
    """`reason` if a record can carry it; raises BadInput."""
    if len(reason) > MAX_REASON or not reason.isprintable():
        raise BadInput(f"reason: at most {MAX_REASON} printable letters wanted, got {len(reason)}")
    return reason
