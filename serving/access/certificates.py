"""Build TLS contexts from certificates: a port's own certificate and key, and the CA of its clients.

TLS 1.2 at least; no renegotiation, no compression, no key with a password. With a client CA, the handshake of a client
without a certificate from it fails.
"""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from freshet_serving.processor.errors import BadInput


class Certificates(NamedTuple):
    """A certificate with its chain, its private key and a CA for client certificates, b"" for none, in PEM."""

    chain: bytes
    key: bytes
    client_ca: bytes
    context: ssl.SSLContext

    @classmethod
    def of(cls, files: Mapping[str, bytes]) -> Certificates | None:
        """Build certificates from file contents by option; return None without a certificate. Raise BadInput."""
        if not files.get("tls_cert"):
            return None
        chain, key, client_ca = files["tls_cert"], files["tls_key"], files.get("tls_client_ca", b"")
        return cls(chain, key, client_ca, _context(chain, key, client_ca))


CertificateSource = Callable[[], Certificates]
"""Returns the newest certificates; called for each handshake."""


def _context(chain: bytes, key: bytes, client_ca: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_alpn_protocols(["http/1.1"])
    try:
        # The library accepts only files.
        with _file(chain) as chain_path, _file(key) as key_path:
            context.load_cert_chain(chain_path, key_path, _no_password)
    except ssl.SSLError as error:
        raise BadInput(f"tls_cert, tls_key: expected a certificate and its own key in PEM, got {_why(error)}") from None
    if client_ca:
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(cadata=client_ca.decode("ascii"))
        except (ssl.SSLError, ValueError) as error:
            raise BadInput(f"tls_client_ca: expected certificates in PEM, got {_why(error)}") from None
    return context


def _no_password() -> str:
    raise BadInput("tls_key: expected a key without a password; openssl pkey -in KEY -out PLAIN")


def _why(error: Exception) -> str:
    """Return OpenSSL's reason, without its source file."""
    reason = getattr(error, "reason", None)
    return str(reason).replace("_", " ").lower() if reason else "something else"


@contextlib.contextmanager
def _file(data: bytes) -> Iterator[str]:
    fd = os.memfd_create("freshet-tls", os.MFD_CLOEXEC)
    try:
        with open(fd, "wb", closefd=False) as memory:
            memory.write(data)
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)
