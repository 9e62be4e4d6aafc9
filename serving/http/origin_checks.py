"""Sites: which requests a browser sends for another site's page; one rule for the admin port and for what clients of
the data port may change.

A page can have its reader's browser send requests to whatever the browser reaches, as plain forms do; it sees no reply.
Of a name that its owner points at this machine once the page is there (DNS rebinding) it sees replies too. What it
cannot do is keep the browser from saying where the page comes from, or forge the name that was asked for.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from freshet_serving.serving.codecs.wire import Headers

OWN_SITES = (b"none", b"same-origin")


def is_loopback(host: str) -> bool:
    """Whether `host` is localhost or a loopback address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def from_browser(headers: Headers) -> bool:
    """Whether a browser says that a page has had it send the request."""
    return b"origin" in headers or b"sec-fetch-site" in headers


def cross_site_refusal(headers: Headers, changes: bool) -> str:
    """Why a request is refused that was sent for another site's page; "" for any other. changes: whether it is to
    change anything: what one reads, no page of another site sees."""
    host, origin = headers.get(b"host", b"").lower(), headers.get(b"origin")
    if origin is not None and origin.lower() not in (b"http://" + host, b"https://" + host):
        return "origin: requests from other sites are refused"
    if changes and headers.get(b"sec-fetch-site", b"none").lower() not in OWN_SITES:
        return "sec-fetch-site: requests from other sites are refused"
    return ""


def rebinding_refusal(headers: Headers, own: str = "") -> str:
    """Why a request is refused whose Host may be another's name for this machine; "" where it is `own`, or one that
    only this machine could mean."""
    try:
        name = urlsplit(f"//{headers.get(b'host', b'').decode('latin-1').lower()}").hostname
    except ValueError:
        name = None
    if name is None or not (is_loopback(name) or name == own):
        return "host: this server's own name wanted"
    return ""
