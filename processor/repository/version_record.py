"""One decision about a full version: a record that holds it, withdraws it or releases it again, as a file.

Invariants
- A record is read only as to_bytes() would have written it, with the model, the version and the number of its name.
- It names the version's root hash, and its signature covers all of it.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from freshet_serving.processor.errors import Corrupt, printable
from freshet_serving.processor.package import KEY_ID, SIGNATURE, exclusive_file, fsync_folder
from freshet_serving.processor.repository.log.chain_record import (
    HEX64,
    HOLD,
    MAX_REASON,
    RELEASE,
    field_types,
    parsed_fields,
)

if TYPE_CHECKING:
    from freshet_serving.processor.package import Signer

FORMAT = "freshet-version-record/1"
ACTIONS = HOLD, WITHDRAW, RELEASE = HOLD, "withdraw", RELEASE
MAX_RECORD_NBYTES = 8 << 10
MAX_BY = 64


@dataclass(frozen=True, slots=True)
class VersionRecord:
    """One decision about a full version.

    Attributes:
        number: Number of the record among those of the version.
        action: One of ACTIONS.
        manifest: Root hash of the version.
        reason: As it was written; see `why`.
        by: Who decided: "gate", "rollback", or a person's name.
        at: Unix seconds.
        key: Id of the key that signed to_sign(); "" for none.
    """

    model: str
    version: int
    number: int
    action: str
    manifest: str
    reason: str = ""
    by: str = ""
    at: float = 0.0
    key: str = ""
    signature: str = ""

    @property
    def why(self) -> str:
        """The reason for people; control characters of another program are escaped."""
        return printable(self.reason)

    @property
    def binds(self) -> bool:
        """True if no process may choose the version by itself while this record stands."""
        return self.action != RELEASE

    @property
    def state(self) -> str:
        return {HOLD: "held", WITHDRAW: "withdrawn", RELEASE: "available"}[self.action]

    def describe(self) -> str:
        """Return the decision in a few words for people."""
        state = "released" if self.action == RELEASE else self.state
        by = f" by {printable(self.by)}" if self.by else ""
        return f"{state}{by}{f': {self.why}' if self.reason else ''}"

    def to_bytes(self) -> bytes:
        """Return the bytes of its file: one line of JSON, keys sorted, without spaces."""
        document = {"format": FORMAT, **{name: getattr(self, name) for name in _TYPES}}
        return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode() + b"\n"

    def to_sign(self) -> bytes:
        return dataclasses.replace(self, signature="").to_bytes()

    def signed(self, signer: Signer) -> VersionRecord:
        unsigned = dataclasses.replace(self, key=signer.id, signature="")
        return dataclasses.replace(unsigned, signature=signer.sign(unsigned.to_sign()))

    @classmethod
    def from_bytes(cls, data: bytes, model: str, version: int, number: int) -> VersionRecord:
        """Parse the file of this name; raise Corrupt for anything that to_bytes() would not have written."""
        where = f"record {version}-{number}"
        record = cls(**parsed_fields(data[:MAX_RECORD_NBYTES], where, {FORMAT: _TYPES}))
        if (record.model, record.version, record.number) != (model, version, number):
            raise Corrupt(f"{where}: expected the model, version and number of its name")
        if record.action not in ACTIONS:
            raise Corrupt(f"{where}: action: expected one of {', '.join(ACTIONS)}, got {record.action[:32]!r}")
        if not HEX64.fullmatch(record.manifest):
            raise Corrupt(f"{where}: manifest: expected 64 hexadecimal digits")
        if not 0 <= record.at < 1e12 or len(record.reason) > MAX_REASON or len(record.by) > MAX_BY:
            raise Corrupt(f"{where}: at, reason or by out of bounds")
        signed = KEY_ID.fullmatch(record.key) and SIGNATURE.fullmatch(record.signature)
        if (record.key or record.signature) and not signed:
            raise Corrupt(f"{where}: expected a key and its signature in hexadecimal digits")
        if record.to_bytes() != data:
            raise Corrupt(f"{where}: not in canonical form")
        return record


_TYPES = field_types(VersionRecord)


def record_file(version: int, number: int) -> str:
    return f"{version}-{number}.json"


def create_record(path: Path, data: bytes) -> bool:
    """Create a record's file exclusively and durably, with its folder; return False if it exists."""
    if not path.parent.is_dir():
        path.parent.mkdir(parents=True, exist_ok=True)
        fsync_folder(path.parent.parent)
    try:
        with exclusive_file(path) as file:
            file.write(data)
    except FileExistsError:
        return False
    return True
