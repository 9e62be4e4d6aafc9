"""Read and write the file of API keys, which `freshet key` edits and a server loads.

    [address]                     # optional: for each client address, with any key
    rate = 200.0                  # requests a second; as many may come at once
    concurrency = 64

    [[keys]] name = "web"
    sha256 = "2c26b46b..."        # of the key, which is shown once and stored nowhere
    scopes = ["predict"] expires = 2027-01-01T00:00:00Z rate = 100.0 concurrency = 16

A key is 32 random bytes, so plain SHA-256 is as safe at rest as a slow hash is for passwords. A dictionary look-up of
the hash is as safe as a comparison in constant time: no client can choose a key with a given hash.

Invariants: the file is accepted or refused as a whole; it is replaced atomically (processor.package.whole_files) by one
writer at a time. Its content is untrusted: bounded, and every field must have a known name and type.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import math
import os
import re
import secrets
import stat
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from freshet_serving.processor.errors import BadInput, Conflict, Corrupt, NotFound, first_of, json_kind, printable
from freshet_serving.processor.package import atomic_file, read_file
from freshet_serving.serving.access.rate_limiter import Slots, slots_of
from freshet_serving.serving.access.scopes import ADMIN_READ, ADMIN_WRITE, FEATURES, SCOPES

PREFIX = "freshet_"
KEY_NBYTES = 32
MAX_FILE_NBYTES, MAX_KEYS = 1 << 20, 4096
NAME, SHA256 = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"), re.compile(r"[0-9a-f]{64}")
MAX_RATE, MAX_CONCURRENCY = 1e6, 1 << 20
LIMITS = {"rate", "concurrency"}
FIELDS = {"name", "sha256", "scopes", "expires", *LIMITS}
HEAD = "# API keys of a Freshet server; written by `freshet key`, which keeps no comments.\n"


@dataclass(frozen=True, slots=True)
class RateLimits:
    """Limits of one key or address: requests a second, and requests in flight; 0 for no limit."""

    rate: float = 0.0
    concurrency: int = 0


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An API key: the SHA-256 of its secret, not the secret; `expires_s` is Unix time, infinity for never."""

    name: str
    sha256: bytes
    scopes: frozenset[str]
    expires_s: float = math.inf
    limits: RateLimits = RateLimits()
    slots: Slots = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "slots", slots_of(self.sha256))


@dataclass(frozen=True)
class ApiKeys:
    """The keys that a server knows; `address` are the limits of each client address."""

    keys: tuple[ApiKey, ...] = ()
    address: RateLimits = RateLimits()
    _by_hash: Mapping[bytes, ApiKey] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_hash", {key.sha256: key for key in self.keys})

    def find(self, secret: bytes) -> ApiKey | None:
        """Return the key with this secret, or None; the module's docstring explains why its timing reveals nothing."""
        return self._by_hash.get(hashlib.sha256(secret).digest())

    def with_admin_token(self, token: str) -> ApiKeys:
        """Return these keys, and the admin token as a key with the admin scopes and features, unless it is ""."""
        if not token:
            return self
        scopes = frozenset({ADMIN_READ, ADMIN_WRITE, FEATURES})
        key = ApiKey("admin token", hashlib.sha256(token.encode()).digest(), scopes)
        return ApiKeys((*self.keys, key), self.address)

    @classmethod
    def parse(cls, data: bytes) -> ApiKeys:
        """Parse the content of a key file; raise BadInput."""
        try:
            document = tomllib.loads(data.decode())
        except (ValueError, RecursionError) as error:
            raise BadInput(f"api_keys: expected TOML, got {printable(str(error))[:120]}") from None
        _known(document, {"keys", "address"}, "api_keys")
        address, tables = document.get("address", {}), document.get("keys", [])
        _want(type(address) is dict, "address: expected a table", address)
        _known(address, LIMITS, "address")
        _want(type(tables) is list, "keys: expected [[keys]] tables", tables)
        if len(tables) > MAX_KEYS:
            raise BadInput(f"api_keys: expected at most {MAX_KEYS} keys, got {len(tables)}")
        keys = tuple(_key(table, f"keys[{number}]") for number, table in enumerate(tables))
        for attribute in ("name", "sha256"):
            values = [getattr(key, attribute) for key in keys]
            if len(set(values)) < len(values):
                twice = first_of(key.name for key, value in zip(keys, values) if values.count(value) > 1)
                raise BadInput(f"api_keys: expected each {attribute} once, got the one of {twice!r} again")
        return cls(keys, _limits(address, "address"))

    def text(self) -> str:
        parts = [HEAD]
        if self.address != RateLimits():
            parts.append("[address]\n" + _limits_text(self.address))
        for key in self.keys:
            scopes = ", ".join(f'"{scope}"' for scope in SCOPES if scope in key.scopes)
            expires = f"expires = {_time_text(key.expires_s)}\n" if key.expires_s < math.inf else ""
            parts.append(
                f'[[keys]]\nname = "{key.name}"\nsha256 = "{key.sha256.hex()}"\nscopes = [{scopes}]\n{expires}'
                + _limits_text(key.limits)
            )
        return "\n".join(parts)

    def added(
        self, name: str, scopes: Iterable[str], expires_s: float = math.inf, limits: RateLimits = RateLimits()
    ) -> tuple[ApiKeys, str]:
        """Return these keys with a new one that expires at a Unix time, and its secret.

        Raises:
            BadInput: An argument is invalid.
            Conflict: The name is in use.
        """
        if any(key.name == name for key in self.keys):
            raise Conflict(f"name: key {name!r} already exists; revoke it or choose another name")
        scopes = frozenset(scopes)
        # The text has no place for an unknown scope.
        if unknown := sorted(scopes - set(SCOPES)):
            raise BadInput(f"scope: expected some of {', '.join(SCOPES)}, got {_shown(unknown[0])}")
        secret = PREFIX + base64.urlsafe_b64encode(secrets.token_bytes(KEY_NBYTES)).rstrip(b"=").decode()
        key = ApiKey(name, hashlib.sha256(secret.encode()).digest(), scopes, expires_s, limits)
        keys = ApiKeys((*self.keys, key), self.address)
        # Parse the text so that invalid arguments are refused as they would be in a file.
        return ApiKeys.parse(keys.text().encode()), secret

    def without(self, name: str) -> ApiKeys:
        """Return these keys without one; raise NotFound if it does not exist."""
        left = tuple(key for key in self.keys if key.name != name)
        if len(left) == len(self.keys):
            raise NotFound(f"name: key does not exist: {name[:64]!r}")
        return ApiKeys(left, self.address)


def read_private(path: Path, option: str, max_nbytes: int) -> bytes:
    """Read a file that other users may not read; raise BadInput, with the command that corrects the mode.

    A file of another owner, as Kubernetes mounts secrets, may be readable by its group: otherwise this process could
    not read it.
    """
    try:
        status = os.stat(path)
        mode, allowed = stat.S_IMODE(status.st_mode), 0o700 if status.st_uid == os.geteuid() else 0o750
        if extra := mode & 0o777 & ~allowed:
            raise BadInput(
                f"{option}: expected a file that others cannot read or write, got mode {mode:04o}; "
                f"chmod {mode & ~extra & 0o777:o} {path}"
            )
    except OSError as error:
        raise BadInput(f"{option}: {path}: {error.strerror or 'cannot be read'}") from None
    return read_public(path, option, max_nbytes)


def read_public(path: Path, option: str, max_nbytes: int) -> bytes:
    """Read a file that any user may read; raise BadInput if it cannot be read."""
    try:
        return read_file(path, max_nbytes, option).tobytes()
    except Corrupt as error:
        raise BadInput(str(error)) from None
    except OSError as error:
        raise BadInput(f"{option}: {path}: {error.strerror or 'cannot be read'}") from None


@contextlib.contextmanager
def changing(path: Path) -> Iterator[list[ApiKeys]]:
    """Edit a key file, one writer at a time.

    Yields a list with the file's keys (no keys if there is no file), and at the end writes the list's keys, readable by
    the owner only. Raises BadInput.
    """
    try:
        folder = os.open(path.parent, os.O_RDONLY)
    except OSError as error:
        raise BadInput(f"keys: {path.parent}: {error.strerror}") from None
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        held = [ApiKeys.parse(read_private(path, "keys", MAX_FILE_NBYTES)) if path.exists() else ApiKeys()]
        yield held
        text = held[0].text().encode()
        if len(text) > MAX_FILE_NBYTES:
            raise BadInput(f"keys: expected at most {MAX_FILE_NBYTES} bytes, got {len(text)}")
        with atomic_file(path) as file:
            # Set the mode before any content is written.
            os.fchmod(file.fileno(), 0o600)
            file.write(text)
    except OSError as error:
        raise BadInput(f"keys: {path}: {error.strerror}") from None
    finally:
        os.close(folder)


def _key(table: Any, where: str) -> ApiKey:
    _want(type(table) is dict, f"{where}: expected a table", table)
    _known(table, FIELDS, where)
    name, digest, scopes = table.get("name"), table.get("sha256"), table.get("scopes")
    if type(name) is not str or not NAME.fullmatch(name):
        raise BadInput(f"{where}.name: expected up to 64 letters, digits, '.', '_' and '-', got {_shown(name)}")
    if type(digest) is not str or not SHA256.fullmatch(digest):
        raise BadInput(f"{where}.sha256: expected 64 hexadecimal digits, got {_shown(digest)}")
    if type(scopes) is not list or not scopes or any(type(scope) is not str for scope in scopes):
        raise BadInput(f"{where}.scopes: expected a list of {', '.join(SCOPES)}, got {_shown(scopes)}")
    if unknown := sorted(set(scopes) - set(SCOPES)):
        raise BadInput(f"{where}.scopes: expected some of {', '.join(SCOPES)}, got {_shown(unknown[0])}")
    expires = table.get("expires")
    if expires is not None and not (isinstance(expires, datetime) and expires.tzinfo is not None):
        raise BadInput(f"{where}.expires: expected a time with its zone, 2027-01-01T00:00:00Z, got {_shown(expires)}")
    return ApiKey(
        name,
        bytes.fromhex(digest),
        frozenset(scopes),
        math.inf if expires is None else expires.timestamp(),
        _limits(table, where),
    )


def _limits(table: Mapping[str, Any], where: str) -> RateLimits:
    rate, concurrency = table.get("rate", 0.0), table.get("concurrency", 0)
    if type(rate) not in (int, float) or ("rate" in table and not 0 < rate <= MAX_RATE):
        raise BadInput(f"{where}.rate: expected requests a second, above 0 to {MAX_RATE:g}, got {_shown(rate)}")
    if type(concurrency) is not int or ("concurrency" in table and not 0 < concurrency <= MAX_CONCURRENCY):
        raise BadInput(f"{where}.concurrency: expected 1 to {MAX_CONCURRENCY}, got {_shown(concurrency)}")
    return RateLimits(float(rate), concurrency)


def _limits_text(limits: RateLimits) -> str:
    rate = f"rate = {limits.rate!r}\n" if limits.rate else ""
    return rate + (f"concurrency = {limits.concurrency}\n" if limits.concurrency else "")


def _time_text(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _known(table: Mapping[str, Any], names: set[str], where: str) -> None:
    if unknown := sorted(set(table) - names):
        raise BadInput(f"{where}: expected {', '.join(sorted(names))}, got {_shown(unknown[0])}")


def _want(holds: bool, expected: str, value: Any) -> None:
    if not holds:
        raise BadInput(f"{expected}, got {json_kind(value)}")


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    text = repr(value[:64]) if isinstance(value, str) else str(value)[:64]
    return printable(text)
