"""Poll the replicas of a fleet concurrently, each within a time limit and a size limit.

Invariants
- A replica costs at most MAX_REPLY_NBYTES, MAX_HEAD_NBYTES and timeout_s, from the connection to the last byte: one
  that hangs, trickles or floods does not delay the others. Only the system bounds the time of a name lookup.
- At most AT_ONCE are polled at a time, and MOST in all.
- No redirect and no proxy is followed, so the token is sent only to the given addresses.

HTTP/1.0 is used so that a reply ends with its connection and is never chunked. Rejected: the urllib of AdminClient,
whose timeout starts again with every byte; and threads, because a thread that hangs cannot be ended.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from freshet_serving.processor.errors import BadInput, FreshetError, printable
from freshet_serving.serving.commands.admin_client import admin_context
from freshet_serving.serving.extensions.fleet.fleet_comparison import ReplicaStatus, read_report

MAX_REPLY_NBYTES, MAX_HEAD_NBYTES = 4 << 20, 1 << 16
AT_ONCE, MOST = 64, 1024
MAX_WHY = 200
PATH = "/admin/models"


@dataclass(frozen=True, slots=True)
class AdminAddress:
    """Address of a replica's admin port; its certificate must have `name`, if there is one, instead of the host."""

    where: str
    host: str
    port: int
    secure: bool = False
    name: str = ""

    @staticmethod
    def parse(text: str) -> AdminAddress:
        """Parse http://HOST:PORT, https://HOST:PORT or HOST:PORT. Raises BadInput."""
        try:
            parts = urlsplit(text if "://" in text else f"http://{text}")
            host, port = parts.hostname, parts.port
        except ValueError:
            host = port = None
        plain = text.isprintable() and " " not in text
        if (
            not plain
            or host is None
            or not port
            or parts.scheme not in ("http", "https")
            or parts.path not in ("", "/")
        ):
            raise BadInput(
                "fleet: expected http://HOST:PORT of an admin port, such as http://127.0.0.1:8502, got "
                f"{printable(text)[:64]!r}"
            )
        if parts.username is not None or parts.query or parts.fragment:
            raise BadInput("fleet: expected http://HOST:PORT of an admin port; set the token in FRESHET_ADMIN_TOKEN")
        return AdminAddress(text.rstrip("/"), host, port, parts.scheme == "https")

    @property
    def authority(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def check_token(token: str) -> None:
    """Raise BadInput if the token cannot be sent in a header."""
    if not (token.isascii() and token.isprintable()):
        raise BadInput("admin_token: expected printable ASCII")


async def resolve(service: str, timeout_s: float) -> list[AdminAddress]:
    """Return all current addresses of HOST:PORT, such as a headless service of Kubernetes; empty if it has none."""
    name = AdminAddress.parse(service)
    loop = asyncio.get_running_loop()
    try:
        resolved = await asyncio.wait_for(loop.getaddrinfo(name.host, name.port, type=1), timeout_s)
    except (OSError, TimeoutError, UnicodeError):
        return []
    hosts = sorted({str(address[0]) for *_, address in resolved})
    return [_at(host, name) for host in hosts]


def _at(host: str, name: AdminAddress) -> AdminAddress:
    address = AdminAddress("", host, name.port, name.secure, name.host)
    return replace(address, where=f"http{'s' * name.secure}://{address.authority}")


async def poll_all(
    replicas: Sequence[AdminAddress], token: str, timeout_s: float, model: str | None = None
) -> list[ReplicaStatus]:
    """Return the report of each replica, in their order; raise BadInput if there are too many.

    Each has `timeout_s`. Without a token "" none is sent; without a model, all are read.
    """
    if len(replicas) > MOST:
        raise BadInput(f"fleet: expected at most {MOST} replicas, got {len(replicas)}")
    turn = asyncio.Semaphore(AT_ONCE)

    async def ask(replica: AdminAddress) -> ReplicaStatus:
        async with turn:
            return await _ask(replica, token, timeout_s, model)

    return list(await asyncio.gather(*map(ask, replicas)))


async def _ask(replica: AdminAddress, token: str, timeout_s: float, model: str | None) -> ReplicaStatus:
    try:
        status, body = await asyncio.wait_for(_fetch(replica, token), timeout_s)
        document = _json_of(body)
        if status != 200:
            return ReplicaStatus(replica.where, problem=_refusal(status, document))
        return read_report(replica.where, document, model)
    except TimeoutError:
        why = f"unreachable: no answer within {timeout_s:g} s"
    except FreshetError as error:
        why = f"no report: {error}"
    except ssl.SSLError as error:
        why = f"unreachable: {error.reason or 'no TLS'}"
    except socket.gaierror as error:
        why = f"unreachable: {error.strerror}"
    except (OSError, ValueError) as error:
        number = getattr(error, "errno", None)
        why = f"unreachable: {os.strerror(number) if number else type(error).__name__}"
    return ReplicaStatus(replica.where, problem=printable(why)[:MAX_WHY])


async def _fetch(replica: AdminAddress, token: str) -> tuple[int, bytes]:
    context = admin_context() if replica.secure else None
    name = (replica.name or replica.host) if replica.secure else None
    reader, writer = await asyncio.open_connection(
        replica.host, replica.port, ssl=context, server_hostname=name, limit=MAX_HEAD_NBYTES
    )
    try:
        bearer = f"Authorization: Bearer {token}\r\n" if token else ""
        writer.write(
            f"GET {PATH} HTTP/1.0\r\nHost: {replica.authority}\r\n{bearer}Accept: application/json\r\n\r\n".encode()
        )
        await writer.drain()
        head = await reader.readuntil(b"\r\n\r\n")
        status = _status_of(head)
        return status, await _body(reader)
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        raise BadInput("not an HTTP reply") from None
    finally:
        writer.transport.abort()


def _status_of(head: bytes) -> int:
    version, _, rest = head.partition(b" ")
    code = rest[:3]
    if not version.startswith(b"HTTP/1.") or not code.isdigit():
        raise BadInput("not an HTTP reply")
    return int(code)


async def _body(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while chunk := await reader.read(1 << 16):
        body += chunk
        if len(body) > MAX_REPLY_NBYTES:
            raise BadInput(f"expected at most {MAX_REPLY_NBYTES} bytes, got more")
    return bytes(body)


def _json_of(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise BadInput("expected JSON") from None


def _refusal(status: int, document: Any) -> str:
    error = document.get("error") if isinstance(document, dict) else None
    why = f": {error}" if isinstance(error, str) else ""
    return printable(f"answered {status}{why}")[:MAX_WHY]
