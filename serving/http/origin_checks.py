"""Refuse requests that a browser sends for another site's page: on the admin port, and changes through the data port.

A page can make its reader's browser send requests to any host that the browser reaches, but it sees no reply. If the
owner of a name points it at this machine after the page was loaded (DNS rebinding), it sees replies too. It cannot stop
the browser from naming the page's origin, nor forge the host name of the request.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    # Loads kernels, which the command's help can do without.
    from freshet_serving.serving.codecs.wire import Headers

OWN_SITES = (b"none", b"same-origin")
DECIDING = frozenset((b"host", b"origin", b"sec-fetch-site", b"authorization"))


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def from_browser(headers: Headers) -> bool:
    """Return True if a browser states that a page made it send the request."""
    return b"origin" in headers or b"sec-fetch-site" in headers


def repeated_refusal(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return why a request that repeats a header on which access depends is refused; "" for any other request.

    Of two Origins, a proxy may use the first and this server the last. Names are in lower case.
    """
    deciding = [name for name, _ in headers if name in DECIDING]
    for name in set(deciding):
        if deciding.count(name) > 1:
            return f"{name.decode()}: expected at most once, got {deciding.count(name)} times"
    return ""


def cross_site_refusal(headers: Headers, changes: bool) -> str:
    """Return why a request sent for another site's page is refused; "" for any other.

    One that changes nothing is refused by its Origin alone: the page cannot see the reply.
    """
    host, origin = headers.get(b"host", b"").lower(), headers.get(b"origin")
    if origin is not None and origin.lower() not in (b"http://" + host, b"https://" + host):
        return "origin: requests from other sites are refused"
    if changes and headers.get(b"sec-fetch-site", b"none").lower() not in OWN_SITES:
        return "sec-fetch-site: requests from other sites are refused"
    return ""


def rebinding_refusal(headers: Headers, own_name: str = "") -> str:
    """Return why a request is refused whose Host is neither `own_name` nor a loopback name; "" for any other.

    Such a Host may be another party's name for this machine.
    """
    host = headers.get(b"host", b"").decode("latin-1").lower()
    try:
        # A Host has no user name; what follows an "@" would be taken for the whole name.
        name = None if "@" in host else urlsplit(f"//{host}").hostname
    except ValueError:
        name = None
    if name is None or not (is_loopback(name) or name == own_name):
        return "host: expected this server's own name"
    return ""
