"""Credentials of a client: API key, own TLS certificate, and the authorities to trust."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from freshet_serving.processor.errors import BadInput


@dataclass(frozen=True, slots=True)
class ClientCredentials:
    """Credentials of a client.

    Attributes:
        key: API key; "" for none.
        ca: PEM file of the authorities to trust for the server's certificate; "" for the system's.
        certificate: PEM file of the client's own certificate, for servers that require one; "" for none.
        private_key: PEM file of its private key; "" for none.
    """

    key: str = field(default="", repr=False)
    ca: str = ""
    certificate: str = ""
    private_key: str = ""

    def __post_init__(self) -> None:
        if not (self.key.isascii() and self.key.isprintable()) or " " in self.key:
            raise BadInput("key: expected printable ASCII without spaces, as printed by freshet key create")
        if bool(self.certificate) != bool(self.private_key):
            raise BadInput("certificate, private_key: expected both or neither")

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """Headers of every call; metadata over gRPC."""
        return (("authorization", f"Bearer {self.key}"),) if self.key else ()

    def context(self) -> ssl.SSLContext:
        """Return the TLS context for HTTPS. Raises BadInput."""
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
            if self.certificate:
                context.load_cert_chain(self.certificate, self.private_key)
        except OSError as error:
            raise BadInput(f"ca, certificate, private_key: expected PEM files, got {_why(error)}") from None
        return context

    def channel_credentials(self) -> Any:
        """Return the channel credentials for gRPC. Raises BadInput."""
        import grpc

        try:
            ca, key, chain = (
                Path(path).read_bytes() if path else None for path in (self.ca, self.private_key, self.certificate)
            )
        except OSError as error:
            raise BadInput(f"ca, certificate, private_key: expected PEM files, got {_why(error)}") from None
        return grpc.ssl_channel_credentials(ca, key, chain)


def _why(error: OSError) -> str:
    reason = getattr(error, "reason", None) or error.strerror or "unreadable files"
    return str(reason).replace("_", " ").lower()
