"""Ed25519: key files, and signatures over bytes. What is signed, and who is trusted, processor.repository.keyring says.

A key is known by its id, the first 16 hexadecimal digits of the SHA-256 of its 32 raw public bytes. A private key is a
PKCS8 PEM file without a password that its owner alone may read, a public one a PEM file; both are what openssl and
other tools read. The library comes with the extra `signed`, and is imported where a key is opened, not before.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from freshet_serving.processor.errors import BadInput, Conflict, Corrupt
from freshet_serving.processor.extras import needed
from freshet_serving.processor.package.regular_file import read_file

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

KEY_ID, SIGNATURE = re.compile(r"[0-9a-f]{16}"), re.compile(r"[0-9a-f]{128}")
MAX_KEY_NBYTES = 16 << 10
SUBJECT = "a signature"


class PublicKey:
    """Who may have signed. id: see above."""

    def __init__(self, key: Ed25519PublicKey) -> None:
        from cryptography.hazmat.primitives import serialization as form

        self._key = key
        raw = key.public_bytes(form.Encoding.Raw, form.PublicFormat.Raw)
        self.id = hashlib.sha256(raw).hexdigest()[:16]

    @classmethod
    def read(cls, path: str | Path) -> PublicKey:
        """From a file of a public key, or of a private one; raises BadInput."""
        with needed(SUBJECT):
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
            from cryptography.hazmat.primitives.serialization import load_pem_public_key
        data = _read(path, "trust")
        if b"PRIVATE KEY" in data:
            return Signer.read(path).public
        try:
            key = load_pem_public_key(data)
        except Exception:
            raise BadInput("trust: an Ed25519 public key in PEM wanted, such as `freshet keys new` writes") from None
        if not isinstance(key, Ed25519PublicKey):
            raise BadInput("trust: an Ed25519 public key wanted, got one of another kind")
        return cls(key)

    def verify(self, signature: str, data: bytes) -> bool:
        """Whether this key has signed these bytes."""
        from cryptography.exceptions import InvalidSignature

        if not SIGNATURE.fullmatch(signature):
            return False
        try:
            self._key.verify(bytes.fromhex(signature), data)
        except InvalidSignature:
            return False
        return True


class Signer:
    """Who signs. public: the key that its signatures are checked by."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key, self.public = key, PublicKey(key.public_key())
        self.id = self.public.id

    @classmethod
    def read(cls, path: str | Path) -> Signer:
        """From a file of a private key; raises BadInput."""
        with needed(SUBJECT):
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
            from cryptography.hazmat.primitives.serialization import load_pem_private_key
        data = _read(path, "key")
        try:
            key = load_pem_private_key(data, None)
        except Exception:
            raise BadInput("key: an Ed25519 private key in PEM without a password wanted") from None
        if not isinstance(key, Ed25519PrivateKey):
            raise BadInput("key: an Ed25519 private key wanted, got one of another kind")
        return cls(key)

    def sign(self, data: bytes) -> str:
        """The signature as 128 hexadecimal digits; the same bytes have the same one."""
        return self._key.sign(data).hex()


def new_key(name: str) -> tuple[Path, Path, str]:
    """Makes a key: NAME.key and NAME.pub, and its id. Neither file is ever replaced: raises Conflict."""
    with needed(SUBJECT):
        from cryptography.hazmat.primitives import serialization as form
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    private, public = Path(f"{name}.key"), Path(f"{name}.pub")
    for path in (private, public):
        if path.exists():
            raise Conflict(f"{path.name}: is there already, and no key is replaced; another --out wanted")
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
        raise Conflict(f"{name}: is there already, and no key is replaced; another --out wanted") from None
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
