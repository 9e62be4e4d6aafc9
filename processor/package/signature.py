"""Ed25519 key files, and signatures over bytes. processor.repository.keyring decides what is signed and who is trusted.

A key's id is the first 16 hexadecimal digits of the SHA-256 of its 32 raw public bytes. A private key is a PKCS8 PEM
file without a password that only its owner may read, a public one a PEM file; openssl and other tools read both. The
library comes with the extra `signed`, and is imported only when a key is opened.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from freshet_serving.processor.errors import BadInput, Conflict, Corrupt
from freshet_serving.processor.extras import needed
from freshet_serving.processor.package.manifest_entries import SIGNATURE
from freshet_serving.processor.package.whole_files import read_file

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

MAX_KEY_NBYTES = 16 << 10
SUBJECT = "a signature"


class PublicKey:
    """A public key, which verifies signatures."""

    def __init__(self, key: Ed25519PublicKey) -> None:
        from cryptography.hazmat.primitives import serialization as form

        self._key = key
        raw = key.public_bytes(form.Encoding.Raw, form.PublicFormat.Raw)
        self.id = hashlib.sha256(raw).hexdigest()[:16]

    @classmethod
    def read(cls, path: str | Path) -> PublicKey:
        """Read a file of a public key, or of a private one; raise BadInput."""
        with needed(SUBJECT):
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
            from cryptography.hazmat.primitives.serialization import load_pem_public_key
        data = _read(path, "trust")
        if b"PRIVATE KEY" in data:
            return Signer.read(path).public
        try:
            key = load_pem_public_key(data)
        except Exception:
            raise BadInput("trust: expected an Ed25519 public key in PEM, such as `freshet keys new` writes") from None
        if not isinstance(key, Ed25519PublicKey):
            raise BadInput("trust: expected an Ed25519 public key, got another kind of key")
        return cls(key)

    def verify(self, signature: str, data: bytes) -> bool:
        """Report whether this key has signed these bytes, from the signature's 128 hexadecimal digits."""
        from cryptography.exceptions import InvalidSignature

        if not SIGNATURE.fullmatch(signature):
            return False
        try:
            self._key.verify(bytes.fromhex(signature), data)
        except InvalidSignature:
            return False
        return True


class Signer:
    """A private key, which signs."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key, self.public = key, PublicKey(key.public_key())
        self.id = self.public.id

    @classmethod
    def read(cls, path: str | Path) -> Signer:
        """Read a file of a private key; raise BadInput."""
        with needed(SUBJECT):
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
            from cryptography.hazmat.primitives.serialization import load_pem_private_key
        data = _read(path, "key")
        try:
            key = load_pem_private_key(data, None)
        except Exception:
            raise BadInput("key: expected an Ed25519 private key in PEM without a password") from None
        if not isinstance(key, Ed25519PrivateKey):
            raise BadInput("key: expected an Ed25519 private key, got another kind of key")
        return cls(key)

    def sign(self, data: bytes) -> str:
        """Return the signature as 128 hexadecimal digits; deterministic."""
        return self._key.sign(data).hex()


def new_key(name: str) -> tuple[Path, Path, str]:
    """Create NAME.key and NAME.pub; return the two files and the key's id. Raises Conflict if either exists."""
    with needed(SUBJECT):
        from cryptography.hazmat.primitives import serialization as form
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    private, public = Path(f"{name}.key"), Path(f"{name}.pub")
    for path in (private, public):
        if path.exists():
            raise Conflict(f"{path.name}: already exists and is never replaced; choose another --out")
    key = Ed25519PrivateKey.generate()
    signer = Signer(key)
    secret = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    shown = key.public_key().public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo)
    try:
        for path, data, mode in ((private, secret, 0o600), (public, shown, 0o644)):
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
    except FileExistsError:
        raise Conflict(f"{name}: already exists and is never replaced; choose another --out") from None
    except OSError as error:
        raise BadInput(f"{name}: cannot be written: {error.strerror}") from None
    return private, public, signer.id


def _read(path: str | Path, what: str) -> bytes:
    try:
        return read_file(Path(path), MAX_KEY_NBYTES).tobytes()
    except OSError as error:
        raise BadInput(f"{what}: {Path(path).name}: {error.strerror}") from None
    except Corrupt as error:
        raise BadInput(f"{what}: {error}") from None
