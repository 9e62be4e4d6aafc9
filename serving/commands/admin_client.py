"""Client of the admin port for the command line: standard library only, no redirects, no proxies.

Over https:// the server's certificate must be issued by an authority that the system trusts, or by FRESHET_ADMIN_CA. If
the server requires a client certificate, FRESHET_ADMIN_CERT and FRESHET_ADMIN_KEY are used (PEM files).
"""

from __future__ import annotations

import json
import os
import ssl
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from freshet_serving.processor.errors import BadInput, FreshetError, NotReady
from freshet_serving.serving.client.client_credentials import ClientCredentials

MAX_REPLY_NBYTES = 16 << 20
TOKEN_VARIABLE = "FRESHET_ADMIN_TOKEN"
"""The environment has the token: every user of a machine can read its command lines."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, so that the token is not sent to another server."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


class AdminClient:
    """Client of one admin port.

    Args:
        base: Address, such as http://127.0.0.1:8502.
        token: Bearer token, or an API key with admin scopes; None for FRESHET_ADMIN_TOKEN, "" for none.
    """

    def __init__(self, base: str, token: str | None = None, timeout_s: float = 300.0) -> None:
        if not base.startswith(("http://", "https://")):
            raise BadInput(f"admin: expected an http:// or https:// address, got {base[:64]!r}")
        self._base = base.rstrip("/")
        self._token = os.environ.get(TOKEN_VARIABLE, "") if token is None else token
        self._timeout_s = timeout_s
        handlers: list[Any] = [urllib.request.ProxyHandler({}), _NoRedirects]
        if base.startswith("https://"):
            handlers.append(urllib.request.HTTPSHandler(context=admin_context()))
        self._opener = urllib.request.build_opener(*handlers)

    def get(self, path: str) -> Any:
        return self._call("GET", path, None, "")

    def send_json(self, method: str, path: str, document: Any) -> Any:
        return self._call(method, path, json.dumps(document).encode(), "application/json")

    def upload(self, path: str, data: bytes) -> Any:
        return self._call("POST", path, data, "application/octet-stream")

    def _call(self, method: str, path: str, body: bytes | None, content_type: str) -> Any:
        """Return the reply's JSON. Raises FreshetError with the server's refusal, NotReady if it does not answer."""
        request = urllib.request.Request(self._base + path, data=body, method=method)
        if content_type:
            request.add_header("Content-Type", content_type)
        if self._token:
            request.add_header("Authorization", f"Bearer {self._token}")
        try:
            with self._opener.open(request, timeout=self._timeout_s) as reply:
                return json.loads(reply.read(MAX_REPLY_NBYTES))
        except urllib.error.HTTPError as error:
            with error:
                raise FreshetError(_message(error)) from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            why = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
            raise NotReady(f"admin: no answer from {self._base}: {why}; is freshet serve running there?") from None


def _message(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.loads(error.read(MAX_REPLY_NBYTES))["error"])
    except (ValueError, KeyError, TypeError):
        return f"admin: answered {error.code}"


def admin_context() -> ssl.SSLContext:
    """Return the TLS context of commands for an admin port over https://. Raises BadInput."""
    ca, certificate, key = (os.environ.get(f"FRESHET_ADMIN_{name}", "") for name in ("CA", "CERT", "KEY"))
    return ClientCredentials("", ca, certificate, key).context()


def quoted(name: str) -> str:
    """Return a name as one segment of a URL path."""
    return urllib.parse.quote(name, safe="")
